"""Direct mode: reuse the results of a whole compilation if its input files are unchanged.

                 request (flags, environment, tools)
                    |
                    v
                 manifest: the last sets of input files, newest first
                    |  all digests equal, and no new file shadows one
                    v
                 entry: outputs, depfiles, warnings

In: a request. Out: the outputs, without a dry run and without preprocessing. A build by recipe has
one cache entry for the object of each target, and the wrapper one for all targets (`WHOLE`). After
a miss: the reasons (`miss_reasons`), and a new manifest row with the files that were read this
time. Of a hit, the wrapper saves a direct record, by which `direct_hit` finds it without a request.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import CacheEntry, KeyComponent, compute_key, key_differences
from archsplit.cache.stats import LOCAL_TIER, WHOLE_STEP
from archsplit.compiler.file_resolver import VARIABLE_PREFIX, FileResolver, join_continued_lines
from archsplit.compiler.keys import DEPFILE_FLAG, line_info_flag
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.compiler.prefix_map import NO_PREFIXES
from archsplit.compiler.tool_identity import identity_query, is_gnu_compiler
from archsplit.nvcc.depfile import parse_depfile
from archsplit.nvcc.dryrun import is_host_compiler, option_values
from archsplit.nvcc.variables import EPOCH
from archsplit.system.env import find_program

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from archsplit.cache.cache import Cache
    from archsplit.cache.entry import ManifestRow
    from archsplit.compiler.include_scan import ManifestUpdate, ObservedReads, TextScans
    from archsplit.compiler.keys import CompileRequest
    from archsplit.compiler.prefix_map import PrefixMap
    from archsplit.compiler.tool_identity import ToolIdentities

_DEPFILE = "depfile "
_ASSEMBLER = "as"
WHOLE = ("",)
"""In place of targets, if one cache entry has the results for all."""


def miss_reasons(
    cache: Cache, request: CompileRequest, rows: Sequence[ManifestRow], resolver: FileResolver
) -> tuple[str, ...]:
    """Return the differences from the nearest earlier compilation, a line each."""
    if rows:
        # The row with the fewest differences explains most to a person.
        nearest = [*resolver.changes(min(rows, key=lambda row: len(resolver.changed_files(row))))]
        before = dict(pair for row in reversed(rows) for pair in (*row.files, *row.programs))
        return tuple(_describe_change(part, before.get(_path(part))) for part in nearest)
    # Without a manifest the request itself is new: a flag, a variable or a tool differs.
    earlier = cache.miss_log.previous_components(request.subject)
    if not earlier:
        return ("nothing similar was compiled before",)
    found = ([KeyComponent(*part) for part in parts] for parts in earlier)
    return min((key_differences(parts, request.parts) for parts in found), key=len)


def _path(part: KeyComponent) -> str:
    return part.name.partition(" ")[2]


def _describe_change(part: KeyComponent, before: str | None) -> str:
    name = _path(part).removeprefix("./")
    if before is None:
        return f"{name}: {part.value}"
    if name.startswith(VARIABLE_PREFIX):
        return (
            f"environment {name.removeprefix(VARIABLE_PREFIX)}: "
            f"{part.value or 'not set'}, before {before}"
        )
    if not part.value:
        return f"{name} is gone"
    return f"{name} has changed"


class CachedResult(NamedTuple):
    """A hit: the stored results of a compilation, for one target or all.

    Attributes:
        outputs: contents of the output files by role, such as the object.
        depfiles: contents for depfiles by role: the line markers that name the included files.
        notes: further data that the caller stored with the results.
        stdout: standard output of the compilation.
        stderr: its standard error, with the warnings.
        cpu_seconds: CPU time of the compilation that stored the results.
        tier: the store with the entry: local or remote.
        row: the manifest row that matched: the input files and their digests.
        key: of the cache entry.
    """

    outputs: Mapping[str, bytes]
    depfiles: Mapping[str, bytes]
    notes: Mapping[str, str]
    stdout: str
    stderr: str
    cpu_seconds: float
    tier: str
    row: ManifestRow
    key: str


class CompletedCompile(NamedTuple):
    """A compilation that ran after a miss: its results, and the data to store them.

    Attributes:
        outputs: the output files by role, for each target.
        texts: all preprocessed texts.
        host_depfiles: the host compiler's depfiles, which list the files that it has read.
        depfiles: the requested depfiles by role, each with the preprocessed texts it lists.
        notes: further data to store for each target.
        commands: each program with the arguments of one of its steps.
        tools: further programs that steps ran, as absolute paths.
        environment: the environment of the steps.
        private: the folder of intermediate files.
        began: start of the compilation, in nanoseconds since 1970.
        without_bases: preprocessed texts known to have no name of a folder of ``base-dir``.
    """

    outputs: Mapping[str, Mapping[str, Path]]
    texts: tuple[Path, ...]
    host_depfiles: tuple[Path, ...]
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    private: Path
    began: int
    stdout: str
    stderr: str
    cpu_seconds: float
    depfiles: Mapping[str, tuple[Path, ...]] = MappingProxyType({})
    notes: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    tools: tuple[str, ...] = ()
    without_bases: Container[Path] = ()


class DirectCache:
    """The cached results of one request.

    Args:
        cache: the store of results and manifests.
        request: the call of nvcc.
        environment: its ``PATH`` finds programs, and its variables can be inputs of a source.
        tools: the identities (versions and digests) of programs.

    Attributes:
        stored: the results that `store` has stored, by target: the hits of the next call.
        base_reason: why the result depends on the name of a folder of ``base-dir`` (a base), so
            that `store` stored nothing; or "".
        rows: the rows of the request's manifest; each has the files that one compilation read.
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
        self.rows: list[ManifestRow] = []
        self.stored: dict[str, CachedResult] = {}
        self.base_reason = ""
        self._early: tuple[ObservedReads | None, ManifestUpdate | None] = (None, None)
        self._early_depfiles: tuple[Path, ...] = ()

    def find(self, targets: Sequence[str] = WHOLE) -> dict[str, CachedResult]:
        """Return the hits by target: results whose input files have the same digests now."""
        key = self._request.key
        # A file with the stat of its cached digest isn't read.
        self._cache.digests.load(key)
        self._cache.digests.load(PROGRAM_GROUP)
        found: dict[str, CachedResult] = {}
        for stored in self._cache.manifest_rows(key):
            row = self._request.prefixes.unmap_row(stored)
            self.rows.append(row)
            if self._resolver.is_current(row):
                for target in targets:
                    if target in found:
                        continue
                    if result := self._find_target(stored, target):
                        found[target] = result
            # Each target has a result, so that older rows aren't needed.
            if len(found) == len(targets):
                break
        return found

    def explain(self) -> tuple[str, ...]:
        """Return the reasons of a miss: differences from the nearest earlier compilation."""
        return miss_reasons(self._cache, self._request, self.rows, self._resolver)

    def count_misses(self, done: CompletedCompile) -> None:
        """Count a miss for each target of a compilation."""
        for target in done.outputs:
            self._cache.count_lookup(WHOLE_STEP, target, None, done.cpu_seconds / len(done.outputs))

    def store(self, done: CompletedCompile, scans: TextScans) -> None:
        """Store the results, also in `stored`, if all inputs of the compilation are known.

        Args:
            done: the compilation.
            scans: facts about its texts.
        """
        # Imported late: the first tools don't wait for its patterns.
        from archsplit.compiler.include_scan import has_changed_reads  # noqa: PLC0415

        found = {path: scans.preprocessed_file(path) for path in done.texts}
        # `.incbin` reads a file that no include marker names.
        if any(scan.reads_files for scan in found.values()) or not (found or done.host_depfiles):
            return
        markers = {path: scan.markers for path, scan in found.items()}
        reads = self._observe_reads(done, scans)
        if reads is None:
            return
        early, read = self._early
        if (
            reads != early
            or has_changed_reads(reads, self._resolver)
            or self._may_differ(done, scans)
        ):
            read = self._describe(reads, done, scans)
            if scans.headers is not None:
                included = {name for scan in found.values() for name in scan.included}
                scans.headers.usual_names = [name for name in reads.names if name not in included]
        if read is None:
            return
        prefixes = self._request.prefixes
        if prefixes.isolated and not self._has_no_isolated(done, reads):
            return
        self.base_reason = self._base_dependency(done, read) if prefixes.bases else ""
        if not self.base_reason:
            self._store_entries(done, markers, read)

    def describe_early(self, done: CompletedCompile, scans: TextScans) -> ManifestRow | None:
        """Describe what is read, while the last tools run, for `store` to use.

        The host compiler's depfile isn't there yet. It has the headers of nvcc's own code, which
        are most often the same.
        """
        usual = [] if scans.headers is None else scans.headers.usual_names
        written = tuple(path for path in done.host_depfiles if path.exists())
        # In the first compilation it is not known what the host compiler usually reads.
        reads = self._observe_reads(done._replace(host_depfiles=written), scans) if usual else None
        if reads is None:
            return None
        reads = reads._replace(names=tuple(dict.fromkeys([*reads.names, *usual])))
        read = self._describe(reads, done, scans)
        self._early, self._early_depfiles = (reads, read), written
        return None if read is None else read.row

    def _may_differ(self, done: CompletedCompile, scans: TextScans) -> bool:
        """Return True if the last tools may have read something else than was described early.

        A folder above a header may have been renamed meanwhile, or a header come that it tests for.
        """
        late = [path for path in done.host_depfiles if path not in self._early_depfiles]
        names = {name for rule in _rules(late) for name in _listed_names(rule, done.private)}
        return scans.headers is None or not all(map(scans.headers.find, names))

    def _describe(
        self, reads: ObservedReads, done: CompletedCompile, scans: TextScans
    ) -> ManifestUpdate | None:
        from archsplit.compiler.include_scan import describe_reads  # noqa: PLC0415 - see `store`

        includes = self._include_folders(done)
        resolver = self._file_resolver(includes)
        return describe_reads(reads, resolver, scans) if includes else None

    def _store_entries(
        self, done: CompletedCompile, markers: Mapping[Path, bytes], read: ManifestUpdate
    ) -> None:
        key, prefixes = self._request.key, self._request.prefixes
        row = prefixes.map_row(read.row)
        for target in done.outputs:
            parts = _key_components(row, key, target)
            entry = _mapped_entry(self._new_entry(done, markers, target, parts), prefixes)
            if entry is None:
                self.base_reason = "a result has the folder's name"
            elif self._cache.store(entry):
                self.stored[target] = _cached_result(row, entry, LOCAL_TIER, prefixes)
        if self.stored:
            # After the entry: a lookup by a row without an entry fails.
            self._cache.add_manifest_row(key, row)
            self._cache.miss_log.add_components(self._request.subject, self._request.parts)

    def _base_dependency(self, done: CompletedCompile, read: ManifestUpdate) -> str:
        """Return the reason why a result may depend on the name of a base; "" for none."""
        prefixes = self._request.prefixes
        if not self._has_only_gnu(done):
            return "the host compiler is not GCC"
        for program, *words in done.commands:
            flag = line_info_flag(words)
            if any("lto" in word for word in words) or (flag and not is_host_compiler(program)):
                return f"{Path(program).name} {flag or '-lto'} writes file names"
        others = (path.read_bytes() for path in done.texts if path not in done.without_bases)
        if None in map(prefixes.map_markers, others):
            return "the code has the folder's name, or uses __builtin_FILE"
        for name, digest in read.row.files:
            text = read.texts.get(digest)
            if text is not None and prefixes.may_include_by_base(join_continued_lines(text)):
                return f"{name} has the folder's name, or includes a file by a macro"
        return ""

    def _has_only_gnu(self, done: CompletedCompile) -> bool:
        hosts = {argv[0] for argv in done.commands if is_host_compiler(argv[0])}
        return all(is_gnu_compiler(program, done.environment) for program in hosts)

    def _has_no_isolated(self, done: CompletedCompile, reads: ObservedReads) -> bool:
        """Return True if no result depends on the names of isolated folders (see `PrefixMap`)."""
        # The code of a source without a preprocessed text is unknown.
        if reads.has_unlisted:
            return False
        # clang names a lambda by the file that it is in.
        if not self._has_only_gnu(done):
            return False
        texts = (path.read_bytes() for path in done.texts)
        return not any(map(self._request.prefixes.has_folder_in_code, texts))

    def _include_folders(self, done: CompletedCompile) -> tuple[str, ...]:
        """Return all include folders of the host compiles; none if one is unknown."""
        hosts = [argv for argv in done.commands if is_host_compiler(argv[0])]
        searched = [self._tools.includes(argv, done.environment) for argv in hosts]
        if not all(searched):
            return ()
        return tuple(dict.fromkeys(folder for folders in searched for folder in folders))

    def _file_resolver(self, includes: tuple[str, ...]) -> FileResolver:
        return FileResolver(
            cwd=self._request.cwd,
            environment=self._environment,
            includes=includes,
            digests=self._cache.digests,
            group=self._request.key,
            tools=self._tools,
        )

    def _find_target(self, row: ManifestRow, target: str) -> CachedResult | None:
        found = self._cache.find(_key_components(row, self._request.key, target))
        if found is None:
            return None
        self._cache.count_lookup(WHOLE_STEP, target, found.tier, found.entry.cpu_seconds)
        return _cached_result(row, found.entry, found.tier, self._request.prefixes)

    def _observe_reads(self, done: CompletedCompile, scans: TextScans) -> ObservedReads | None:
        from archsplit.compiler.include_scan import ObservedReads  # noqa: PLC0415 - see `store`

        # A file may have changed since the lookup, before the compiler read it.
        self._cache.digests.recheck()
        self._tools.replies.recheck()
        texts = {path: scans.preprocessed_file(path) for path in done.texts}
        names = dict.fromkeys(name for scan in texts.values() for name in scan.included)
        for rule in _rules(done.host_depfiles):
            names |= dict.fromkeys(_listed_names(rule, done.private))
        files = [
            str(path) for root in _toolkit_folders(done.commands) for path in _driver_files(root)
        ]
        files += done.tools
        search = self._environment.get("PATH", "")
        programs = []
        # One command for each program: the identity follows from the program, not from its files.
        for argv in {argv[0]: argv for argv in done.commands}.values():
            found = list(self._tools.files(argv, done.environment))
            if None in found:
                return None
            # Another program of the name may come earlier on the PATH later.
            if "/" not in argv[0] and find_program(argv[0], search):
                programs.append(argv[0])
            files += map(str, found)
        if find_program(_ASSEMBLER, search):
            programs.append(_ASSEMBLER)
        programs += filter(None, map(identity_query, done.commands))
        return ObservedReads(
            names=tuple(names),
            tools=tuple(dict.fromkeys(files)),
            programs=tuple(dict.fromkeys(programs)),
            system=system_folders(done.commands),
            since=done.began,
            epoch=done.environment.get(EPOCH),
            macros=tuple(_macro_options(done.commands)),
            preprocessed=tuple(path.read_bytes() for path in texts if texts[path].has_moment),
            has_unlisted=any(_compiles_source(argv, done.private) for argv in done.commands),
        )

    def _new_entry(
        self,
        done: CompletedCompile,
        markers: Mapping[Path, bytes],
        target: str,
        parts: tuple[KeyComponent, ...],
    ) -> CacheEntry:
        files = {role: path.read_bytes() for role, path in done.outputs[target].items()}
        for role, sources in done.depfiles.items():
            files[_DEPFILE + role] = b"".join(markers[source] for source in sources)
        return CacheEntry(
            components=parts,
            files=files,
            notes=done.notes.get(target, {}),
            stdout=done.stdout,
            stderr=done.stderr,
            cpu_seconds=_target_cpu_seconds(done, self._cache.settings.min_seconds),
        )


def _target_cpu_seconds(done: CompletedCompile, min_seconds: float) -> float:
    """Return the CPU seconds for one target: an equal share of the whole."""
    # A small share must not fall below the setting that the whole has passed.
    return max(done.cpu_seconds / len(done.outputs), min(done.cpu_seconds, min_seconds))


def _mapped_entry(entry: CacheEntry, prefixes: PrefixMap) -> CacheEntry | None:
    """Return an entry without the names of mapped folders; None if an output has one."""
    if prefixes == NO_PREFIXES:
        return entry
    files: dict[str, bytes | None] = {
        # Depfiles name headers, and are written anew on a hit.
        role: prefixes.map_text(content) if role.startswith(_DEPFILE) else content
        for role, content in entry.files.items()
    }
    stdout, stderr = map(prefixes.map_message, (entry.stdout, entry.stderr))
    made = {role: content for role, content in files.items() if content is not None}
    if len(made) < len(files) or stdout is None or stderr is None:
        return None
    if any(map(prefixes.has_folder, made.values())):
        return None
    return entry._replace(files=made, stdout=stdout, stderr=stderr)


def _cached_result(
    row: ManifestRow, entry: CacheEntry, tier: str, prefixes: PrefixMap
) -> CachedResult:
    depfiles = {role for role in entry.files if role.startswith(_DEPFILE)}
    mapped = {role: prefixes.unmap_text(entry.files[role]) for role in depfiles}
    return CachedResult(
        outputs={role: text for role, text in entry.files.items() if role not in depfiles},
        depfiles={role.removeprefix(_DEPFILE): text for role, text in mapped.items()},
        notes=entry.notes,
        stdout=prefixes.unmap_message(entry.stdout),
        stderr=prefixes.unmap_message(entry.stderr),
        cpu_seconds=entry.cpu_seconds,
        tier=tier,
        row=prefixes.unmap_row(row),
        key=compute_key(entry.components),
    )


def _key_components(row: ManifestRow, request: str, target: str) -> tuple[KeyComponent, ...]:
    return (*row.components(request), *([KeyComponent("target", target)] if target else []))


def _macro_options(commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    for argv in commands:
        yield from option_values(argv, ("-D",))
        yield from (word.removeprefix("-D") for word in argv if word.startswith("-D"))


def _compiles_source(argv: tuple[str, ...], private: Path) -> bool:
    """Return True if a host compiler reads a source directly, without a preprocessed text."""
    if not is_host_compiler(argv[0]) or "-E" in argv:
        return False
    # Outputs in the private folder don't make the input preprocessed.
    named = {*option_values(argv, ("-o", DEPFILE_FLAG))}
    return not any(word.startswith(f"{private}/") for word in argv[1:] if word not in named)


def _rules(depfiles: Iterable[Path]) -> dict[str, None]:
    """Return the lists of names in depfiles, each once: several targets read the same files."""
    texts = (path.read_text(errors="surrogateescape") for path in depfiles)
    return dict.fromkeys(text.partition(":")[2] for text in texts)


def _listed_names(rule: str, private: Path) -> Iterator[str]:
    for name in parse_depfile(rule):
        # There are thousands of names, and few have a "..".
        plain = os.path.normpath(name) if ".." in name else name
        if not plain.startswith(f"{private}/"):
            yield name


def _driver_files(root: str) -> Iterator[Path]:
    """Yield the driver of a toolkit and its profile."""
    for name in ("nvcc", "nvcc.profile"):
        path = Path(root) / "bin" / name
        if path.is_file():
            yield path


def system_folders(commands: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the folders whose headers are never edited: the system's and the toolkit's."""
    return ("/usr/", *_toolkit_folders(commands))


def _toolkit_folders(commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """Yield the toolkit's folder, two levels above cicc's ``nvvm/bin``."""
    for argv in commands:
        if Path(argv[0]).name == "cicc":
            yield str(Path(argv[0]).resolve().parent.parent.parent)
            yield os.path.normpath(Path(argv[0]).parent.parent.parent)
