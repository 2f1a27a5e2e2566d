"""Folders whose names are not in keys and results: random names, and ``base-dir``; pure.

Some include folders have random names. pip, build and uv install the requirements of a build into a
new folder each time, and the headers of pybind11 or NumPy are found there by another path each
time. scikit-build-core and CMake do the same with headers that a build has generated. Another
checkout of a project is below another folder, which the user names by ``base-dir``.

The words of a command line, names of files and messages have ``<isolated 1>`` or ``<base 1>`` in
place of such a folder, and there is a way back. The files below it count by their content, as all
others do. GCC itself gets ``-ffile-prefix-map`` for a base, so that ``__FILE__`` and debug
information are relative to it, but line markers, depfiles and messages keep the real names. In
preprocessed text, the wrapper itself maps the file names of assertions: CUDA's front end answers
``__builtin_FILE``, which glibc's ``assert`` uses.

A result has such a key only if it can't depend on the folder's name:

- the code doesn't ask for the name of a file in a way that the map doesn't reach
  (``__builtin_FILE``, and for random names ``__FILE__`` and ``assert`` as well);
- no output names the folder, and no source includes a file by its absolute name;
- no line numbers of device code and no intermediate code for a link were asked for;
- no include folder below it is a link: compilers leave out a folder that they have twice.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from archsplit.nvcc.preprocessed_text import (
    raw_string_lines,
    strip_unused_line_markers,
    uses_file,
    uses_location,
    without_markers,
)
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from archsplit.cache.entry import ManifestRow
    from archsplit.nvcc.cmdline import Option

__pure__ = True

_RANDOM = lazy_pattern(
    # pip's and build's environments, pip's unpacked sdists, Python's `tempfile`.
    r"(?:pip-build-env-|pip-install-|pip-wheel-|pip-req-build-|build-env-|tmp)[a-z0-9_]{8}"
    # The sdist inside of pip's folder, and uv's environments.
    r"|[\w.-]+_[0-9a-f]{32}|\.tmp[A-Za-z0-9]{6}"
)
_INCLUDES = {"I", "isystem", "include-path", "system-include"}
_FORCED = {"include", "pre-include"}
_JOINED = lazy_pattern(r"-I(/.*)", re.DOTALL)
_HOST_FLAGS = {"Xcompiler", "compiler-options"}
_SOURCE_NAME = "--orig_src_file_name"
_HOST_FOLDER = r"(^|,)(-I|-isystem,|-iquote,|-f(?:file|macro|debug)-prefix-map=)"
"""Flags whose folder changes only where files are found, and their names."""
_PLACEHOLDER = "\0archsplit:base %d\0"
_MARKER_START = lazy_pattern(rb'\n# \d+ "\Z')
_FIRST_MARKER = lazy_pattern(rb'# \d+ "')
_IN_NAME = lazy_pattern(rb"[\w.-]")
_CONSTRUCTOR = b"_GLOBAL__"
_MOST_MARKER = 24
"""Bytes of a line marker before its file."""
_NOT_IN_SYMBOLS = lazy_pattern(rb"[^A-Za-z0-9.$]")
_INCLUDE = lazy_pattern(
    rb"(?:#|%:|\?\?=)(?:[ \t]|/\*.*?\*/)*(?:include(?:_next)?|import)\b(?:[ \t]|/\*.*?\*/)*([^\s])"
)


class PrefixMap(NamedTuple):
    """Folders with names that don't count.

    Attributes:
        isolated: folders with random names, as of pip's build isolation; absolute, without a slash
            at the end, in the order of the command line; each ends with its random name.
        bases: the folders of ``base-dir``, absolute.
    """

    isolated: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()

    @property
    def gcc_flags(self) -> tuple[str, ...]:
        """Return the flags by which GCC leaves out the bases; the last one that fits counts."""
        return tuple(
            f"-ffile-prefix-map={old}={new}"
            for base in sorted(self.bases, key=len)
            for old, new in ((base, "."), (f"{base}/", ""))
        )

    def gcc_name(self, name: bytes) -> bytes:
        """Return the name of a file as GCC maps it by `gcc_flags`."""
        for base in sorted(map(os.fsencode, self.bases), key=len, reverse=True):
            if name.startswith(base + b"/"):
                return name.removeprefix(base + b"/")
        return name

    def map_path(self, path: str) -> str:
        """Return a path below one of the folders without the folder's name; others unchanged."""
        for name, folder in _placeholders(self):
            if path.startswith(f"{folder}/") or (path == folder and folder in self.bases):
                return f"{name}{path.removeprefix(folder)}"
        return path

    def unmap_path(self, path: str) -> str:
        """Return a mapped path as it is here."""
        for name, folder in _placeholders(self):
            if path.startswith(f"{name}/") or path == name:
                return f"{folder}{path.removeprefix(name)}"
        return path

    def map_text(self, text: bytes) -> bytes | None:
        """Return a text without the folders' names; None if it has them beside paths."""
        mapped = text
        for name, folder in _placeholders(self):
            named = rb"(?<![\w./-])%s(?=/)" % re.escape(os.fsencode(folder))
            mapped = re.sub(named, name.encode(), mapped)
        is_same = self.unmap_text(mapped) == text
        return mapped if is_same and not self.has_folder(mapped) else None

    def unmap_text(self, text: bytes) -> bytes:
        """Return a mapped text as it is here."""
        for name, folder in _placeholders(self):
            text = text.replace(name.encode(), os.fsencode(folder))
        return text

    def map_message(self, text: str) -> str | None:
        """Return the output of a tool as in `map_text`."""
        mapped = self.map_text(text.encode(errors="surrogateescape"))
        return None if mapped is None else mapped.decode(errors="surrogateescape")

    def unmap_message(self, text: str) -> str:
        """Return the mapped output of a tool as it is here."""
        encoded = text.encode(errors="surrogateescape")
        return self.unmap_text(encoded).decode(errors="surrogateescape")

    def map_markers(self, text: bytes) -> bytes | None:
        """Return a text whose line markers don't name the bases; None if its code may do it."""
        # What looks like a line marker in a raw string is what the code prints.
        named = [base for base in map(os.fsencode, self.bases) if base in text]
        raw = raw_string_lines(text) if named else []
        if any(base in text[start:end] for base in named for start, end in raw):
            return None
        mapped = text
        for placeholder, base in self._marker_placeholders():
            # Plain bytes are found ten times as fast as a pattern, and the text has megabytes.
            pieces = mapped.split(base)
            for at in range(1, len(pieces)):
                before, after = pieces[at - 1], pieces[at]
                is_first = at == 1 and _FIRST_MARKER.fullmatch(before) is not None
                is_marker = is_first or _MARKER_START.search(before[-_MOST_MARKER:])
                if is_marker and after.startswith((b"/", b'"')):
                    pieces[at] = placeholder + after
                elif not _IN_NAME.match(after):
                    return None
                else:
                    pieces[at] = base + after
            mapped = b"".join(pieces)
        if self._has_symbol(mapped):
            return None
        # The map doesn't reach what CUDA's own front end answers.
        is_shown = (
            mapped is not text
            and uses_file(text)
            and self.has_base(strip_unused_line_markers(text))
        )
        return None if is_shown else mapped

    def unmap_markers(self, text: bytes) -> bytes:
        """Return a text of `map_markers` as it is here."""
        for placeholder, base in self._marker_placeholders():
            text = text.replace(placeholder, base)
        return text

    def map_row(self, row: ManifestRow) -> ManifestRow:
        """Return a row of a manifest without the folders' names."""
        return _with_paths(row, self.map_path)

    def unmap_row(self, row: ManifestRow) -> ManifestRow:
        """Return a mapped row of a manifest as it is here."""
        if self == NO_PREFIXES:
            return row
        here = _with_paths(row, self.unmap_path)
        # Sorted by the names that the files had when the row was made.
        return here._replace(shadowing=tuple(sorted(here.shadowing)))

    def has_folder(self, text: bytes) -> bool:
        """Return True if a text has a random name or the path of a base."""
        names = (os.fsencode(path.rpartition("/")[2]) for path in self.isolated)
        return any(name in text for name in names) or self.has_base(text)

    def has_base(self, text: bytes) -> bool:
        """Return True if a text has the path of a base."""
        for base in map(os.fsencode, self.bases):
            # The pattern is slow, and nearly no text has the part.
            if base in text and re.search(rb"%s(?![\w.-])" % re.escape(base), text):
                return True
        return self._has_symbol(text)

    def _has_symbol(self, text: bytes) -> bool:
        # GCC names constructors of a file without symbols by its path.
        names = (_NOT_IN_SYMBOLS.sub(b"_", os.fsencode(base)) for base in self.bases)
        return (
            bool(self.bases)
            and _CONSTRUCTOR in text
            and any(
                re.search(rb"%s[\w.$]*%s" % (_CONSTRUCTOR, re.escape(name)), text) for name in names
            )
        )

    def has_folder_in_code(self, text: bytes) -> bool:
        """Return True if a preprocessed text may name a random folder beside its line markers."""
        new = PrefixMap(self.isolated)
        return bool(new.isolated) and (uses_location(text) or new.has_folder(without_markers(text)))

    def may_include_by_base(self, text: bytes) -> bool:
        """Return True if a source may include a file by an absolute name."""
        if not self.bases:
            return False
        # A macro may have any name in it.
        has_macro = any(found[1] not in b'"<' for found in _INCLUDE.finditer(text))
        return has_macro or self.has_base(text)

    def map_argument(self, word: str, before: str = "") -> str:
        """Return a tool's argument without the names of bases, if that can't change a result.

        Args:
            before: the argument before it.
        """
        for name, folder in _placeholders(self):
            if folder in self.bases and before == _SOURCE_NAME:
                word = self.map_path(word)
            elif folder in self.bases and "-" in word[:1]:
                flag = rf"{_HOST_FOLDER}{re.escape(folder)}(?=[/=,]|$)"
                word = re.sub(flag, rf"\1\2{name}", word)
        return word

    def _marker_placeholders(self) -> list[tuple[bytes, bytes]]:
        """Return what stands in line markers for the bases, and the bases."""
        places = [
            ((_PLACEHOLDER % number).encode(), os.fsencode(base))
            for number, base in enumerate(self.bases, 1)
        ]
        return sorted(places, key=lambda each: -len(each[1]))


@functools.cache
def _placeholders(prefixes: PrefixMap) -> tuple[tuple[str, str], ...]:
    """Return the placeholders and the folders."""
    names = [(f"<isolated {number}>", path) for number, path in enumerate(prefixes.isolated, 1)]
    names += [(f"<base {number}>", path) for number, path in enumerate(prefixes.bases, 1)]
    # The longest first: one folder may be below another one.
    return tuple(sorted(names, key=lambda each: -len(each[1])))


NO_PREFIXES = PrefixMap()


def find_prefix_map(
    options: Sequence[Option],
    bases: Sequence[str] = (),
    *,
    cwd: str = "/",
    real_path: Callable[[str], str] = os.path.realpath,
) -> PrefixMap:
    """Return the folders with random names that include folders are in, and the bases.

    Args:
        options: see `CommandLine.dryrun_options`.
        bases: the folders of ``base-dir``.
        cwd: the folder that relative paths are relative to.
        real_path: where a path leads to, through all links.
    """
    found: dict[str, None] = {}
    linked: set[str] = set()
    for value in include_folders(options):
        isolated = _isolated_folder(value)
        if isolated is not None:
            found[isolated] = None
        below = [base for base in bases if f"{value}/".startswith(f"{base}/")]
        for folder in filter(None, [isolated, *below]):
            rest = os.path.normpath(value).removeprefix(folder)
            if real_path(value) != real_path(folder) + rest:
                linked.add(folder)
    # The module id of a unit depends on the path from the base.
    files = (words[0] for name, _, words in options if not name)
    places = (os.path.normpath(os.path.join(cwd, name)) for name in files)  # noqa: PTH118
    inside = tuple(f"{base}/" for base in bases)
    is_mapped = linked.isdisjoint(bases) and all(place.startswith(inside) for place in places)
    return PrefixMap(
        tuple(path for path in found if path not in linked), tuple(bases) if is_mapped else ()
    )


def map_options(options: Iterable[Option], prefixes: PrefixMap) -> tuple[str, ...]:
    """Return the words of options without the names of folders.

    Macros keep them, because a value may be code. Only include folders lose random names: a
    module id depends on the path of its source.
    """
    found: list[str] = []
    for option in options:
        words, value = option[2], _include_folder(option)
        if value and _isolated_folder(value) in prefixes.isolated:
            words = (*words[:-1], words[-1].removesuffix(value) + prefixes.map_path(value))
        elif prefixes.bases:
            words = (*words[:-1], _without_base(words[-1], option, prefixes))
        found += words
    return tuple(found)


def _without_base(word: str, option: Option, prefixes: PrefixMap) -> str:
    name, value, _ = option
    if name in _HOST_FLAGS:
        return word.removesuffix(value) + prefixes.map_argument(value)
    path = word if not name else value if name in _FORCED else _include_folder(option)
    return word.removesuffix(path) + prefixes.map_path(path)


def include_folders(options: Iterable[Option]) -> list[str]:
    """Return the absolute include folders of a command line."""
    return list(filter(None, map(_include_folder, options)))


def _include_folder(option: Option) -> str:
    """Return the absolute include folder of an option, or ""."""
    name, value, words = option
    joined = _JOINED.fullmatch(words[0])
    folder = value if name in _INCLUDES else "" if joined is None else joined[1]
    return folder if folder.startswith("/") else ""


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


def _with_paths(row: ManifestRow, change: Callable[[str], str]) -> ManifestRow:
    return row._replace(
        files=tuple((change(path), digest) for path, digest in row.files),
        folders=tuple(map(change, row.folders)),
        shadowing=tuple(map(change, row.shadowing)),
    )
