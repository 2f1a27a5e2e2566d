"""Recorded commands of a compilation, to run a part of them again; pure.

A recording holds the steps, the text files that they started with, and the keys of the cache's
entries. The private folder's name is a placeholder in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.cache.sealed import DamagedError, seal, unseal
from archsplit.compiler.environment_key import hashed_environment
from archsplit.compiler.step_key import step_key
from archsplit.scheduler.graph import Graph, Step
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.cache.cache import Cache

_PRIVATE = "\ue000the private folder\ue000"
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "NVVMIR_LIBRARY_DIR")
"""Variables that tools need to find their files. No others are recorded: some are secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Steps that can be run again.

    Attributes:
        subject: name of the compilation for users.
        steps: in the order of the plan.
        cached: names of the steps whose results the cache may have.
        cores: number of cores of each step, if it is known.
        texts: content of the files that existed before the steps.
        precise: see `archsplit.compiler.step_key.has_line_info`.
        spread: True if steps could use more than one core.
        wholes: keys of entries for the whole compilation, each with its files by role.
    """

    subject: str
    steps: tuple[Step, ...]
    cached: frozenset[str]
    cores: Mapping[str, int]
    texts: Mapping[Path, str]
    precise: bool
    spread: bool
    wholes: Mapping[str, Mapping[str, Path]]

    def called(self, step: str) -> str:
        """Return the label of a step's result; "" stands for all steps."""
        return f"{step or 'the whole'} of {self.subject}"

    def leading_to(self, name: str) -> Recording:
        """Return the recording with the step of this name and its dependencies only."""
        wanted = [at for at, step in enumerate(self.steps) if step.name == name]
        steps = tuple(self.steps[at] for at in needed_steps(Graph(steps=self.steps), wanted))
        return replace(self, steps=steps)

    def outputs(self, private: Path) -> tuple[Path, ...]:
        """Return the files that steps write outside of the private folder."""
        written = (path for step in self.steps for path in step.writes)
        return tuple(path for path in written if not path.is_relative_to(private))

    def written_to(self, places: Mapping[Path, Path]) -> Recording | None:
        """Return the recording with other outputs, or None if no argument names an output."""
        named = {
            step.command.cwd / _value(word) for step in self.steps for word in step.command.argv
        }
        # A step that writes by a fixed name would overwrite the user's file.
        if not named.issuperset(places):
            return None
        wholes = {
            key: {role: places.get(path, path) for role, path in files.items()}
            for key, files in self.wholes.items()
        }
        steps = tuple(_moved(step, places) for step in self.steps)
        return replace(self, steps=steps, wholes=wholes)


def needed_steps(graph: Graph, wanted: Iterable[int]) -> list[int]:
    """Return the positions of steps and of their dependencies, sorted."""
    found = set[int]()
    # Iterative: a recipe's graph may be deeper than Python's stack.
    left = list(wanted)
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += graph.dependencies[at]
    return sorted(found)


def encode_recording(done: Recording, *, private: Path) -> bytes:
    """Return a recording as bytes, with a placeholder for the private folder."""
    described = {
        "subject": done.subject,
        "steps": list(map(_step_row, done.steps)),
        "cached": sorted(done.cached),
        "cores": dict(done.cores),
        "texts": {str(path): text for path, text in done.texts.items()},
        "precise": done.precise,
        "spread": done.spread,
        "wholes": {
            key: {role: str(path) for role, path in files.items()}
            for key, files in done.wholes.items()
        },
    }
    # Another process runs the steps again in a private folder of its own.
    text = json.dumps(described).replace(_quoted(str(private)), _quoted(_PRIVATE))
    return seal(text.encode())


def decode_recording(blob: bytes, *, private: Path) -> Recording | None:
    """Return a recording for another private folder, or None if it is damaged."""
    try:
        text = unseal(blob).decode().replace(_quoted(_PRIVATE), _quoted(str(private)))
        row = json.loads(text)
        return Recording(
            subject=row["subject"],
            steps=tuple(_step(each, private) for each in row["steps"]),
            cached=frozenset(row["cached"]),
            cores=row["cores"],
            texts={Path(path): content for path, content in row["texts"].items()},
            precise=row["precise"],
            spread=row["spread"],
            wholes={
                key: {role: Path(path) for role, path in files.items()}
                for key, files in row["wholes"].items()
            },
        )
    except (DamagedError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]


def _value(word: str) -> str:
    return word.rpartition("=")[2]


def _moved(step: Step, places: Mapping[Path, Path]) -> Step:
    words = tuple(_renamed(word, step.command.cwd, places) for word in step.command.argv)
    return replace(
        step,
        command=replace(step.command, argv=words),
        reads=tuple(places.get(path, path) for path in step.reads),
        writes=tuple(places.get(path, path) for path in step.writes),
    )


def _renamed(word: str, cwd: Path, places: Mapping[Path, Path]) -> str:
    value = _value(word)
    place = places.get(cwd / value)
    return word if place is None else word.removesuffix(value) + str(place)


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "argv": step.command.argv,
        "cwd": str(step.command.cwd),
        "environment": dict(_kept(step.command.env)),
        "reads": list(map(str, step.reads)),
        "writes": list(map(str, step.writes)),
        "wide": step.parallel_flags,
    }


def _step(row: dict[str, Any], private: Path) -> Step:
    return Step(
        name=row["name"],
        command=Command(
            argv=tuple(row["argv"]),
            cwd=Path(row["cwd"]),
            env={**row["environment"], "TMPDIR": str(private)},
            undecodable="surrogateescape",
        ),
        reads=tuple(map(Path, row["reads"])),
        writes=tuple(map(Path, row["writes"])),
        parallel_flags=tuple(row["wide"]),
    )


def _kept(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for part in hashed_environment(environment):
        name = part.name.partition(" ")[2]
        yield name, environment[name]
    yield from ((name, environment[name]) for name in _NEEDED if name in environment)


def save_recording(
    cache: Cache,
    steps: Iterable[Step],
    *,
    subject: str,
    private: Path,
    before: Iterable[Path],
    precise: bool,
    spread: bool = False,
    cores: Mapping[str, int] | None = None,
    wholes: Mapping[str, Mapping[str, Path]] | None = None,
) -> None:
    """Store the recording of a compilation; skip one whose files can't be read any more.

    Args:
        subject: name for users; a later recording of the same folder and name replaces it.
        before: files in the private folder that existed before the steps.
        cores: number of cores of each step, if it is known.
        wholes: see `Recording.wholes`.
    """
    recorded = tuple(steps)
    if not cache.writable or not recorded:
        return
    try:
        done = Recording(
            subject=subject,
            steps=recorded,
            cached=frozenset(
                step.name
                for step in recorded
                if step_key(step, private, precise=precise) is not None
            ),
            cores=cores or {},
            texts={path: path.read_bytes().decode(errors="surrogateescape") for path in before},
            precise=precise,
            spread=spread,
            wholes=wholes or {},
        )
    except OSError:
        return
    folder = str(recorded[0].command.cwd)
    name = [folder, subject, *map(str, done.outputs(private))]
    cache.miss_log.write_recording(
        hashlib.sha256(json.dumps(name).encode()).hexdigest(),
        encode_recording(done, private=private),
    )
