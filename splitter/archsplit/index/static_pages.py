"""An index's pages, as text; pure.

Sources: https://packaging.python.org/en/latest/specifications/simple-repository-api/ (PEP 503,
592, 658, 691, 700, 714, 740, 792). The JSON pages are also the index's only database: the standard
reserves keys that begin with an underscore for the server.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote

from packaging.utils import canonicalize_name
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from archsplit.errors import InputError, WheelError
from archsplit.index.static_model import (
    PROVENANCE_SUFFIX,
    IndexEntry,
    IndexProject,
    IndexRelease,
    ProjectStatus,
)
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.utils import NormalizedName

__pure__ = True

HTML_FILE, JSON_FILE = "index.html", "index.json"
API_VERSION = "1.4"

_MARK = f'<meta name="pypi:repository-version" content="{API_VERSION}">'
_ANY_MARK = re.compile(rb'<meta name="pypi:repository-version" content="1\.[0-9]+">')
"""The mark of a page, also of one that an earlier archsplit has written."""
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


def project_html(project: IndexProject, url: str = "") -> str:
    """Return a project's page in HTML.

    Args:
        url: the address of the index, ending in "/"; "" if unknown.
    """
    links = "\n".join(_link(entry, _base(project, url)) for entry in _offered(project))
    marks = [_MARK]
    if project.status != "active":
        marks.append(_meta("project-status", project.status))
        marks += [_meta("project-status-reason", project.reason)] if project.reason else []
    return _PAGE.format(mark="\n".join(marks), title=f"Links for {project.name}", links=links)


def project_json(project: IndexProject, url: str = "") -> str:
    """Return a project's page in JSON; see `project_html`."""
    base = _base(project, url)
    files = [_file(entry, base) for entry in project.entries]
    is_offered = project.status != "quarantined"
    status: dict[str, object] = {"status": project.status}
    status |= {"reason": project.reason} if project.reason else {}
    page: dict[str, object] = {
        "meta": {"api-version": API_VERSION},
        "name": project.name,
        **({} if project.status == "active" else {"project-status": status}),
        "versions": project.versions if is_offered else [],
        "files": files if is_offered else [],
        # No installer may see the files of a quarantined project, but the index remembers them.
        **({} if is_offered else {"_files": files}),
    }
    return json.dumps(page, indent=1) + "\n"


def _offered(project: IndexProject) -> tuple[IndexEntry, ...]:
    return () if project.status == "quarantined" else project.entries


def _base(project: IndexProject, url: str) -> str:
    return f"{url}{project.name}/" if url else ""


def _meta(name: str, content: str) -> str:
    return f'<meta name="pypi:{name}" content="{escape(content)}">'


def root_html(names: Iterable[str]) -> str:
    """Return the list of all projects in HTML."""
    links = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
    return _PAGE.format(mark=_MARK, title="Simple index", links=links)


def root_json(names: Iterable[str], url: str = "") -> str:
    """Return the list of all projects in JSON, with the address of the index."""
    page: dict[str, object] = {"meta": {"api-version": API_VERSION}}
    page["projects"] = [{"name": name} for name in names]
    return json.dumps({**page, **({"_url": url} if url else {})}, indent=1) + "\n"


def parse_url(content: bytes) -> str:
    """Return the address of the index in `root_json`; "" without one."""
    try:
        return _Root.model_validate_json(content).url
    except ValidationError:
        # Only addresses of provenance objects need it, and the next change writes the page again.
        return ""


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
    return _ANY_MARK.search(content) is not None


def parse_project(content: bytes, *, where: str) -> IndexProject:
    """Read `project_json`.

    Raises:
        InputError: the content is not such a page.
    """
    try:
        page = _Page.model_validate_json(content)
        entries = [one.entry() for one in (*page.files, *page.withheld)]
    except (ValidationError, WheelError) as error:
        fault = schema_faults(error) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{where} is not a page of this index: {fault}",
            hint="restore it, or add the wheels again to an index in a new folder",
        ) from None
    project = IndexProject.of(canonicalize_name(page.name), entries)
    return replace(project, status=page.status.status, reason=page.status.reason)


def timestamp_text(seconds: int) -> str:
    """Return a time in the format of the specification: ``2026-11-21T10:00:00Z``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _link(entry: IndexEntry, base: str) -> str:
    digest = f"sha256={entry.metadata_sha256}"
    metadata = {"data-core-metadata": digest, "data-dist-info-metadata": digest}
    attributes = {
        "href": f"{quote(entry.file)}#sha256={entry.sha256}",
        **({"data-requires-python": entry.requires_python} if entry.requires_python else {}),
        # The first name is the specification's; the second was in use before it was mended.
        **(metadata if entry.metadata_sha256 else {}),
        **({"data-provenance": _provenance(entry, base)} if entry.provenance_sha256 else {}),
        **({} if entry.yanked is None else {"data-yanked": entry.yanked}),
    }
    text = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(entry.file)}</a><br>"


def _provenance(entry: IndexEntry, base: str) -> str:
    return f"{base}{quote(entry.file + PROVENANCE_SUFFIX)}"


def _file(entry: IndexEntry, base: str) -> dict[str, object]:
    digest = {"sha256": entry.metadata_sha256}
    metadata = {"core-metadata": digest, "dist-info-metadata": digest}
    provenance = {
        "provenance": _provenance(entry, base),
        "_provenance": entry.provenance_sha256,
    }
    return {
        "filename": entry.file,
        "url": quote(entry.file),
        "hashes": {"sha256": entry.sha256},
        **({"requires-python": entry.requires_python} if entry.requires_python else {}),
        "size": entry.size,
        "upload-time": timestamp_text(entry.uploaded),
        # PEP 691: the value is a boolean or a reason.
        "yanked": False if entry.yanked is None else entry.yanked or True,
        **(metadata if entry.metadata_sha256 else {}),
        **(provenance if entry.provenance_sha256 else {}),
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
    metadata: Annotated[
        _Hashes | None,
        Field(validation_alias=AliasChoices("core-metadata", "dist-info-metadata")),
    ] = None
    provenance: Annotated[str, Field(validation_alias="_provenance")] = ""
    pins: Annotated[tuple[str, ...], Field(validation_alias="_pins")] = ()

    def entry(self) -> IndexEntry:
        pins = [pin.partition("==") for pin in self.pins]
        return IndexEntry(
            file=self.filename,
            sha256=self.hashes.sha256,
            metadata_sha256=self.metadata.sha256 if self.metadata else "",
            provenance_sha256=self.provenance,
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


class _Status(_Record):
    status: ProjectStatus = "active"
    reason: str = ""


class _Page(_Record):
    name: str
    files: tuple[_File, ...]
    withheld: Annotated[tuple[_File, ...], Field(validation_alias="_files")] = ()
    status: Annotated[_Status, Field(validation_alias="project-status")] = _Status()


class _RootProject(_Record):
    name: str


class _Root(_Record):
    url: Annotated[str, Field(validation_alias="_url")] = ""
    projects: tuple[_RootProject, ...]
