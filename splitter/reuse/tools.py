"""The programs and libraries that a step's result depends on, by their digests."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.cache.parts import Part
from splitter.nvcc.commands import values
from splitter.system.run import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from splitter.cache.digests import FileDigests
    from splitter.system.run import Runner

GROUP = "programs"
_LIBRARY = "NVVMIR_LIBRARY_DIR"
_COMPILERS = ("cc1plus", "as")
_ALONE = {"ptxas", "cudafe++", "fatbinary"}
_NATIVE = re.compile(r"-m\w+=native")
_RELEASE = re.compile(r", V([\d.]+)$", re.MULTILINE)
_EXPANDING = ("-###", "-S", "-x", "c++", "/dev/null", "-o", "/dev/null")
_MISSING = re.compile(r'^ignoring nonexistent directory "(.*)"$', re.MULTILINE)
_SEARCH = re.compile(
    r'^#include "\.\.\." search starts here:\n(.*?)^End of search', re.DOTALL | re.MULTILINE
)
_SEARCHED = ("-I", "-isystem", "-iquote", "-idirafter", "-B", "--sysroot", "-isysroot", "-nostdinc")
_PLACES = ("-B", "--sysroot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Asks programs about themselves, once in a process."""

    runner: Runner
    digests: FileDigests
    cwd: Path
    _answers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def parts(
        self, argv: tuple[str, ...], environment: Mapping[str, str]
    ) -> tuple[Part, ...] | None:
        """The program, and what it starts or reads that no argument names; None if one is gone."""
        found = []
        for path in self.files(argv, environment):
            digest = None if path is None else self.digests.of(str(path), group=GROUP)
            if path is None or digest is None:
                return None
            found.append(Part(f"program {path.name}", digest))
        question = native_question(argv)
        if question is not None:
            answer = self.answer(question, environment)
            if answer is None:
                return None
            found.append(Part(f"answer to {question}", answer))
        return tuple(found)

    def files(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[Path | None]:
        """The same as paths; None for what isn't there."""
        program = argv[0]
        yield self._found(program, environment)
        name = Path(program).name
        if name == "cicc":
            yield from sorted(Path(environment.get(_LIBRARY, "/")).glob("*.bc"))
        elif name == "nvlink":
            yield from _code_generators(argv)
        elif name not in _ALONE:
            own = tuple(_searching(argv, _PLACES))
            own_c = "c" in argv or any(word.endswith(".c") for word in argv[1:])
            for part in (*_COMPILERS, *(["cc1"] if own_c else [])):
                answer = self._answer((program, *own, f"-print-prog-name={part}"), environment)
                yield self._found(answer.strip() or part, environment)

    def answer(self, question: str, environment: Mapping[str, str]) -> str | None:
        """The digest of what a compiler says to a `native_question`; None if it says nothing."""
        said = self._answer((*shlex.split(question), *_EXPANDING), environment)
        return hashlib.sha256(said.encode()).hexdigest() if said else None

    def includes(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
        """All folders that a host compiler looks for includes in, also those that aren't there."""
        words = tuple(_searching(argv, _SEARCHED))
        question = (argv[0], *words, "-x", "c++", "-E", "-v", "/dev/null")
        answer = self._answer(question, environment)
        search = _SEARCH.search(answer)
        listed = [] if search is None else [*map(str.strip, search[1].splitlines())]
        there = [line for line in listed if not line.startswith("#include")]
        return tuple(dict.fromkeys([*there, *_MISSING.findall(answer)]))

    def version(self, program: str) -> str:
        """What a program says of its version; "" if it says nothing."""
        said = self._answer((program, "--version"), {})
        release = _RELEASE.search(said)
        return release[1] if release is not None else said.partition("\n")[0]

    def _found(self, program: str, environment: Mapping[str, str]) -> Path | None:
        path = shutil.which(program, path=environment.get("PATH", ""))
        return None if path is None else Path(path).resolve()

    def _answer(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
        if argv not in self._answers:
            english = {**environment, "LC_ALL": "C"}
            done = self.runner.run(Command(argv=argv, cwd=self.cwd, env=english))
            self._answers[argv] = "" if done.returncode else done.stdout + done.stderr
        return self._answers[argv]


def native_question(argv: tuple[str, ...]) -> str | None:
    """What to ask a compiler that shall compile for the machine it runs on; None for others."""
    words = [word for word in argv[1:] if _NATIVE.fullmatch(word)]
    return shlex.join([argv[0], *words]) if words else None


def _searching(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    words = iter(argv[1:])
    for word in words:
        if word in flags and word != "-nostdinc":
            yield from (word, next(words, ""))
        elif word.startswith(flags):
            yield word


def _code_generators(argv: tuple[str, ...]) -> Iterator[Path]:
    """What nvlink compiles intermediate code with."""
    for folder in values(argv, ("-nvvmpath", "--nvvmpath")):
        yield from sorted(Path(folder).glob("lib*/lib*.so*"))
        yield from sorted(Path(folder).glob("libdevice/*.bc"))
