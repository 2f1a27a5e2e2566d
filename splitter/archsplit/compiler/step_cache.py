"""The cache of single steps, by the content of their inputs (preprocessor mode).

The scheduler looks up each step: a hit writes the step's outputs and returns what the tool printed.
Outputs with the name of the private folder (of intermediate files) are stored with a placeholder.
While one process computes a step, others with the same key wait for the result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import (
    CacheEntry,
    KeyComponent,
    ManifestRow,
    compute_key,
    key_differences,
)
from archsplit.cache.usage import has_changed
from archsplit.compiler.file_resolver import INCLUDE_PREFIX, FileResolver, reads_files
from archsplit.compiler.keys import folder_component, line_info_flag, step_key
from archsplit.compiler.machine_facts import PROGRAM_GROUP, variable_components
from archsplit.compiler.prefix_map import NO_PREFIXES, PrefixMap
from archsplit.compiler.text_parts import TextParts
from archsplit.errors import VerifyError
from archsplit.nvcc.depfile import parse_depfile
from archsplit.nvcc.dryrun import StepKind, is_host_compiler
from archsplit.nvcc.preprocessed_text import (
    from_placeholder,
    strip_unused_line_markers,
    text_digest,
    to_placeholder,
    without_working_folder,
)
from archsplit.nvcc.variables import debug_folder
from archsplit.system.outputs import overwrite_file
from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from archsplit.cache.cache import Cache, CacheHit
    from archsplit.compiler.include_scan import TextScans
    from archsplit.compiler.keys import StepKey
    from archsplit.compiler.tool_identity import ToolIdentities
    from archsplit.scheduler.graph import Step

_TEXTS = {".s", ".c", ".cpp", ".ptx", ".gpu"}
_FILE = "file "
"""Prefix of components for input files, see `ManifestRow.components`."""
_LINES = "lines"
"""Note of an entry with `_StepLookup.lines`."""
_MAX_DIFFERENCES = 3
_LTO_FLAGS = {"-olto", "-lto", "--lto"}


def include_spelling(path: str, includes: tuple[str, ...]) -> str:
    """Return a path in an include folder as relative to it, with `INCLUDE_PREFIX`."""
    for folder in includes:
        inside = f"{os.path.normpath(folder)}/"
        if path.startswith(inside):
            return INCLUDE_PREFIX + path.removeprefix(inside)
    return path


def read_outputs(
    step: Step, key: StepKey, prefixes: PrefixMap = NO_PREFIXES
) -> dict[str, bytes] | None:
    """Return the outputs of a step; None if one contains the name of a folder.

    Debug information may have the private folder's name, which gets a placeholder of the same
    length. Line markers of texts get placeholders for the folders of ``prefixes``.
    """
    # An entry has the names of outputs without folders.
    if not _has_distinct_names(step, key):
        return None
    files = {}
    for path in step.writes:
        content = path.read_bytes()
        if path.suffix in _TEXTS:
            text = prefixes.map_markers(to_placeholder(content, str(key.folder)))
            if text is None:
                return None
            content = text
        elif prefixes.has_folder(content):
            return None
        # Offsets in a binary stay the same only with a placeholder of the same length.
        elif key.placeholder:
            content = content.replace(str(key.private).encode(), key.placeholder)
        elif str(key.private).encode() in content:
            return None
        files[_output_name(path, key)] = content
    return files


def restore_outputs(
    entry: CacheEntry,
    step: Step,
    key: StepKey,
    resolver: FileResolver | None,
    prefixes: PrefixMap = NO_PREFIXES,
) -> bool:
    """Write a step's outputs; return False if one is missing in the entry, or can't be written."""
    if not _has_distinct_names(step, key):
        return False
    made = {path: entry.files.get(_output_name(path, key)) for path in step.writes}
    try:
        for path, content in made.items():
            if content is None:
                return False
            overwrite_file(path, _unmapped_output(path, content, key, prefixes))
        if resolver is not None and key.host_depfile is not None:
            key.host_depfile.write_text(_rule(entry, resolver, prefixes), errors="surrogateescape")
    except OSError:
        return False
    return True


def _unmapped_output(path: Path, content: bytes, key: StepKey, prefixes: PrefixMap) -> bytes:
    if path.suffix in _TEXTS:
        return prefixes.unmap_markers(from_placeholder(content, str(key.folder)))
    return (
        content.replace(key.placeholder, str(key.private).encode()) if key.placeholder else content
    )


def _rule(entry: CacheEntry, resolver: FileResolver, prefixes: PrefixMap) -> str:
    """Return a depfile's rule with the inputs of a cached result."""
    names = (
        part.name.removeprefix(_FILE) for part in entry.components if part.name.startswith(_FILE)
    )
    places = (resolver.resolve(prefixes.unmap_path(name)).replace(" ", r"\ ") for name in names)
    return f"depfile: {' '.join(places)}\n"


def _has_distinct_names(step: Step, key: StepKey) -> bool:
    return len({_output_name(path, key) for path in step.writes}) == len(step.writes)


def _output_name(path: Path, key: StepKey) -> str:
    is_private = path.is_relative_to(key.private) and not key.ignores_names
    return path.name if is_private else "<output>"


def _mapped_inputs(
    texts: Mapping[Path, bytes], key: StepKey, prefixes: PrefixMap, *, in_folder: bool
) -> dict[Path, bytes]:
    """Return the inputs without folders' names; none whose code may have a base's name."""
    inputs = [(path, to_placeholder(text, str(key.folder))) for path, text in texts.items()]
    # With nvcc's `-g`, preprocessed text has the working folder also for steps without `-g`.
    if not in_folder:
        inputs = [(path, without_working_folder(text)) for path, text in inputs]
    return {path: text for path, raw in inputs if (text := prefixes.map_markers(raw)) is not None}


class StepEvent(NamedTuple):
    """Result of a lookup: the step's name, its target or "", and a line for the user."""

    step: str
    target: str
    line: str


class _StepLookup(NamedTuple):
    """The cache key of a step, and the inputs that it was computed from.

    Attributes:
        in_folder: True if results may have the working folder, so that the inputs keep it.
        resolver: finds the files of a host compile's manifest rows; None for other steps.
        prefixes: the folders that key and result have placeholders for.
    """

    step_key: StepKey
    parts: tuple[KeyComponent, ...]
    in_folder: bool
    resolver: FileResolver | None
    prefixes: PrefixMap

    @property
    def key(self) -> str:
        return compute_key(self.parts)

    @property
    def subject(self) -> str:
        return f"{self.step_key.label} {self.step_key.inputs[0].name}"

    def lines(self) -> str | None:
        """Return digests of the inputs with line markers: warnings depend on them."""
        try:
            texts = {path: path.read_bytes() for path in self.step_key.inputs}
        except OSError:
            return None
        mapped = _mapped_inputs(texts, self.step_key, self.prefixes, in_folder=self.in_folder)
        return " ".join(map(text_digest, mapped.values()))


class StepCache:
    """A cache of the results of steps, by the content of their inputs.

    Args:
        cache: the store of results.
        tools: the identities of programs.
        private: the folder of all intermediate files.
        multicore: whether steps may use more than one core, which changes bytes of their outputs.
        prefixes: the folders of ``base-dir``.

    Attributes:
        hits: number of hits.
        saved: CPU seconds that the hits saved.
        differing: in verify mode, the steps with another result than the cached one.
        saved_by: CPU seconds that each hit saved, by the step's name.
        events: the results of lookups.
        without_bases: preprocessed texts known to have no name of a folder of ``base-dir``.
        parts: of preprocessed texts.
        scans: facts about headers that others have found.
        ended: called while other tools run with each step that ran and is stored.
    """

    def __init__(
        self,
        cache: Cache,
        tools: ToolIdentities,
        *,
        private: Path,
        multicore: bool,
        prefixes: PrefixMap = NO_PREFIXES,
    ) -> None:
        self._cache = cache
        self._tools = tools
        self._private = private
        self._multicore = multicore
        self._prefixes = prefixes
        self.hits = 0
        self.saved = 0.0
        self.saved_by: dict[str, float] = {}
        self.events: list[StepEvent] = []
        self.without_bases: set[Path] = set()
        self.parts = TextParts()
        self.scans: TextScans | None = None
        self.ended: Callable[[Step], object] = bool
        self._verifying = cache.settings.mode == "verify"
        self._began = cache.digests.began
        self._pending: dict[str, _StepLookup] = {}
        self._expected: dict[str, CacheEntry] = {}
        self.differing: list[str] = []

    def restore(self, step: Step) -> CompletedProcess | None:
        """Restore the outputs of a step; wait while another process computes the same step."""
        lookup = self._look_up(step)
        if lookup is None:
            return None
        found = self._find(lookup)
        # Another process makes the same result: waiting is cheaper than a second cicc.
        if found is None and not self._cache.leases.acquire(lookup.key):
            self._cache.leases.wait(lookup.key)
            found = self._find(lookup)
        # In verify mode, the step runs again, and `store` compares.
        if found is not None and self._verifying:
            self._expected[step.name] = found.entry
            found = None
        if found is None or not restore_outputs(
            found.entry, step, lookup.step_key, lookup.resolver, lookup.prefixes
        ):
            self._pending[step.name] = lookup
            return None
        seconds = found.entry.cpu_seconds
        self.hits += 1
        self.saved += seconds
        self.saved_by[step.name] = seconds
        self._log(step, lookup, found.tier, seconds)
        stdout, stderr = map(
            lookup.prefixes.unmap_message, (found.entry.stdout, found.entry.stderr)
        )
        return CompletedProcess(returncode=0, stdout=stdout, stderr=stderr, seconds=0.0)

    def store(self, step: Step, done: CompletedProcess) -> None:
        """Store the outputs of a step."""
        lookup = self._pending.pop(step.name, None)
        # Of another step, the result was found, or may not be stored.
        if lookup is not None:
            self._log(step, lookup, None, done.cpu_seconds)
            try:
                self._store(step, lookup, done)
            finally:
                # Also after an error: other processes would wait until the lease expires.
                self._cache.leases.release(lookup.key)
        self.ended(step)

    def verify(self) -> None:
        """Refuse results that differ from the cached ones.

        Raises:
            VerifyError: names the steps.
        """
        if self.differing:
            raise VerifyError(
                "the results of these steps differ from what the cache has:\n  "
                + "\n  ".join(self.differing),
                hint="a tool may have been replaced without a change of its bytes; or report it",
            )

    def _log(self, step: Step, lookup: _StepLookup, tier: str | None, seconds: float) -> None:
        self._cache.count_lookup(lookup.step_key.kind.value, lookup.step_key.target, tier, seconds)
        result = f"cache miss{self._difference(lookup)}" if tier is None else f"cache hit ({tier})"
        line = f"{lookup.step_key.label}: {result}, {seconds:.2f} s"
        self.events.append(StepEvent(step.name, lookup.step_key.target, line))

    def _difference(self, lookup: _StepLookup) -> str:
        """Return the differences from the nearest earlier step of the kind, in brackets."""
        earlier = self._cache.miss_log.previous_components(lookup.subject)
        if not earlier:
            return ""
        before = ([KeyComponent(*part) for part in parts] for parts in earlier)
        found = [key_differences(parts, lookup.parts) for parts in before]
        return f" ({'; '.join(min(found, key=len)[:_MAX_DIFFERENCES])})" if any(found) else ""

    def _look_up(self, step: Step, prefixes: PrefixMap | None = None) -> _StepLookup | None:
        # The step's own flags: nvcc's `-g` is only for the host compiler.
        flag = line_info_flag(step.command.argv)
        # Code for link-time optimization has line numbers for the linker's messages, and is
        # encrypted: a name in it can't be found.
        names_files = bool(flag) or not _LTO_FLAGS.isdisjoint(step.command.argv)
        # The map for base folders reaches only the host's compiler.
        if prefixes is None:
            is_mapped = not names_files or is_host_compiler(step.command.argv[0])
            prefixes = self._prefixes if is_mapped else NO_PREFIXES
        found = step_key(step, self._private, debug=bool(flag), prefixes=prefixes)
        if found is None:
            return None
        environment = step.command.env
        programs = self._tools.parts(step.command.argv, environment)
        if programs is None:
            return None
        ignores_lines = found.kind is StepKind.CICC and not names_files
        try:
            plain = self._plain_texts(found) if ignores_lines and not prefixes.bases else {}
            texts = {path: path.read_bytes() for path in found.inputs if path not in plain}
        except OSError:
            return None
        is_assembled = found.kind is StepKind.HOST_COMPILE
        if is_assembled and any(reads_files(text, f"{self._private}/") for text in texts.values()):
            return None
        mapped = _mapped_inputs(texts, found, prefixes, in_folder=bool(flag))
        # If code may have the name of a base, the key has no placeholders.
        if len(mapped) < len(texts):
            return self._look_up(step, NO_PREFIXES)
        if prefixes == self._prefixes:
            self.without_bases.update(mapped)
        if ignores_lines:
            plain |= {path: strip_unused_line_markers(text) for path, text in mapped.items()}
        folder = debug_folder(step.command.cwd, environment)
        length = str(len(found.placeholder)) if found.placeholder else ""
        parts = (
            KeyComponent("step", found.kind.value),
            KeyComponent("salt", self._cache.settings.salt),
            KeyComponent("multicore", "yes" if self._multicore and step.parallel_flags else "no"),
            *programs,
            # In preprocessed text, SOURCE_DATE_EPOCH has no effect any more.
            *variable_components(environment, epoch=False),
            *found.flags,
            *([folder_component(flag, prefixes.map_path(folder))] if flag else []),
            *([KeyComponent("length of the folder's name", length)] if length else []),
            *(
                KeyComponent(
                    f"input {path.suffix if found.ignores_names else path.name}",
                    text_digest(plain[path] if ignores_lines else mapped[path]),
                )
                for path in found.inputs
            ),
        )
        return _StepLookup(
            step_key=found,
            parts=parts,
            in_folder=bool(flag),
            resolver=self._resolver(step) if found.host_depfile is not None else None,
            prefixes=prefixes,
        )

    def _plain_texts(self, key: StepKey) -> dict[Path, bytes]:
        """Return the inputs in which markers have no meaning without them, as most texts are."""
        texts = {path: self.parts.without_markers(path) for path in key.inputs}
        return {
            path: to_placeholder(text, str(key.folder))
            for path, text in texts.items()
            if text is not None
        }

    def _resolver(self, step: Step) -> FileResolver:
        return FileResolver(
            cwd=step.command.cwd,
            environment=step.command.env,
            includes=self._tools.includes(step.command.argv, step.command.env),
            digests=self._cache.digests,
            group=PROGRAM_GROUP,
        )

    def _find(self, lookup: _StepLookup) -> CacheHit | None:
        # Only a host compile reads files that its inputs don't show.
        if lookup.resolver is None:
            found = self._cache.find(lookup.parts)
        else:
            rows = (
                row
                for row in self._cache.manifest_rows(lookup.key)
                if lookup.resolver.is_current(lookup.prefixes.unmap_row(row))
            )
            row = next(rows, None)
            found = None if row is None else self._cache.find(row.components(lookup.key))
        if found is None or not (found.entry.stdout or found.entry.stderr):
            return found
        # Warnings have line numbers, so that this text must have the same lines.
        return found if found.entry.notes.get(_LINES) == lookup.lines() else None

    def _store(self, step: Step, lookup: _StepLookup, done: CompletedProcess) -> None:
        files = read_outputs(step, lookup.step_key, lookup.prefixes)
        expected = self._expected.pop(step.name, None)
        if expected is not None and files is not None and files != expected.files:
            self.differing.append(f"{step.name} ({lookup.key})")
        stdout, stderr = map(lookup.prefixes.map_message, (done.stdout, done.stderr))
        lines = lookup.lines() if done.stdout or done.stderr else ""
        if files is None or stdout is None or stderr is None or lines is None:
            return
        if str(self._private) in stdout + stderr or self._has_changed_tools(step):
            return
        # The depfile lists what the compiler has just read.
        row = self._manifest_row(lookup)
        if lookup.resolver is not None and row is None:
            return
        entry = CacheEntry(
            components=lookup.parts if row is None else row.components(lookup.key),
            files=files,
            notes={_LINES: lines},
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=done.cpu_seconds,
        )
        if not self._cache.store(entry):
            return
        self._cache.miss_log.add_components(lookup.subject, lookup.parts)
        if row is not None:
            self._cache.add_manifest_row(lookup.key, row)

    def _has_changed_tools(self, step: Step) -> bool:
        """Return True if a program of the step may have changed since the lookup."""
        files = self._tools.files(step.command.argv, step.command.env)
        return any(path is None or has_changed(str(path), self._began) for path in files)

    def _manifest_row(self, lookup: _StepLookup) -> ManifestRow | None:
        """Return a manifest row of the files that the host compiler has read."""
        resolver, host_depfile = lookup.resolver, lookup.step_key.host_depfile
        if resolver is None or host_depfile is None:
            return None
        try:
            rule = host_depfile.read_text(errors="surrogateescape")
        except OSError:
            return None
        listed = [os.path.normpath(name) for name in parse_depfile(rule.partition(":")[2])]
        spelled = [
            include_spelling(name, resolver.includes)
            for name in listed
            if not Path(name).is_relative_to(self._private)
        ]
        files = tuple((name, resolver.digest(name) or "") for name in dict.fromkeys(spelled))
        # A header that changed during the compile may have been read before or after.
        if any(has_changed(resolver.resolve(name), self._began) for name, _ in files):
            return None
        paths = [resolver.resolve(name) for name, _ in files]
        tested = self._tested_headers(paths, resolver.includes)
        if tested is None or not all(digest for _, digest in files):
            return None
        names = tuple(sorted(name.removeprefix(INCLUDE_PREFIX) for name, _ in files))
        # A file that a flag includes is searched in the working folder first.
        row = ManifestRow(
            files=files,
            programs=tuple((name, resolver.program_digest(name) or "") for name in tested),
            folders=("",),
            names=names,
        )
        shadowing = map(resolver.shorten, resolver.shadow_changes(row))
        return lookup.prefixes.map_row(row._replace(shadowing=tuple(sorted(shadowing))))

    def _tested_headers(self, paths: list[str], includes: tuple[str, ...]) -> list[str] | None:
        """Return what ``__has_include`` in headers looks for; None if they ask more than that.

        Returns:
            Names in the include folders, or absolute, all with `INCLUDE_PREFIX`.
        """
        # Imported late: the first tools don't wait for its patterns.
        from archsplit.compiler.include_scan import TextScans, has_include_names  # noqa: PLC0415

        scans = self.scans or TextScans()
        tested: dict[str, None] = {}
        for path in paths:
            try:
                known = scans.facts(path)
                scan = scans.source(Path(path).read_bytes()) if known is None else known[0]
            except OSError:
                return None
            names = has_include_names([scan])
            if names is None or scan.uses_time or scan.reads_unlisted:
                return None
            # Beside the header, or in an include folder.
            for folder in (f"{path.rpartition('/')[0]}/", ""):
                spelled = (include_spelling(folder + name, includes) for name in sorted(names))
                plain = (name.removeprefix(INCLUDE_PREFIX) for name in spelled)
                tested |= dict.fromkeys(INCLUDE_PREFIX + name for name in plain)
        return list(tested)
