"""An index's pages, as text; pure.

Sources: https://packaging.python.org/en/latest/specifications/simple-repository-api/ (PEP 503,
592, 658, 691, 700, 714). The JSON pages are also the index's only database: the standard
reserves keys that begin with an underscore for the server.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archsplit.errors import InputError, WheelError
from archsplit.index.retry import utc_text
from archsplit.index.static_model import IndexEntry, IndexProject, IndexRelease
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.utils import NormalizedName

__pure__ = True

HTML_FILE, JSON_FILE = "index.html", "index.json"
API_VERSION = "1.4"

_MARK = f'<meta name="pypi:repository-version" content="{API_VERSION}">'
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{_MARK}
<title>{{title}}</title>
</head>
<body>
{{links}}
</body>
</html>
"""


def project_html(project: IndexProject) -> str:
    """Return a project's page in HTML."""
    links = "\n".join(map(_link, project.entries))
    return _PAGE.format(title=f"Links for {project.name}", links=links)


def project_json(project: IndexProject) -> str:
    """Return a project's page in JSON."""
    page: dict[str, object] = {
        "meta": {"api-version": API_VERSION},
        "name": project.name,
        "versions": project.versions,
        "files": list(map(_file, project.entries)),
    }
    return json.dumps(page, indent=1) + "\n"


def root_html(names: Iterable[str]) -> str:
    """Return the list of all projects in HTML."""
    links = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
    return _PAGE.format(title="Simple index", links=links)


def root_json(names: Iterable[str]) -> str:
    """Return the list of all projects in JSON."""
    page: dict[str, object] = {"meta": {"api-version": API_VERSION}}
    page["projects"] = [{"name": name} for name in names]
    return json.dumps(page, indent=1) + "\n"


def parse_names(content: bytes) -> frozenset[NormalizedName] | None:
    """Return the names of the projects in `root_json`; None for another content."""
    try:
        return frozenset(
            canonicalize_name(one.name) for one in _Root.model_validate_json(content).projects
        )
    except ValidationError:
        return None


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


def _link(entry: IndexEntry) -> str:
    digest = f"sha256={entry.metadata_sha256}"
    metadata = {"data-core-metadata": digest, "data-dist-info-metadata": digest}
    attributes = {
        "href": f"{quote(entry.file)}#sha256={entry.sha256}",
        **({"data-requires-python": entry.requires_python} if entry.requires_python else {}),
        # The first name is the specification's; the second was in use before it was mended.
        **metadata,
        **({} if entry.yanked is None else {"data-yanked": entry.yanked}),
    }
    text = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(entry.file)}</a><br>"


def _file(entry: IndexEntry) -> dict[str, object]:
    digest = {"sha256": entry.metadata_sha256}
    metadata = {"core-metadata": digest, "dist-info-metadata": digest}
    return {
        "filename": entry.file,
        "url": quote(entry.file),
        "hashes": {"sha256": entry.sha256},
        **({"requires-python": entry.requires_python} if entry.requires_python else {}),
        "size": entry.size,
        "upload-time": utc_text(datetime.fromtimestamp(entry.uploaded, timezone.utc)),
        # PEP 691: the value is a boolean or a reason.
        "yanked": False if entry.yanked is None else entry.yanked or True,
        **metadata,
        "_pins": [str(pin) for pin in entry.pins],
    }


class _Record(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class _Hashes(_Record):
    sha256: str


class _File(_Record):
    """A wheel on a page, without the facts that can be derived."""

    filename: str
    hashes: _Hashes
    requires_python: Annotated[str, Field(validation_alias="requires-python")] = ""
    size: int
    upload_time: Annotated[datetime, Field(validation_alias="upload-time")]
    yanked: bool | str = False
    metadata: Annotated[_Hashes, Field(validation_alias="core-metadata")]
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


class _Page(_Record):
    name: str
    files: tuple[_File, ...]


class _RootProject(_Record):
    name: str


class _Root(_Record):
    projects: tuple[_RootProject, ...]
