"""A static index as a folder: the pages of each project, and the wheels beside them.

Every file is complete before it is renamed into its place. Wheels come before the pages that name
them and are removed after, so a reader of any page finds all files of that page. `check_index`
reads an index again and reports every difference from its pages.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archsplit.errors import InputError, OutputError, VerifyError, WheelError
from archsplit.index.static_model import (
    METADATA_SUFFIX,
    IndexProject,
    missing_plugins,
    parse_file_name,
)
from archsplit.index.static_pages import (
    HTML_FILE,
    JSON_FILE,
    is_page,
    parse_names,
    parse_project,
    project_html,
    project_json,
    root_html,
    root_json,
)
from archsplit.system.file_lock import lock, try_lock
from archsplit.system.fs import (
    input_errors,
    output_errors,
    read_file,
    sha256,
    temporary_dir,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.utils import NormalizedName

    from archsplit.index.static_model import IndexEntry

LOCK = ".archsplit.lock"
UNLISTED = ".archsplit-left.json"
_SUFFIXES = (".whl", f".whl{METADATA_SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFolder:
    """Files of an index; a change needs the lock.

    Attributes:
        root: absolute path.
        scratch: a temporary folder for what is being written; None for an index that is only read.
        written: paths of written files in order, relative to the root.
        deleted: paths of deleted files, likewise.
    """

    root: Path
    scratch: Path | None = None
    written: list[str] = field(default_factory=list, repr=False)
    deleted: list[str] = field(default_factory=list, repr=False)

    def names(self) -> frozenset[NormalizedName]:
        """Return the names of all projects, as the root page lists them.

        Raises:
            InputError: the root page can't be read.
        """
        page = self.root / JSON_FILE
        listed = parse_names(read_file(page)) if page.exists() else None
        # A damaged root page is written again, from the pages of the projects.
        if listed is None:
            return frozenset(
                canonicalize_name(path.parent.name) for path in self.root.glob(f"*/{JSON_FILE}")
            )
        return listed

    def projects(
        self, names: Collection[NormalizedName] | None = None
    ) -> dict[NormalizedName, IndexProject]:
        """Return projects from their pages.

        Args:
            names: of the projects; a name without a page is left out. None for all projects.

        Raises:
            InputError: a page can't be read, or was written by another tool.
        """
        found = {}
        pages = (
            sorted(self.root.glob(f"*/{JSON_FILE}"))
            if names is None
            else [page for name in sorted(names) if (page := self.place(name, JSON_FILE)).exists()]
        )
        for page in pages:
            project = parse_project(read_file(page), where=f"{page}")
            # A copied folder would change another project.
            if page.parent.name != project.name:
                raise InputError(f"{page} is the page of {project.name}")
            found[project.name] = project
        return found

    def place(self, project: NormalizedName, file: str) -> Path:
        """Return the path of a project's file."""
        return self.root / project / file

    def has(self, entry: IndexEntry) -> bool:
        """Return True if a wheel and its METADATA are as on their page."""
        project = entry.release.project
        places = {self.place(project, name): digest for name, digest in entry.digests.items()}
        return all(path.is_file() and sha256(path) == digest for path, digest in places.items())

    def write_project(self, project: IndexProject) -> None:
        """Write the pages of a project that differ from their new content.

        Raises:
            OutputError: a page can't be written.
        """
        self.make_folder(project.name)
        for name, text in render_pages(project).items():
            self._write(f"{project.name}/{name}", text)

    def write_root(self, names: Iterable[NormalizedName]) -> None:
        """Write the list of projects; see `write_project`."""
        for name, text in render_root(names).items():
            self._write(name, text)

    def make_folder(self, project: NormalizedName) -> None:
        """Make a project's folder, readable by a web server of another user."""
        folder = self.root / project
        with output_errors(folder):
            # The mode of an existing folder is the user's choice.
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)

    def orphans(
        self,
        projects: Mapping[NormalizedName, IndexProject],
        names: Collection[NormalizedName] | None = None,
    ) -> list[str]:
        """Return the wheels and metadata files that no page lists, sorted.

        The paths are relative to the root. Files of another kind are not the index's.

        Args:
            names: of the projects whose folders are searched; None for all folders.
        """
        found = []
        folders = self.root.iterdir() if names is None else (self.root / name for name in names)
        for folder in (each for each in folders if each.is_dir()):
            project = projects.get(canonicalize_name(folder.name))
            entries = project.entries if project else ()
            files = {name for entry in entries for name in entry.digests}
            found += [
                f"{folder.name}/{name}"
                for name in os.listdir(folder)  # noqa: PTH208 - only names matter
                if name.endswith(_SUFFIXES)
                and name not in files
                and _is_of(folder.name, name.removesuffix(METADATA_SUFFIX))
            ]
        return sorted(found)

    def delete(self, paths: list[str]) -> None:
        """Delete files, given relative to the root.

        Raises:
            OutputError: a file can't be deleted.
        """
        for path in paths:
            with output_errors(self.root / path):
                (self.root / path).unlink(missing_ok=True)
            self.deleted.append(path)

    def unlisted(self) -> dict[str, int]:
        """Return the time of each file's removal from all pages, in seconds since 1970."""
        path = self.root / UNLISTED
        if not path.exists():
            return {}
        try:
            content = json.loads(read_file(path))
            return {str(name): int(seconds) for name, seconds in content["left"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}  # At worst some files stay for a longer time.

    def save_unlisted(self, unlisted: Mapping[str, int]) -> None:
        """Write the times since which no page lists a file; see `unlisted`."""
        # An index without waiting files gets no extra file.
        if unlisted or (self.root / UNLISTED).exists():
            text = json.dumps({"schema": 1, "left": dict(sorted(unlisted.items()))}, indent=1)
            write_file(self.root / UNLISTED, f"{text}\n", private=self.scratch)

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        # An unchanged page keeps its time, so web servers and mirrors don't send it again.
        if not (path.exists() and read_file(path) == text.encode()):
            write_file(path, text, private=self.scratch)
            self.written.append(name)


def _is_of(project: str, file: str) -> bool:
    try:
        return parse_file_name(file).project == project
    except WheelError:
        return False


def render_pages(project: IndexProject) -> dict[str, str]:
    """Return a project's pages by file name; the JSON page, which is the database, first."""
    return {JSON_FILE: project_json(project), HTML_FILE: project_html(project)}


def render_root(names: Iterable[NormalizedName]) -> dict[str, str]:
    """Return the list of all projects by file name; the JSON page first."""
    listed = sorted(names)
    return {JSON_FILE: root_json(listed), HTML_FILE: root_html(listed)}


@contextlib.contextmanager
def lock_folder(root: Path, note: Callable[[str], object]) -> Iterator[IndexFolder]:
    """Lock an index for writing. A second process waits; a killed one releases the lock.

    Args:
        root: the folder; made if it is missing.
        note: shows a line to the user.

    Raises:
        OutputError: the folder can't be made or locked.
        InputError: the folder has pages of another website.
    """
    _refuse_others(root)
    with output_errors(root):
        try:
            root.mkdir(parents=True)
        except FileExistsError:
            # An existing index, or another writer that begins at this moment.
            if not root.is_dir():
                raise
        else:
            root.chmod(0o755)
        # The lock file stays: its removal would let two processes lock two different files.
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            if not try_lock(descriptor):
                note(f"waiting: another process writes to {root}")
                lock(descriptor)
        except OSError as error:
            raise OutputError(
                f"can't lock {root / LOCK}: {error.strerror}",
                hint="keep the index on a file system with file locks",
            ) from error
        # It also removes what a killed run has left.
        with temporary_dir(root) as scratch:
            yield IndexFolder(root=root.resolve(), scratch=scratch)
    finally:
        os.close(descriptor)


def _refuse_others(root: Path) -> None:
    """Refuse a folder with pages of another website."""
    page = root / HTML_FILE
    if page.exists() and not (root / JSON_FILE).exists() and not is_page(read_file(page)):
        raise InputError(f"{page} is not an index page", hint="keep the index in its own folder")


def open_folder(root: Path) -> IndexFolder:
    """Return an index for reading.

    Raises:
        InputError: the folder is not an index.
    """
    with input_errors(root):
        os.listdir(root)  # noqa: PTH208 - only whether it can be read matters
    # The JSON page is the database; any website may have an HTML page.
    if not (root / JSON_FILE).exists():
        raise InputError(
            f"{root} is not a package index (it has no index.json)",
            hint="`archsplit index DIR --add WHEELS` makes one",
        )
    return IndexFolder(root=root.resolve())


def check_index(folder: IndexFolder) -> int:
    """Hash every file and compare every page.

    Returns:
        The number of wheels.

    Raises:
        VerifyError: lists every finding, sorted.
        InputError: a page can't be read.
    """
    projects = folder.projects()
    entries = [entry for project in projects.values() for entry in project.entries]
    findings = [
        *_page_findings(folder, render_root(projects)),
        *(
            finding
            for one in projects.values()
            for finding in _page_findings(folder, render_pages(one), f"{one.name}/")
        ),
        *(finding for one in entries for finding in _file_findings(folder, one)),
        *missing_plugins(entries),
    ]
    if findings:
        raise VerifyError(
            "\n  ".join([f"{folder.root} is damaged:", *sorted(findings)]),
            hint="`archsplit index DIR` writes pages again; `--add` or the same `archsplit mirror`"
            " brings a damaged wheel back",
        )
    return len(entries)


def _page_findings(
    folder: IndexFolder, pages: Mapping[str, str], prefix: str = ""
) -> Iterator[str]:
    """Compare files of the index with the pages that they should have."""
    for name, text in pages.items():
        path = folder.root / prefix / name
        if not path.exists():
            yield f"{prefix}{name}: is missing"
        elif read_file(path) != text.encode():
            yield f"{prefix}{name}: is not the page of these wheels"


def _file_findings(folder: IndexFolder, entry: IndexEntry) -> Iterator[str]:
    project = entry.release.project
    for name, digest in entry.digests.items():
        path = folder.place(project, name)
        try:
            found = sha256(path)
        # One unreadable file must not hide the findings about the others.
        except InputError as error:
            yield f"{project}/{name}: {error}"
            continue
        if found != digest:
            yield f"{project}/{name}: has the SHA-256 {found}, expected {digest}"
        # The size is on the page too, and installers show it.
        elif name == entry.file and path.stat().st_size != entry.size:
            yield f"{project}/{name}: has the size {path.stat().st_size}, expected {entry.size}"
