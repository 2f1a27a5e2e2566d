"""The programs and libraries that a step's result depends on, by their digests."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.cache.parts import Part
from splitter.system.run import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from splitter.cache.digests import FileDigests
    from splitter.system.run import Runner

GROUP = "programs"
_LIBRARY = "NVVMIR_LIBRARY_DIR"
_COMPILERS = ("cc1plus", "as")
_MISSING = re.compile(r'^ignoring nonexistent directory "(.*)"$', re.MULTILINE)
_SEARCH = re.compile(
    r'^#include "\.\.\." search starts here:\n(.*?)^End of search', re.DOTALL | re.MULTILINE
)
_SEARCHED = ("-I", "-isystem", "-iquote", "-idirafter", "-B", "--sysroot", "-isysroot", "-nostdinc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Asks programs about themselves, once in a process."""

    runner: Runner
    digests: FileDigests
    cwd: Path
    _answers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def parts(self, program: str, environment: Mapping[str, str]) -> tuple[Part, ...] | None:
        """The program, and what it starts or reads that no argument names; None if one is gone."""
        found = []
        for path in self.files(program, environment):
            digest = None if path is None else self.digests.of(str(path), group=GROUP)
            if path is None or digest is None:
                return None
            found.append(Part(f"program {path.name}", digest))
        return tuple(found)

    def files(self, program: str, environment: Mapping[str, str]) -> Iterator[Path | None]:
        """The same as paths; None for what isn't there."""
        yield self._found(program, environment)
        name = Path(program).name
        if name == "cicc":
            yield from sorted(Path(environment.get(_LIBRARY, "/")).glob("*.bc"))
        elif name not in {"ptxas", "cudafe++", "fatbinary"}:
            for part in _COMPILERS:
                answer = self._answer((program, f"-print-prog-name={part}"), environment)
                yield self._found(answer.strip() or part, environment)

    def includes(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
        """All folders that a host compiler looks for includes in, also those that aren't there."""
        words = tuple(_searching(argv))
        question = (argv[0], *words, "-x", "c++", "-E", "-v", "/dev/null")
        answer = self._answer(question, environment)
        search = _SEARCH.search(answer)
        listed = [] if search is None else [*map(str.strip, search[1].splitlines())]
        there = [line for line in listed if not line.startswith("#include")]
        return tuple(dict.fromkeys([*there, *_MISSING.findall(answer)]))

    def _found(self, program: str, environment: Mapping[str, str]) -> Path | None:
        path = shutil.which(program, path=environment.get("PATH", ""))
        return None if path is None else Path(path).resolve()

    def _answer(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
        if argv not in self._answers:
            english = {**environment, "LC_ALL": "C"}
            done = self.runner.run(Command(argv=argv, cwd=self.cwd, env=english))
            self._answers[argv] = "" if done.returncode else done.stdout + done.stderr
        return self._answers[argv]


def _searching(argv: tuple[str, ...]) -> Iterator[str]:
    words = iter(argv[1:])
    for word in words:
        if word in _SEARCHED and word != "-nostdinc":
            yield from (word, next(words, ""))
        elif word.startswith(_SEARCHED):
            yield word
