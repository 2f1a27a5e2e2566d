"""The cache key of a whole command line, independent of the output's name; pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.keys import KeyComponent, compute_key
from archsplit.compiler.environment_key import has_extra_outputs, hashed_environment
from archsplit.compiler.isolated_folders import NO_FOLDERS, hide_include_folders
from archsplit.compiler.step_key import has_line_info
from archsplit.nvcc.cmdline import parse_arguments
from archsplit.nvcc.options import FLAG_VARIABLES, unsupported_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.compiler.isolated_folders import IsolatedFolders

__pure__ = True

_NAMES = {
    **dict.fromkeys(("o", "output-file"), "output"),
    **dict.fromkeys(("MF", "dependency-output"), "rules"),
    **dict.fromkeys(("MT", "MQ", "dependency-target-name"), "target"),
}
"""Options that only say what something is called."""
_FLAGS = re.compile(r"[\s,='\"]+")
_SOURCE = re.compile(r"^[^-].*\.(?:cu|cc|cxx|cpp|c|ptx|ii)$")
_ELSEWHERE = re.compile(r"^@|^native$|^-+(?:arch|gpu-architecture|code|gpu-code)=native$")
"""Words that stand for others: of a file, or of what GPU this machine has."""
_RELOCATABLE = re.compile(r"--?(?:rdc|relocatable-device-code|dc|device-c|dlto)\b")
OUTPUT, RULES = "<output>", "<rules>"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """A call of nvcc as a key.

    Attributes:
        parts: all that a result depends on beside files.
        cwd: where nvcc would run.
        named: files that the command line names, by what they are: `OUTPUT`, `RULES`.
        precise: see `archsplit.compiler.step_key.has_line_info`.
        isolated: folders whose random names are not in the parts.
    """

    parts: tuple[KeyComponent, ...]
    cwd: Path
    named: Mapping[str, Path]
    precise: bool
    isolated: IsolatedFolders = NO_FOLDERS

    @property
    def key(self) -> str:
        """The key of the request's manifest."""
        return compute_key(self.parts)

    @property
    def subject(self) -> str:
        """The names of the sources, by which earlier compilations are looked for."""
        words = [part.value for part in self.parts if part.name == "flag"]
        return " ".join(Path(word).name for word in words if _SOURCE.search(word))

    def role(self, path: Path) -> str:
        """Return the role of a file, which doesn't depend on the output's name."""
        for role, named in self.named.items():
            if path == named:
                return role
        output = self.named.get(OUTPUT)
        if output is not None and path == output.with_suffix(path.suffix):
            return f"{OUTPUT}{path.suffix}"
        return os.path.relpath(path, self.cwd)

    def path(self, role: str) -> Path:
        """The file that has a role here; the other way round."""
        for name, named in self.named.items():
            if role.startswith(name):
                suffix = role.removeprefix(name)
                return named.with_suffix(suffix) if suffix else named
        return Path(os.path.normpath(self.cwd / role))


def compile_request(
    asked: tuple[str, ...],
    *,
    nvcc: str,
    driver: tuple[KeyComponent, ...],
    cwd: Path,
    environment: Mapping[str, str],
    salt: str,
    version: str,
    isolated: IsolatedFolders = NO_FOLDERS,
) -> CompileRequest | None:
    """The request, or None where it can't be known what it reads or writes.

    Args:
        asked: nvcc's arguments, without those about intermediate files and jobs.
        nvcc: where nvcc really is: the toolkit around it is meant, too.
        driver: what is known of nvcc itself, see `splitter.reuse.tools.Tools.driver`.
        version: archsplit's own, which decides how steps are changed.
        isolated: folders with random names among the include folders.
    """
    added = list(split_flags(environment.get(name, "") for name in FLAG_VARIABLES))
    # Words of a file, and the GPU of the machine, are not in the key.
    if has_extra_outputs(environment) or any(map(_ELSEWHERE.search, [*asked, *added])):
        return None
    if not _is_plain(added):
        return None
    named: dict[str, Path] = {}
    words = []
    for name, value in _options(asked):
        # The same object under another name is the same result.
        if name in _NAMES:
            named[f"<{_NAMES[name]}>"] = cwd / value
        else:
            words += [f"-{name}", value] if name else [value]
    # The rule's target is written anew on each hit.
    named.pop("<target>", None)
    precise = has_line_info([*added, *split_flags(asked)])
    # The names of units with relocatable code are seen by others: see `unit_seed`.
    placed = precise or any(map(_RELOCATABLE.match, [*asked, *added]))
    place = [KeyComponent("folder", str(cwd))] if placed else []
    # Line numbers name headers, and so does what the linker is given to compile.
    if precise or any("lto" in word for word in [*asked, *added]):
        isolated = NO_FOLDERS
    if isolated.paths:
        place.append(KeyComponent("isolated folders", str(len(isolated.paths))))
    return CompileRequest(
        parts=(
            KeyComponent("archsplit", version),
            KeyComponent("salt", salt),
            KeyComponent("place of nvcc", nvcc),
            *driver,
            *place,
            *hashed_environment(environment, dated=False, driver=True),
            # Not what they are called, but that they are.
            KeyComponent("named", " ".join(sorted(named))),
            *(KeyComponent("flag", word) for word in hide_include_folders(words, isolated)),
        ),
        cwd=cwd,
        named=named,
        precise=precise,
        isolated=isolated,
    )


def split_flags(words: Iterable[str]) -> Iterator[str]:
    """The flags in words that may hold several, as ``-Xcompiler=-g,-O2``."""
    return (piece for word in words for piece in _FLAGS.split(word) if piece)


def _is_plain(words: Sequence[str]) -> bool:
    """Return True if flags of variables name no outputs."""
    apart = parse_arguments(words)
    return not (apart.keep or apart.has_options_files or unsupported_reason(words))


def _options(asked: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Names and values of what names files, and every other word as ("", word)."""
    words = iter(asked)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _NAMES:
            yield "", word
        else:
            yield name, value if equals else next(words, "")
