"""The cache of single steps, by the content of their inputs (preprocessor mode).

The scheduler asks it before each step: a hit writes the step's outputs and returns what the tool
printed. Outputs that contain the private folder's name are stored with a placeholder for it. While
one process computes a step, others with the same key wait for the result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import CacheEntry
from archsplit.cache.keys import KeyComponent, compute_key, key_differences
from archsplit.cache.manifest import ManifestEntry
from archsplit.compiler.assembly import reads_more
from archsplit.compiler.environment_key import hashed_environment
from archsplit.compiler.file_resolver import INCLUDE_PREFIX, PROGRAM_GROUP, FileResolver
from archsplit.compiler.include_scan import has_changed
from archsplit.compiler.preprocessed import (
    from_placeholder,
    strip_unused_line_markers,
    text_digest,
    to_placeholder,
)
from archsplit.compiler.step_key import step_key
from archsplit.compiler.tool_identity import record_versions, with_versions
from archsplit.errors import VerifyError
from archsplit.nvcc.depfile import parse_depfile
from archsplit.nvcc.steps import StepKind
from archsplit.system.fs import overwrite_file
from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from archsplit.cache.cache import Cache, CacheHit
    from archsplit.compiler.step_key import StepKey
    from archsplit.compiler.tool_identity import ToolIdentities
    from archsplit.scheduler.graph import Step

_TEXTS = {".s", ".c", ".cpp", ".ptx", ".gpu"}
_FILE = "file "


def include_spelling(path: str, includes: tuple[str, ...]) -> str:
    """Return a path relative to its include folder, if it lies in one."""
    for folder in includes:
        inside = f"{os.path.normpath(folder)}/"
        if path.startswith(inside):
            return INCLUDE_PREFIX + path.removeprefix(inside)
    return path


def read_outputs(step: Step, known: StepKey) -> dict[str, bytes] | None:
    """Return the outputs of a step; None if a binary contains the private folder's name.

    Debug information tells it, and may: in its place stands a mark of the same length.
    """
    if not _are_told_apart(step, known):
        return None
    files = {}
    for path in step.writes:
        content = path.read_bytes()
        if path.suffix in _TEXTS:
            content = to_placeholder(content, str(known.folder))
        elif known.mark:
            content = content.replace(str(known.private).encode(), known.mark)
        elif str(known.private).encode() in content:
            return None
        files[_name(path, known)] = content
    return files


def restore_outputs(
    entry: CacheEntry, step: Step, known: StepKey, sight: FileResolver | None
) -> bool:
    """Write a step's files; False if the entry hasn't all of them, or they can't be written."""
    if not _are_told_apart(step, known):
        return False
    made = {path: entry.files.get(_name(path, known)) for path in step.writes}
    try:
        for path, content in made.items():
            if content is None:
                return False
            overwrite_file(path, _named(path, content, known))
        if sight is not None and known.listing is not None:
            known.listing.write_text(_rule(entry, sight), errors="surrogateescape")
    except OSError:
        return False
    return True


def _named(path: Path, content: bytes, known: StepKey) -> bytes:
    if path.suffix in _TEXTS:
        return from_placeholder(content, str(known.folder))
    return content.replace(known.mark, str(known.private).encode()) if known.mark else content


def _rule(entry: CacheEntry, sight: FileResolver) -> str:
    """The rule for make that lists what a known result was made from."""
    names = (
        part.name.removeprefix(_FILE) for part in entry.components if part.name.startswith(_FILE)
    )
    places = (sight.place(name).replace(" ", r"\ ") for name in names)
    return f"listing: {' '.join(places)}\n"


def _are_told_apart(step: Step, known: StepKey) -> bool:
    return len({_name(path, known) for path in step.writes}) == len(step.writes)


def _name(path: Path, known: StepKey) -> str:
    return path.name if path.is_relative_to(known.private) else "<output>"


_LINES = "lines"
_ASSEMBLING = {StepKind.ASSEMBLE, StepKind.HOST_COMPILE}
_MOST_TOLD = 3
_FOR_LINK = {"-olto", "-lto", "--lto"}


class StepEvent(NamedTuple):
    """The result of a lookup: the step's name, its target or "", and a line."""

    step: str
    target: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepLookup:
    """The cache key of a step, and the inputs that it was computed from.

    Attributes:
        lines: the digest of the inputs with their line markers, which are part of the warnings.
        sight: how the host's compiler looks for includes; None where there are none.
    """

    known: StepKey
    parts: tuple[KeyComponent, ...]
    lines: str
    sight: FileResolver | None

    @property
    def key(self) -> str:
        return compute_key(self.parts)

    @property
    def subject(self) -> str:
        return f"{self.known.label} {self.known.inputs[0].name}"


class StepCache:
    """A cache of the results of steps, by the content of their inputs.

    Args:
        cache: where results are.
        tools: asks programs about themselves.
        private: the folder that all intermediate files are in.
        precise: whether results say which lines they come from.
        spread: whether steps may use more than one core, which changes bytes of what they make.

    Attributes:
        known: how many steps needn't run.
        saved: CPU seconds that needn't be spent.
        faults: where results are to be verified, the steps that made something else now.
        saved_by: the same of each step that was known.
        told: what came of each step that was looked for.
    """

    def __init__(
        self, cache: Cache, tools: ToolIdentities, *, private: Path, precise: bool, spread: bool
    ) -> None:
        self._cache = cache
        self._tools = tools
        self._private = private
        self._precise = precise
        self._spread = spread
        self.known = 0
        self.saved = 0.0
        self.saved_by: dict[str, float] = {}
        self.told: list[StepEvent] = []
        self._verifying = cache.settings.mode == "verify"
        self._began = cache.digests.began
        self._asked: dict[str, _StepLookup] = {}
        self._expected: dict[str, CacheEntry] = {}
        self.faults: list[str] = []

    def restore(self, step: Step) -> CompletedProcess | None:
        """Restore the outputs of a step; wait while another process computes the same step."""
        asked = self._ask(step)
        if asked is None:
            return None
        found = self._find(asked)
        if found is None and not self._cache.leases.acquire(asked.key):
            self._cache.leases.wait(asked.key)
            found = self._find(asked)
        if found is not None and self._verifying:
            self._expected[step.name] = found.entry
            found = None
        if found is None or not restore_outputs(found.entry, step, asked.known, asked.sight):
            self._asked[step.name] = asked
            return None
        seconds = found.entry.cpu_seconds
        self.known += 1
        self.saved += seconds
        self.saved_by[step.name] = seconds
        self._tell(step, asked, found.tier, seconds)
        return CompletedProcess(
            returncode=0, stdout=found.entry.stdout, stderr=found.entry.stderr, seconds=0.0
        )

    def look(self, step: Step) -> CacheHit | None:
        """Return the cached result of a step; restore nothing."""
        asked = self._ask(step)
        return None if asked is None else self._find(asked)

    def store(self, step: Step, done: CompletedProcess) -> None:
        """Store the outputs of a step."""
        asked = self._asked.pop(step.name, None)
        if asked is None:
            return
        self._tell(step, asked, None, done.cpu_seconds)
        try:
            self._store(step, asked, done)
        finally:
            self._cache.leases.release(asked.key)

    def check(self) -> None:
        """Refuse results that differ from the cached ones.

        Raises:
            VerifyError: names the steps.
        """
        if self.faults:
            raise VerifyError(
                "these steps have made something else than what the cache knows:\n  "
                + "\n  ".join(self.faults),
                hint="a tool may have been replaced without a change of its bytes; or report it",
            )

    def _tell(self, step: Step, asked: _StepLookup, tier: str | None, seconds: float) -> None:
        self._cache.count_lookup(asked.known.kind.value, asked.known.target, tier, seconds)
        where = f"run{self._why(step, asked)}" if tier is None else f"found ({tier})"
        line = f"{asked.known.label}: {where}, {seconds:.2f} s"
        self.told.append(StepEvent(step.name, asked.known.target, line))

    def _why(self, step: Step, asked: _StepLookup) -> str:
        """Return the differences from the nearest earlier step of the kind, in brackets."""
        earlier = self._cache.miss_log.previous_components(asked.subject)
        if not earlier:
            return ""
        programs = self._tools.files(step.command.argv, step.command.env)
        record_versions(self._cache, self._tools, map(str, filter(None, programs)))
        now = with_versions(self._cache, asked.parts)
        before = [
            with_versions(self._cache, (KeyComponent(*part) for part in parts)) for parts in earlier
        ]
        found = [key_differences(parts, now) for parts in before]
        return f" ({'; '.join(min(found, key=len)[:_MOST_TOLD])})" if any(found) else ""

    def _ask(self, step: Step) -> _StepLookup | None:
        found = step_key(step, self._private, precise=self._precise)
        if found is None:
            return None
        environment = step.command.env
        programs = self._tools.parts(step.command.argv, environment)
        if programs is None:
            return None
        try:
            texts = {path: path.read_bytes() for path in found.inputs}
        except OSError:
            return None
        if found.kind in _ASSEMBLING and any(
            reads_more(text, f"{self._private}/") for text in texts.values()
        ):
            return None
        bare = found.kind is StepKind.CICC and not self._precise
        # What is left to the link keeps lines for what the linker may have to say of them.
        bare = bare and _FOR_LINK.isdisjoint(step.command.argv)
        inputs = [(path, to_placeholder(text, str(found.folder))) for path, text in texts.items()]
        lines = text_digest(b"".join(text for _, text in inputs))
        parts = (
            KeyComponent("step", found.kind.value),
            KeyComponent("salt", self._cache.settings.salt),
            KeyComponent("spread", "yes" if self._spread and step.parallel_flags else "no"),
            *programs,
            # Every step that is known reads preprocessed text.
            *hashed_environment(environment, dated=False),
            *found.flags,
            *([KeyComponent("folder", str(step.command.cwd))] if self._precise else []),
            *(
                [KeyComponent("length of the folder's name", str(len(found.mark)))]
                if found.mark
                else []
            ),
            *(
                KeyComponent(
                    f"input {path.name}",
                    text_digest(strip_unused_line_markers(text) if bare else text),
                )
                for path, text in inputs
            ),
        )
        sight = self._sight(step) if found.listing is not None else None
        return _StepLookup(known=found, parts=parts, lines=lines, sight=sight)

    def _sight(self, step: Step) -> FileResolver:
        return FileResolver(
            cwd=step.command.cwd,
            environment=step.command.env,
            includes=self._tools.includes(step.command.argv, step.command.env),
            digests=self._cache.digests,
            group=PROGRAM_GROUP,
        )

    def _find(self, asked: _StepLookup) -> CacheHit | None:
        if asked.sight is None:
            found = self._cache.find(asked.parts)
        else:
            rows = (
                row for row in self._cache.manifest_entries(asked.key) if asked.sight.is_same(row)
            )
            row = next(rows, None)
            found = None if row is None else self._cache.find(row.components(asked.key))
        if found is None or not (found.entry.stdout or found.entry.stderr):
            return found
        # Warnings name lines: those of this text must be the same.
        return found if found.entry.notes.get(_LINES) == asked.lines else None

    def _store(self, step: Step, asked: _StepLookup, done: CompletedProcess) -> None:
        files = read_outputs(step, asked.known)
        expected = self._expected.pop(step.name, None)
        if expected is not None and files is not None and files != expected.files:
            self.faults.append(f"{step.name} ({asked.key})")
        said = done.stdout + done.stderr
        if files is None or str(self._private) in said or self._is_another(step):
            return
        row = self._row(asked)
        if asked.sight is not None and row is None:
            return
        entry = CacheEntry(
            components=asked.parts if row is None else row.components(asked.key),
            files=files,
            notes={_LINES: asked.lines},
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=done.seconds,
            cpu_seconds=done.cpu_seconds,
            memory=done.peak_memory,
        )
        if not self._cache.store(entry):
            return
        self._cache.miss_log.add_components(asked.subject, asked.parts)
        if row is not None:
            self._cache.add_manifest_entry(asked.key, row)

    def _is_another(self, step: Step) -> bool:
        """Return True if a program of the step may have changed since the lookup."""
        files = self._tools.files(step.command.argv, step.command.env)
        return any(path is None or has_changed(str(path), self._began) for path in files)

    def _row(self, asked: _StepLookup) -> ManifestEntry | None:
        """Return a manifest entry of the files that the host compiler has read."""
        sight, listing = asked.sight, asked.known.listing
        if sight is None or listing is None:
            return None
        try:
            rule = listing.read_text(errors="surrogateescape")
        except OSError:
            return None
        listed = [os.path.normpath(name) for name in parse_depfile(rule.partition(":")[2])]
        spelled = [
            include_spelling(name, sight.includes)
            for name in listed
            if not Path(name).is_relative_to(self._private)
        ]
        files = tuple((name, sight.digest(name) or "") for name in dict.fromkeys(spelled))
        if any(has_changed(sight.place(name), self._began) for name, _ in files):
            return None
        return ManifestEntry(files=files) if all(digest for _, digest in files) else None
