"""Direct mode: results of whole compilations, by the files that were read the last time.

                 request (flags, environment, tools)
                    |
                    v
                 manifest: the last sets of input files, newest first
                    |  all digests equal, and no new file shadows one
                    v
                 entry: outputs, rules for make, warnings

In: a request. Out: the outputs of each portion, without a dry run and without preprocessing. After
a miss: the reasons (`miss_reasons`), and a new manifest entry with what was read this time.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.entry import CacheEntry
from archsplit.cache.keys import KeyComponent, compute_key, key_differences
from archsplit.compiler.assembly import reads_more
from archsplit.compiler.environment_key import EPOCH
from archsplit.compiler.file_resolver import PROGRAM_GROUP, VARIABLE_PREFIX, FileResolver
from archsplit.compiler.include_scan import ObservedReads, describe_reads
from archsplit.compiler.preprocessed import include_markers, included_files
from archsplit.compiler.step_key import DEPFILE_FLAG, is_host_compiler
from archsplit.compiler.tool_identity import (
    identity_query,
    record_versions,
    recorded_version,
    version_text,
    with_versions,
)
from archsplit.nvcc.depfile import parse_depfile
from archsplit.nvcc.step_args import option_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.cache.cache import Cache
    from archsplit.cache.manifest import ManifestEntry
    from archsplit.compiler.request_key import CompileRequest
    from archsplit.compiler.tool_identity import ToolIdentities


def changed_lines(old: bytes, new: bytes) -> tuple[int, int]:
    """The first and the last line of the new text between which all differences lie.

    Where lines were only taken out, that is the line that now stands in their place.
    """
    before, after = old.splitlines(), new.splitlines()
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return same + 1, max(same + 1, len(after) - tail)


def miss_reasons(
    cache: Cache,
    request: CompileRequest,
    rows: Sequence[ManifestEntry],
    resolver: FileResolver,
    tools: ToolIdentities,
) -> tuple[str, ...]:
    """Return the differences from the nearest earlier compilation, a line each."""
    if rows:
        nearest = min(([*resolver.changes(row)] for row in rows), key=len)
        record_versions(cache, tools, (resolver.resolve(_path(part)) for part in nearest))
        before = dict(pair for row in reversed(rows) for pair in (*row.files, *row.programs))
        return tuple(_change(cache, part, before.get(_path(part)), resolver) for part in nearest)
    earlier = cache.miss_log.previous_components(request.subject)
    if not earlier:
        return ("nothing like it was compiled before",)
    now = with_versions(cache, request.parts)
    found = [with_versions(cache, (KeyComponent(*part) for part in parts)) for parts in earlier]
    return min((key_differences(parts, now) for parts in found), key=len)


def _path(part: KeyComponent) -> str:
    return part.name.partition(" ")[2]


def _change(cache: Cache, now: KeyComponent, was: str | None, resolver: FileResolver) -> str:
    name = _path(now).removeprefix("./")
    if was is None:
        return f"{name}: {now.value}"
    if name.startswith(VARIABLE_PREFIX):
        return (
            f"environment {name.removeprefix(VARIABLE_PREFIX)}: "
            f"{now.value or 'not set'}, before {was}"
        )
    if not now.value:
        return f"{name} is gone"
    if now.name.startswith("program ") or recorded_version(cache, now.value):
        return (
            f"{name} is another one: {version_text(cache, now.value)}, before "
            f"{version_text(cache, was)}"
        )
    return f"{name} has changed{_where(cache.read_content(was), resolver.resolve(name))}"


def _where(old: bytes | None, place: str) -> str:
    try:
        with open(place, "rb") as file:  # noqa: PTH123 - the place is text
            new = file.read()
    except OSError:
        return ""
    if old is None:
        return ""
    first, last = changed_lines(old, new)
    return f" in line {first}" if first == last else f" in lines {first} to {last}"


_STEP = "request"
_RULE = "rule "
_ASSEMBLER = "as"
WHOLE = ("",)
"""The portions of a compilation whose results are stored as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResult:
    """A compilation, or a portion of one, whose results are known.

    Attributes:
        outputs: contents of files, by what they are.
        rules: for rules for make, the markers that say what was included.
        notes: what else was noted down with them.
        stdout: what would be printed.
        stderr: the warnings.
        cpu_seconds: what making it took.
        tier: where they were found.
        row: the files that they were made from.
        key: of the entry.
    """

    outputs: Mapping[str, bytes]
    rules: Mapping[str, bytes]
    notes: Mapping[str, str]
    stdout: str
    stderr: str
    cpu_seconds: float
    tier: str
    row: ManifestEntry
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCompile:
    """A compilation that was carried out.

    Attributes:
        outputs: the files that it made, by what they are, of each portion that is stored by itself.
        texts: preprocessed texts, all of them.
        listings: rules for make by which the host's compiler says what it has read.
        rules: rules for make that were wanted, by what they are, with the texts that each is of.
        notes: what else to note down with each portion.
        commands: each program with the arguments of one of its steps.
        tools: further programs that steps ran, absolute.
        environment: what the steps saw.
        private: the folder of intermediate files.
        began: nanoseconds since 1970.
    """

    outputs: Mapping[str, Mapping[str, Path]]
    texts: tuple[Path, ...]
    listings: tuple[Path, ...]
    rules: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commands: tuple[tuple[str, ...], ...]
    tools: tuple[str, ...] = ()
    environment: Mapping[str, str]
    private: Path
    began: int
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float
    memory: int


class DirectCache:
    """The cached results of one request.

    Args:
        cache: where results are.
        request: what is asked of nvcc.
        environment: what programs are looked for by, and what sources may ask for.
        tools: asks programs about themselves.
    """

    def __init__(
        self,
        cache: Cache,
        request: CompileRequest,
        *,
        environment: Mapping[str, str],
        tools: ToolIdentities,
    ) -> None:
        self._cache = cache
        self._request = request
        self._environment = environment
        self._tools = tools
        self._resolver = self._file_resolver(())
        self._rows: list[ManifestEntry] = []

    def find(
        self, portions: Sequence[str] = WHOLE, *, counted: bool = True
    ) -> dict[str, CachedResult]:
        """Look for the results of each portion, by what the files are now.

        Args:
            counted: whether the statistics count it as a hit.
        """
        key = self._request.key
        self._cache.digests.load(key)
        self._cache.digests.load(PROGRAM_GROUP)
        found: dict[str, CachedResult] = {}
        for row in self._cache.manifest_entries(key):
            self._rows.append(row)
            if self._resolver.is_current(row):
                for portion in portions:
                    if portion not in found and (one := self._found(row, portion, counted=counted)):
                        found[portion] = one
            if len(found) == len(portions):
                break
        return found

    def explain(self) -> tuple[str, ...]:
        """Return the reasons of a miss: differences from the nearest earlier compilation."""
        return miss_reasons(self._cache, self._request, self._rows, self._resolver, self._tools)

    def store(self, done: CompletedCompile) -> dict[str, Mapping[str, Path]]:
        """Store the results, if they depend on nothing but what can be seen again.

        Returns:
            The keys of what was stored, and which files are in it as what.
        """
        for portion in done.outputs:
            self._cache.count_lookup(_STEP, portion, None, done.cpu_seconds / len(done.outputs))
        texts = {path: path.read_bytes() for path in done.texts}
        if any(map(reads_more, texts.values())) or not (texts or done.listings):
            return {}
        self._cache.digests.recheck()
        reading = self._reading(done, texts)
        includes = self._includes(done)
        read = (
            describe_reads(reading, self._file_resolver(includes)) if reading and includes else None
        )
        if read is None:
            return {}
        key = self._request.key
        stored = {}
        for portion, files in done.outputs.items():
            parts = _parts(read.row, key, portion)
            if self._cache.store(self._entry(done, texts, portion, parts)):
                stored[compute_key(parts)] = files
        if stored:
            record_versions(self._cache, self._tools, (name for name, _ in read.row.files))
            self._cache.add_manifest_entry(key, read.row)
            self._cache.miss_log.add_components(self._request.subject, self._request.parts)
            for digest, text in read.texts.items():
                self._cache.store_content(digest, text)
        return stored

    def _includes(self, done: CompletedCompile) -> tuple[str, ...]:
        """The folders that were searched by any of the commands; none if one doesn't tell."""
        hosts = [argv for argv in done.commands if is_host_compiler(argv[0])]
        found = [self._tools.includes(argv, done.environment) for argv in hosts]
        return tuple(dict.fromkeys(each for one in found for each in one)) if all(found) else ()

    def _file_resolver(self, includes: tuple[str, ...]) -> FileResolver:
        return FileResolver(
            cwd=self._request.cwd,
            environment=self._environment,
            includes=includes,
            digests=self._cache.digests,
            group=self._request.key,
            tools=self._tools,
        )

    def _found(self, row: ManifestEntry, portion: str, *, counted: bool) -> CachedResult | None:
        found = self._cache.find(_parts(row, self._request.key, portion))
        if found is None:
            return None
        entry = found.entry
        if counted:
            self._cache.count_lookup(_STEP, portion, found.tier, entry.cpu_seconds)
        rules = {role for role in entry.files if role.startswith(_RULE)}
        return CachedResult(
            outputs={role: text for role, text in entry.files.items() if role not in rules},
            rules={role.removeprefix(_RULE): entry.files[role] for role in rules},
            notes=entry.notes,
            stdout=entry.stdout,
            stderr=entry.stderr,
            cpu_seconds=entry.cpu_seconds,
            tier=found.tier,
            row=row,
            key=compute_key(entry.components),
        )

    def _reading(self, done: CompletedCompile, texts: Mapping[Path, bytes]) -> ObservedReads | None:
        names = dict.fromkeys(
            name for text in texts.values() for name in included_files(include_markers(text))
        )
        for listing in done.listings:
            names |= dict.fromkeys(_listed(listing, done.private))
        files = [str(path) for root in _toolkits(done.commands) for path in _drivers(root)]
        files += done.tools
        search = self._environment.get("PATH", "")
        programs = []
        for argv in {argv[0]: argv for argv in done.commands}.values():
            found = list(self._tools.files(argv, done.environment))
            if None in found:
                return None
            if "/" not in argv[0] and shutil.which(argv[0], path=search):
                programs.append(argv[0])
            files += map(str, found)
        if shutil.which(_ASSEMBLER, path=search):
            programs.append(_ASSEMBLER)
        programs += filter(None, map(identity_query, done.commands))
        return ObservedReads(
            names=tuple(names),
            tools=tuple(dict.fromkeys(files)),
            programs=tuple(dict.fromkeys(programs)),
            foreign=("/usr/", *_toolkits(done.commands)),
            since=done.began,
            epoch=done.environment.get(EPOCH),
            macros=tuple(_macros(done.commands)),
            preprocessed=tuple(texts.values()),
            has_unseen=any(_compiles_source(argv, done.private) for argv in done.commands),
        )

    def _entry(
        self,
        done: CompletedCompile,
        texts: Mapping[Path, bytes],
        portion: str,
        parts: tuple[KeyComponent, ...],
    ) -> CacheEntry:
        files = {role: path.read_bytes() for role, path in done.outputs[portion].items()}
        for role, sources in done.rules.items():
            files[_RULE + role] = b"".join(include_markers(texts[source]) for source in sources)
        return CacheEntry(
            components=parts,
            files=files,
            notes=done.notes.get(portion, {}),
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=done.seconds,
            cpu_seconds=self._share(done),
            memory=done.memory,
        )

    def _share(self, done: CompletedCompile) -> float:
        """Return the CPU seconds of a portion, which is worth storing where the whole is."""
        least = min(done.cpu_seconds, self._cache.settings.min_seconds)
        return max(done.cpu_seconds / len(done.outputs), least)


def _parts(row: ManifestEntry, request: str, portion: str) -> tuple[KeyComponent, ...]:
    return (*row.components(request), *([KeyComponent("portion", portion)] if portion else []))


def _macros(commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    for argv in commands:
        yield from option_values(argv, ("-D",))
        yield from (word.removeprefix("-D") for word in argv if word.startswith("-D"))


def _compiles_source(argv: tuple[str, ...], private: Path) -> bool:
    """Tell if a host compiler reads a source, of which no preprocessed text is left."""
    if not is_host_compiler(argv[0]) or "-E" in argv:
        return False
    named = {*option_values(argv, ("-o", DEPFILE_FLAG))}
    return not any(word.startswith(f"{private}/") for word in argv[1:] if word not in named)


def _listed(listing: Path, private: Path) -> Iterator[str]:
    rule = listing.read_text(errors="surrogateescape")
    for name in parse_depfile(rule.partition(":")[2]):
        # Thousands of names: a Path each would cost more than all else here.
        if not os.path.normpath(name).startswith(f"{private}/"):
            yield name


def _drivers(root: str) -> Iterator[Path]:
    """Yield the driver of a toolkit and its profile."""
    for name in ("nvcc", "nvcc.profile"):
        path = Path(root) / "bin" / name
        if path.is_file():
            yield path


def _toolkits(commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """The toolkit's folder, which is where cicc lies in ``nvvm/bin``."""
    for argv in commands:
        if Path(argv[0]).name == "cicc":
            yield str(Path(argv[0]).resolve().parent.parent.parent)
            yield os.path.normpath(Path(argv[0]).parent.parent.parent)
