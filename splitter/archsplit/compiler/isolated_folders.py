"""Folders with random names among a request's include folders; pure.

pip, build and uv install the requirements of a build into a new folder each time, and the headers
of pybind11 or NumPy are found there by another path each time. scikit-build-core and CMake do the
same with headers that a build has generated. In: the words of a command line. Out: words, names of
files and messages with `<isolated 1>` in place of such a folder, and the way back. The files below
it count by their content, as all others do.

A result has such a key only if it can't depend on the folder's name:

- `is_named` is False for each output, and `is_named_in_code` for each preprocessed text: the code
  doesn't ask for the name of a file (``__FILE__``, ``__builtin_FILE``, ``assert``);
- no line numbers and no intermediate code for a link were asked for, which name headers;
- no include folder below it is a link: compilers leave out a folder that they have twice.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.compiler.preprocessed import asks_for_place, without_markers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from archsplit.cache.manifest import ManifestEntry

__pure__ = True

_RANDOM = re.compile(
    # pip's and build's environments, pip's unpacked sdists, Python's `tempfile`.
    r"(?:pip-build-env-|pip-install-|pip-wheel-|pip-req-build-|build-env-|tmp)[a-z0-9_]{8}"
    # The sdist inside of pip's folder, and uv's environments.
    r"|[\w.-]+_[0-9a-f]{32}|\.tmp[A-Za-z0-9]{6}"
)
_ALONE = {"-I", "-isystem", "--include-path", "--system-include"}
_JOINED = re.compile(r"(-I=?|-isystem=|--include-path=|--system-include=)(/.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class IsolatedFolders:
    """Folders with random names, in the order of the command line.

    Attributes:
        paths: absolute, without a slash at the end; each ends with its random name.
    """

    paths: tuple[str, ...] = ()

    def hide(self, path: str) -> str:
        """Return a path below one of the folders without the folder's name; others unchanged."""
        for number, folder in self._numbered():
            if path.startswith(f"{folder}/"):
                return f"{_placeholder(number)}{path.removeprefix(folder)}"
        return path

    def restore(self, path: str) -> str:
        """Return a hidden path as it is here."""
        for number, folder in self._numbered():
            if path.startswith(f"{_placeholder(number)}/"):
                return f"{folder}{path.removeprefix(_placeholder(number))}"
        return path

    def hide_text(self, text: bytes) -> bytes | None:
        """Return a text without the folders' names; None if it has them beside paths."""
        hidden = text
        for number, folder in self._numbered():
            named = rb"(?<![\w./-])%s(?=/)" % re.escape(os.fsencode(folder))
            hidden = re.sub(named, _placeholder(number).encode(), hidden)
        is_same = self.restore_text(hidden) == text
        return hidden if is_same and not self.is_named(hidden) else None

    def restore_text(self, text: bytes) -> bytes:
        """Return a hidden text as it is here."""
        for number, folder in self._numbered():
            text = text.replace(_placeholder(number).encode(), os.fsencode(folder))
        return text

    def hide_entry(self, row: ManifestEntry) -> ManifestEntry:
        """Return an entry of a manifest without the folders' names."""
        return _with_paths(row, self.hide)

    def restore_entry(self, row: ManifestEntry) -> ManifestEntry:
        """Return a hidden entry of a manifest as it is here."""
        here = _with_paths(row, self.restore)
        # Sorted by the names that the files had when the entry was made.
        return here._replace(beside=tuple(sorted(here.beside)))

    def is_named(self, text: bytes) -> bool:
        """Return True if a text has the random name of a folder."""
        return any(os.fsencode(path.rpartition("/")[2]) in text for path in self.paths)

    def is_named_in_code(self, text: bytes) -> bool:
        """Return True if a preprocessed text may name a folder beside its line markers."""
        return bool(self.paths) and (asks_for_place(text) or self.is_named(without_markers(text)))

    def _numbered(self) -> list[tuple[int, str]]:
        # The longest first: one folder may be below another one.
        return sorted(enumerate(self.paths, 1), key=lambda each: -len(each[1]))


NO_FOLDERS = IsolatedFolders()


def find_isolated_folders(
    words: Sequence[str], real_path: Callable[[str], str] = os.path.realpath
) -> IsolatedFolders:
    """Return the folders with random names that include folders are in.

    Args:
        words: nvcc's arguments.
        real_path: where a path leads to, through all links.
    """
    paths: dict[str, None] = {}
    linked: set[str] = set()
    for _, value in _include_folders(words):
        folder = _isolated_folder(value)
        if folder is None:
            continue
        paths[folder] = None
        below = os.path.normpath(value).removeprefix(folder)
        if real_path(value) != real_path(folder) + below:
            linked.add(folder)
    return IsolatedFolders(tuple(path for path in paths if path not in linked))


def hide_include_folders(words: Sequence[str], isolated: IsolatedFolders) -> tuple[str, ...]:
    """Return nvcc's arguments with include folders without their random names.

    Other arguments keep them: the value of a macro may be code, and is part of a unit's name.
    """
    hidden = list(words)
    for number, value in _include_folders(words):
        if _isolated_folder(value) in isolated.paths:
            head = words[number].removesuffix(value)
            hidden[number] = head + isolated.hide(value)
    return tuple(hidden)


def _include_folders(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the absolute include folders, each with the number of its word."""
    is_value = False
    for number, word in enumerate(words):
        joined = _JOINED.fullmatch(word)
        if is_value and word.startswith("/"):
            yield number, word
        elif joined is not None and not is_value:
            yield number, joined[2]
        is_value = word in _ALONE and not is_value


def _isolated_folder(path: str) -> str | None:
    """Return the part of a path up to the last random name; None if nothing is below one."""
    parts = path.split("/")
    # A path with `..` may lead out of the folder.
    if ".." in parts:
        return None
    for size in range(len(parts) - 1, 0, -1):
        if _RANDOM.fullmatch(parts[size - 1]):
            return "/".join(parts[:size])
    return None


def _placeholder(number: int) -> str:
    return f"<isolated {number}>"


def _with_paths(row: ManifestEntry, change: Callable[[str], str]) -> ManifestEntry:
    return row._replace(
        files=tuple((change(path), digest) for path, digest in row.files),
        folders=tuple(map(change, row.folders)),
        beside=tuple(map(change, row.beside)),
    )
