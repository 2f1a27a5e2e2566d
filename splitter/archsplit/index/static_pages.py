"""An index's pages, as text; pure.

Sources: https://packaging.python.org/en/latest/specifications/simple-repository-api/ (PEP 503, 592,
658, 691, 700, 714). The JSON pages are also the index's only database: the standard reserves keys
that begin with an underscore for the server.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote

from packaging.utils import canonicalize_name
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from archsplit.errors import InputError, WheelError
from archsplit.index.static_model import IndexEntry, IndexProject, IndexRelease
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

__pure__ = True

HTML_FILE, JSON_FILE = "index.html", "index.json"
API_VERSION = "1.1"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"

_MARK = '<meta name="pypi:repository-version" content="1.0">'
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<title>{title}</title>
</head>
<body>
{links}
</body>
</html>
"""


def project_html(project: IndexProject) -> str:
    """Return a project's page in HTML."""
    links = "\n".join(_link(entry) for entry in project.entries)
    return _PAGE.format(mark=_MARK, title=f"Links for {project.name}", links=links)


def project_json(project: IndexProject) -> str:
    """Return a project's page in JSON."""
    files = [_file(entry) for entry in project.entries]
    meta = {"api-version": API_VERSION}
    page = {"meta": meta, "name": project.name, "versions": project.versions, "files": files}
    return json.dumps(page, indent=1) + "\n"


def root_html(names: Iterable[str]) -> str:
    """Return the list of all projects in HTML."""
    links = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
    return _PAGE.format(mark=_MARK, title="Simple index", links=links)


def root_json(names: Iterable[str]) -> str:
    """Return the list of all projects in JSON."""
    projects = [{"name": name} for name in names]
    return json.dumps({"meta": {"api-version": API_VERSION}, "projects": projects}, indent=1) + "\n"


def is_page(content: bytes) -> bool:
    """Return True if an HTML page was written by this module."""
    return _MARK.encode() in content


def parse_project(content: bytes, *, where: str) -> IndexProject:
    """Read `project_json`.

    Raises:
        InputError: the content is not such a page.
    """
    try:
        page = _Page.model_validate_json(content)
        entries = [one.entry() for one in page.files]
    except (ValidationError, WheelError) as error:
        fault = schema_faults(error) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{where} is not a page of this index: {fault}",
            hint="restore it, or add the wheels again to an index in a new folder",
        ) from None
    return IndexProject.of(canonicalize_name(page.name), entries)


def timestamp_text(seconds: int) -> str:
    """Return a time in the format of the specification: ``2026-11-21T10:00:00Z``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _link(entry: IndexEntry) -> str:
    digest = f"sha256={entry.metadata_sha256}"
    attributes = {
        "href": f"{quote(entry.file)}#sha256={entry.sha256}",
        **({"data-requires-python": entry.requires_python} if entry.requires_python else {}),
        # PEP 658's name was changed by PEP 714; older installers read the second one.
        "data-core-metadata": digest,
        "data-dist-info-metadata": digest,
        **({} if entry.yanked is None else {"data-yanked": entry.yanked}),
    }
    text = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(entry.file)}</a><br>"


def _file(entry: IndexEntry) -> dict[str, object]:
    digest = {"sha256": entry.metadata_sha256}
    return {
        "filename": entry.file,
        "url": quote(entry.file),
        "hashes": {"sha256": entry.sha256},
        **({"requires-python": entry.requires_python} if entry.requires_python else {}),
        "size": entry.size,
        "upload-time": timestamp_text(entry.uploaded),
        # PEP 691: the value is a boolean or a reason.
        "yanked": False if entry.yanked is None else entry.yanked or True,
        "core-metadata": digest,
        "dist-info-metadata": digest,
        # Saved here, so that a change needs no wheel to be opened again.
        "_pins": [str(pin) for pin in entry.pins],
    }


class _Hashes(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    sha256: str


class _File(BaseModel):
    """A wheel on a page, without the facts that can be derived."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    filename: str
    hashes: _Hashes
    requires_python: Annotated[str, Field(validation_alias="requires-python")] = ""
    size: int
    upload_time: Annotated[datetime, Field(validation_alias="upload-time")]
    yanked: bool | str = False
    metadata: Annotated[
        _Hashes, Field(validation_alias=AliasChoices("core-metadata", "dist-info-metadata"))
    ]
    pins: Annotated[tuple[str, ...], Field(validation_alias="_pins")] = ()

    def entry(self) -> IndexEntry:
        pins = [pin.partition("==") for pin in self.pins]
        return IndexEntry(
            file=self.filename,
            sha256=self.hashes.sha256,
            metadata_sha256=self.metadata.sha256,
            size=self.size,
            uploaded=int(self.upload_time.timestamp()),
            requires_python=self.requires_python,
            yanked=self._reason(),
            pins=tuple(
                IndexRelease(project=canonicalize_name(name), version=version)
                for name, _, version in pins
            ),
        )

    def _reason(self) -> str | None:
        # The inverse of `_file`: True is a yank without a reason.
        if isinstance(self.yanked, str):
            return self.yanked
        return "" if self.yanked else None


class _Page(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    files: tuple[_File, ...]
