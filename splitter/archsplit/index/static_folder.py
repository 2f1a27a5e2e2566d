"""A static index as a folder: the pages of each project, and the wheels beside them.

Every file is complete before it is renamed into its place. Wheels come before the pages that name
them and are removed after, so a reader of any page finds all files of that page. `check_index`
reads an index again and reports every difference from its pages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archsplit.errors import InputError, OutputError, VerifyError, WheelError
from archsplit.index.static_model import (
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    SDIST_SUFFIX,
    IndexProject,
    missing_plugins,
    parse_file_name,
)
from archsplit.index.static_pages import (
    HTML_FILE,
    JSON_FILE,
    is_page,
    parse_project,
    parse_url,
    project_html,
    project_json,
    root_html,
    root_json,
)
from archsplit.system.file_lock import lock
from archsplit.system.fs import input_errors, output_errors, read_file, sha256, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from packaging.utils import NormalizedName

    from archsplit.index.static_model import IndexEntry

LOCK = ".archsplit.lock"
LEFT = ".archsplit-left.json"
_PAGES = (JSON_FILE, HTML_FILE)
_SUFFIXES = tuple(
    f"{end}{beside}"
    for end in (".whl", SDIST_SUFFIX)
    for beside in ("", METADATA_SUFFIX, PROVENANCE_SUFFIX)
)
_BEGUN = re.compile(
    r"\.(index\.html|index\.json|\.archsplit-left\.json|[^/]+\.(whl|tar\.gz)(\.metadata|\.provenance)?)\.[a-z0-9_]{8}"
)
"""The names under which `archsplit.system.fs.atomic_replace` writes an index's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFolder:
    """An index's files; only who holds the lock may change them.

    Attributes:
        root: of the index, absolute.
        written: what was written, in its order, relative to the root.
        deleted: the same of what was deleted.
    """

    root: Path
    written: list[str] = field(default_factory=list, repr=False)
    deleted: list[str] = field(default_factory=list, repr=False)

    def projects(self) -> dict[NormalizedName, IndexProject]:
        """Return the projects on all pages.

        Raises:
            InputError: a page can't be read, or isn't ours.
        """
        found = {}
        for page in sorted(self.root.glob(f"*/{JSON_FILE}")):
            project = parse_project(read_file(page), where=f"{page}")
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

    def url(self) -> str:
        """Return the address of the index, if an earlier change has set it."""
        page = self.root / JSON_FILE
        return parse_url(read_file(page)) if page.exists() else ""

    def write_project(self, project: IndexProject, url: str) -> None:
        """Write a project's pages, as far as they aren't what they should be.

        Raises:
            OutputError: they can't be written.
        """
        self.make_folder(project.name)
        for name, text in render_pages(project, url).items():
            self._write(f"{project.name}/{name}", text)

    def write_root(self, names: Iterator[NormalizedName], url: str) -> None:
        """Write the list of projects; see `write_project`."""
        listed = sorted(names)
        self._write(JSON_FILE, root_json(listed, url))
        self._write(HTML_FILE, root_html(listed))

    def make_folder(self, project: NormalizedName) -> None:
        """Make a project's folder, which any web server may read."""
        folder = self.root / project
        with output_errors(folder):
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)

    def orphans(self, projects: Mapping[NormalizedName, IndexProject]) -> list[str]:
        """Wheels of a project in its folder that no page names, and their metadata; sorted.

        They are given relative to the root. What else lies in the folder is not the index's.
        """
        found = []
        for folder in (each for each in self.root.iterdir() if each.is_dir()):
            project = projects.get(canonicalize_name(folder.name))
            entries = project.entries if project else ()
            files = {name for entry in entries for name in entry.digests}
            found += [
                f"{folder.name}/{name}"
                for name in os.listdir(folder)  # noqa: PTH208 - only names matter
                if name.endswith(_SUFFIXES)
                and name not in files
                and _is_of(folder.name, _without_suffix(name))
            ]
        return sorted(found)

    def delete(self, paths: list[str]) -> None:
        """Delete files, given relative to the root.

        Raises:
            OutputError: one can't be deleted.
        """
        for path in paths:
            with output_errors(self.root / path):
                (self.root / path).unlink(missing_ok=True)
            self.deleted.append(path)

    def sweep(self) -> None:
        """Remove what a killed run was writing."""
        for path in (*self.root.glob(".*"), *self.root.glob("*/.*")):
            if _BEGUN.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()

    def left(self) -> dict[str, int]:
        """Return when files left all pages, in seconds since 1970, by path."""
        path = self.root / LEFT
        if not path.exists():
            return {}
        try:
            content = json.loads(read_file(path))
            return {str(name): int(seconds) for name, seconds in content["left"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}  # At worst some files stay a while longer.

    def remember_left(self, left: Mapping[str, int]) -> None:
        """Write the times at which files left all pages."""
        if left or (self.root / LEFT).exists():
            text = json.dumps({"schema": 1, "left": dict(sorted(left.items()))}, indent=1)
            write_file(self.root / LEFT, f"{text}\n")

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        if not (path.exists() and read_file(path) == text.encode()):
            write_file(path, text)
            self.written.append(name)


def _without_suffix(name: str) -> str:
    """Return the name of the distribution that a file lies beside."""
    return name.removesuffix(METADATA_SUFFIX).removesuffix(PROVENANCE_SUFFIX)


def _is_of(project: str, file: str) -> bool:
    try:
        return parse_file_name(file).project == project
    except WheelError:
        return False


def render_pages(project: IndexProject, url: str) -> dict[str, str]:
    """A project's pages by their file names; the index's memory is first."""
    return dict(zip(_PAGES, (project_json(project, url), project_html(project, url)), strict=True))


@contextlib.contextmanager
def lock_folder(root: Path) -> Iterator[IndexFolder]:
    """Lock an index for writing. A second process waits; a killed one releases the lock.

    Args:
        root: a folder, made unless it is there.

    Raises:
        OutputError: it can't be made or locked.
        InputError: the folder has the pages of something else.
    """
    _refuse_others(root)
    with output_errors(root):
        try:
            root.mkdir(parents=True)
        except FileExistsError:
            # An index, or another writer's that begins at this moment.
            if not root.is_dir():
                raise
        else:
            root.chmod(0o755)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            lock(descriptor)
        except OSError as error:
            raise OutputError(
                f"can't lock {root / LOCK}: {error.strerror}",
                hint="keep the index on a file system that knows locks",
            ) from error
        folder = IndexFolder(root=root.resolve())
        folder.sweep()
        yield folder
    finally:
        os.close(descriptor)


def _refuse_others(root: Path) -> None:
    """Refuse a folder with pages of another website."""
    page = root / HTML_FILE
    if page.exists() and not (root / JSON_FILE).exists() and not is_page(read_file(page)):
        raise InputError(f"{page} is not an index's", hint="keep the index in a folder of its own")


def open_folder(root: Path) -> IndexFolder:
    """Return an index for reading.

    Raises:
        InputError: it is none.
    """
    with input_errors(root):
        os.listdir(root)  # noqa: PTH208 - only whether it can be read matters
    if not (root / JSON_FILE).exists():
        raise InputError(f"{root} is no index", hint="`archsplit index DIR --add WHEELS` makes one")
    return IndexFolder(root=root.resolve())


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
    for name, text in ((JSON_FILE, root_json(names, folder.url())), (HTML_FILE, root_html(names))):
        yield from _text_findings(folder, name, text)


def _page_findings(folder: IndexFolder, project: IndexProject) -> Iterator[str]:
    for name, text in render_pages(project, folder.url()).items():
        yield from _text_findings(folder, f"{project.name}/{name}", text)


def _text_findings(folder: IndexFolder, name: str, text: str) -> Iterator[str]:
    path = folder.root / name
    if not path.exists():
        yield f"{name}: is missing"
    elif read_file(path) != text.encode():
        yield f"{name}: is not the page of these wheels; any change writes it again"


def _file_findings(folder: IndexFolder, entry: IndexEntry) -> Iterator[str]:
    project = entry.release.project
    for name, digest in entry.digests.items():
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
