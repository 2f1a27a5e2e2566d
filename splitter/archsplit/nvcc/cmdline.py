"""nvcc's own command line, as far as a stand-in for nvcc must know it.

Source: "NVCC Command Options" in NVIDIA's nvcc documentation. Long options may begin with one dash
or two; a value stands behind an equals sign or is the next word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__pure__ = True

FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables whose flags nvcc adds to its command line."""

_ONLY_NVCC = frozenset(
    {
        *("h", "help", "V", "version", "v", "verbose", "dryrun"),
        *("arch-ls", "list-gpu-arch", "code-ls", "list-gpu-code", "clean", "clean-targets"),
    }
)
"""Questions that nvcc answers itself, and ways of asking what it would do."""

_NOT_FOLLOWED = {
    "run": "it starts the program that it made",
    "time": "it writes a table of its own commands",
    "fdevice-time-trace": "it writes a trace of its own",
    "fdts": "it writes a trace of its own",
    "input-drive-prefix": "it rewrites paths",
    "dependency-drive-prefix": "it rewrites paths",
}
_THREADS = re.compile(r"threads|t(\d*)")
_BESIDE = {"objtemp", "objdir-as-tempdir"}
_DROPPED = re.compile(r"objtemp|objdir-as-tempdir|jobserver|threads|t\d*")
"""How nvcc would place its files and start its tools: that is our part."""

_KEEPING = {"keep", "save-temps"}
_KEEP_FOLDER = "keep-dir"
_FILES = {"optf", "options-file"}
_WITH_VALUE = {"o", "output-file", "D", "define-macro", "include", "pre-include", "MF", "MT", "MQ"}
_WITH_VALUE |= {"dependency-output", "dependency-target-name", *_FILES, _KEEP_FOLDER}
_WITH_VALUE |= {"odir", "output-directory", "t", "threads"}
_PASSED_ON = re.compile(r"X\w+|\w+-options")
"""Options whose value is the next word; of the others the value can't look like one of ours."""

_PARTS = {
    "o": "output",
    "output-file": "output",
    "odir": "folder",
    "output-directory": "folder",
    "MT": "target",
    "dependency-target-name": "target",
    "MP": "phony",
    "generate-dependency-targets": "phony",
    "MM": "user",
    "generate-nonsystem-dependencies": "user",
    "MMD": "user",
    "generate-nonsystem-dependencies-with-compile": "user",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """How the rules for make shall look.

    Attributes:
        target: what ``-MT`` says that the rule is for, or None.
        output: what ``-o`` says, or None.
        folder: what ``-odir`` says, or None.
        phony: whether each header gets a rule of its own, without commands.
        user_only: whether system headers are left out.
    """

    target: str | None
    output: str | None
    folder: str | None
    phony: bool
    user_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccArguments:
    """A command line for nvcc, taken apart.

    Attributes:
        asked: what to ask nvcc about: all but what says where intermediate files go.
        keep: the folder, as spelled, where intermediate files shall stay, or None.
        rules: how rules for make look.
        has_files: whether some options are in files, which nvcc refuses or only nvcc reads.
        threaded: whether nvcc would run its steps in threads.
    """

    asked: tuple[str, ...]
    keep: str | None
    rules: RuleOptions
    has_files: bool
    threaded: bool

    @property
    def kept_as(self) -> str:
        """What the name of a kept file begins with in nvcc's own texts."""
        return "" if self.keep in {None, "."} else f"{self.keep}/"


def only_nvcc(argv: Sequence[str]) -> bool:
    """Whether the command line asks something of nvcc itself, so that there's nothing to plan."""
    return not argv or any(option.name in _ONLY_NVCC for option in _options(argv))


def unsupported_reason(argv: Sequence[str]) -> str | None:
    """Why the command line must be left to nvcc, or None."""
    if "-" in argv:
        return "it reads standard input"
    names = {option.name for option in _options(argv)}
    if names & _KEEPING and names & _BESIDE:
        return "it keeps intermediate files beside its output"
    return next((reason for name, reason in _NOT_FOLLOWED.items() if name in names), None)


def parse_arguments(argv: Sequence[str]) -> NvccArguments:
    """Tell what is for nvcc from what is for whoever runs its steps."""
    asked: list[str] = []
    seen: dict[str, str] = {}
    for option in _options(argv):
        seen[option.name] = option.value
        if not (_DROPPED.fullmatch(option.name) or option.name in {*_KEEPING, _KEEP_FOLDER}):
            asked += option.words
    parts = {part: seen[name] for name, part in _PARTS.items() if name in seen}
    return NvccArguments(
        asked=tuple(asked),
        keep=seen.get(_KEEP_FOLDER, ".") if _KEEPING & seen.keys() else None,
        rules=RuleOptions(
            target=parts.get("target"),
            output=parts.get("output"),
            folder=parts.get("folder"),
            phony="phony" in parts,
            user_only="user" in parts,
        ),
        has_files=bool(_FILES & seen.keys()),
        threaded=any(_threads(name, value) != 1 for name, value in seen.items()),
    )


def with_variables(
    argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the words with those that variables add, and the environment without the variables.

    Nothing changes where a variable has quotes or backslashes: nvcc alone reads them.
    """
    before, after = (environment.get(name, "") for name in FLAG_VARIABLES)
    if any(character in before + after for character in "\"\\'"):
        return tuple(argv), environment
    others = {name: text for name, text in environment.items() if name not in FLAG_VARIABLES}
    return (*before.split(), *argv, *after.split()), others


def with_options_read(argv: Sequence[str], read: Callable[[str], str]) -> Iterator[str]:
    """Give the words of a command line, with those in files of options in their place.

    Args:
        read: gives a file's text by its name.

    Raises:
        ValueError: a file has a quote without its end.
    """
    for option in _options(argv):
        if option.name not in _FILES:
            yield from option.words
            continue
        for name in option.value.split(","):
            yield from with_options_read(tuple(_file_words(read(name))), read)


def _file_words(text: str) -> Iterator[str]:
    """Give the words of a file of options, as nvcc takes them.

    Found by asking CUDA 13.0: double quotes and backslashes quote, single quotes don't. A quote
    behind a backslash is taken away, too, if no other backslash is left before it.
    """
    word, quoted = None, False
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            word = word or ""
            word += "" if following == '"' and not word.endswith("\\") else following
        elif character == '"':
            word, quoted = word or "", not quoted
        elif quoted or not character.isspace():
            word = (word or "") + character
        elif word is not None:
            yield word
            word = None
    if quoted:
        raise ValueError("a quote without its end")
    if word is not None:
        yield word


def _threads(name: str, value: str) -> int:
    found = _THREADS.fullmatch(name)
    number = value or (found[1] if found is not None else "")
    return int(number) if found is not None and number.isdigit() else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One option, or a word that is none (its name is empty then)."""

    name: str
    value: str
    words: tuple[str, ...]


def _options(argv: Sequence[str]) -> Iterator[_Option]:
    words = iter(argv)
    for word in words:
        dashless = word.lstrip("-") if word.startswith("-") else ""
        name, equals, value = dashless.partition("=")
        parts = [word]
        if not equals and (name in _WITH_VALUE or _PASSED_ON.fullmatch(name)):
            value = next(words, "")
            parts.append(value)
        yield _Option(name=name, value=value, words=tuple(parts))
