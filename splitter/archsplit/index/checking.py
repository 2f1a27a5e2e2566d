"""Read an index again, all of it, and say everything that is not as its pages say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.errors import InputError, VerifyError
from archsplit.index.entries import METADATA_SUFFIX
from archsplit.index.static_folder import pages_of
from archsplit.index.static_model import missing_plugins
from archsplit.index.static_pages import HTML_FILE, JSON_FILE, root_html, root_json
from archsplit.system.fs import read_file, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.index.entries import IndexEntry, IndexProject
    from archsplit.index.static_folder import IndexFolder


def check_index(folder: IndexFolder) -> int:
    """Hash every file and compare every page.

    Returns:
        How many wheels there are.

    Raises:
        VerifyError: lists every finding, sorted.
        InputError: a page can't be read.
    """
    projects = folder.projects()
    entries = [entry for project in projects.values() for entry in project.entries]
    findings = [
        *_root_findings(folder, sorted(projects)),
        *(finding for one in projects.values() for finding in _page_findings(folder, one)),
        *(finding for one in entries for finding in _file_findings(folder, one)),
        *missing_plugins(entries),
    ]
    if findings:
        raise VerifyError(
            "\n  ".join([f"{folder.root} is not sound:", *sorted(findings)]),
            hint="`--add` of a wheel that is lost or damaged brings it back",
        )
    return len(entries)


def _root_findings(folder: IndexFolder, names: list[str]) -> Iterator[str]:
    for name, text in ((JSON_FILE, root_json(names)), (HTML_FILE, root_html(names))):
        yield from _text_findings(folder, name, text)


def _page_findings(folder: IndexFolder, project: IndexProject) -> Iterator[str]:
    for name, text in pages_of(project).items():
        yield from _text_findings(folder, f"{project.name}/{name}", text)


def _text_findings(folder: IndexFolder, name: str, text: str) -> Iterator[str]:
    path = folder.root / name
    if not path.exists():
        yield f"{name}: is missing"
    elif read_file(path) != text.encode():
        yield f"{name}: is not the page of these wheels; any change writes it again"


def _file_findings(folder: IndexFolder, entry: IndexEntry) -> Iterator[str]:
    project = entry.release.project
    promised = {
        entry.file: entry.sha256,
        f"{entry.file}{METADATA_SUFFIX}": entry.metadata_sha256,
    }
    for name, digest in promised.items():
        path = folder.place(project, name)
        try:
            found = sha256(path)
        except InputError as error:
            yield f"{project}/{name}: {error}"
            continue
        if found != digest:
            yield f"{project}/{name}: has the SHA-256 {found}, expected {digest}"
        elif name == entry.file and path.stat().st_size != entry.size:
            yield f"{project}/{name}: has {path.stat().st_size} bytes, expected {entry.size}"
