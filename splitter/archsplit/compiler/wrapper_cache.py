"""The cache of whole compilations of the wrapper: lookup before the dry run, storage after the run.

In: an invocation. Out: a hit, with all outputs written and nvcc's warnings printed; or a miss, and
afterwards an entry of what the run made, with a direct record for the next call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.cache.config import config_file
from archsplit.cache.entry import file_spans
from archsplit.cache.sealed_blob import DamagedError, sealed_digest
from archsplit.cache.stats import LOCAL_TIER
from archsplit.cache.usage import reliable_stat
from archsplit.compiler.cache_session import CacheSession
from archsplit.compiler.direct_cache import WHOLE, CompletedCompile, DirectCache, system_folders
from archsplit.compiler.direct_hit import (
    RECORDS_FOLDER,
    find_base_dirs,
    watched_texts,
    write_record,
)
from archsplit.compiler.file_resolver import VARIABLE_PREFIX, FileResolver
from archsplit.compiler.keys import DEPFILE_FLAG, compile_request, has_unsupported_flags
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.compiler.prefix_map import PrefixMap, find_prefix_map, include_folders
from archsplit.compiler.tool_identity import driver_files
from archsplit.nvcc.depfile import depfile_text, has_other_outputs
from archsplit.nvcc.dryrun import StepKind, option_values
from archsplit.nvcc.variables import debug_folder
from archsplit.scheduler.outcome import Outcome
from archsplit.system.env import cache_dir, find_program
from archsplit.system.outputs import is_replaceable, overwrite_file
from archsplit.system.resources import reuse_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.cache.config import Settings
    from archsplit.cache.entry import ManifestRow
    from archsplit.compiler.direct_cache import CachedResult
    from archsplit.compiler.include_scan import TextScans
    from archsplit.compiler.invocation import Invocation, WrapperContext
    from archsplit.compiler.keys import CompileRequest
    from archsplit.compiler.machine_facts import ReplyCache
    from archsplit.compiler.step_cache import StepCache
    from archsplit.compiler.text_parts import TextParts
    from archsplit.compiler.wrapper_graph import Compilation
    from archsplit.scheduler.graph import Step

_CACHEABLE = {StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.TILEIRAS, StepKind.FATBINARY}
_CACHEABLE |= {StepKind.PREPROCESS, StepKind.HOST_COMPILE}
"""Kinds of steps whose input files are known."""
_OTHER_OUTPUTS = "has outputs beside depfiles"
"""Note of an entry with outputs other than depfiles; the output is the depfiles' target then."""


def with_base_dirs(invocation: Invocation, setting: str) -> Invocation:
    """Return the invocation with the folders of ``base-dir``."""
    return invocation._replace(bases=tuple(find_base_dirs(setting, _folders(invocation))))


def _folders(invocation: Invocation) -> tuple[str, str]:
    """Return the working folder without links, and as ``PWD`` has it."""
    logical = debug_folder(invocation.cwd, invocation.environment)
    return str(invocation.cwd), logical


def _base_condition(setting: str, invocation: Invocation) -> tuple[str, ...]:
    return (setting, *_folders(invocation), *invocation.bases) if setting else ()


class WrapperCache:
    """The cache during one call of the wrapper.

    Args:
        invocation: the call.
        context: the programs, streams and settings.
        settings: of the cache; the mode isn't ``off``.
    """

    def __init__(self, invocation: Invocation, context: WrapperContext, settings: Settings) -> None:
        self._invocation = invocation
        self._context = context
        self._session = CacheSession(
            settings,
            runner=context.runner,
            report=context.warn,
            explain=context.explain_cache,
            multicore=not invocation.reproducible,
        )
        self._began = time.time_ns()
        # Strict mode and verification look at single steps only.
        direct = not settings.strict and settings.mode != "verify"
        options = invocation.command.dryrun_options
        self._prefixes = find_prefix_map(options, invocation.bases, cwd=str(invocation.cwd))
        self._requests = list(self._compile_requests()) if direct else []
        self._direct: list[DirectCache] = []
        self._scans: TextScans | None = None
        self._parts: TextParts | None = None
        self._prepared = 0
        self._early_conditions: tuple[ManifestRow | None, dict[str, list[str]]] = (None, {})

    def restore(self) -> bool:
        """Restore all outputs of a hit, and print its warnings; return False on a miss."""
        for request in self._requests:
            direct = DirectCache(
                self._session.cache,
                request,
                environment=self._invocation.environment,
                tools=self._session.identify_tools(self._invocation.cwd),
            )
            self._direct.append(direct)
            hit = direct.find().get(*WHOLE)
            if hit is not None:
                return self._write_hit(hit, request)
        return False

    def _write_hit(self, hit: CachedResult, request: CompileRequest) -> bool:
        # After a failed write, nvcc runs, and reports the error.
        if not self._write_outputs(hit, request):
            return False
        # A hit of a full lookup is a direct hit the next time.
        self._save_direct_record(hit, request)
        self._context.write_output(hit.stdout, hit.stderr)
        if self._context.explain_cache:
            self._context.warn(_hit_note(hit.tier))
        return True

    @contextlib.contextmanager
    def warmed_up(self) -> Iterator[None]:
        """Import what a miss needs, while nvcc's dry run takes its time."""
        thread = threading.Thread(target=_warm_up)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def begin(self, compilation: Compilation) -> tuple[Compilation, StepCache]:
        """Return the compilation with depfiles for its steps, and the cache of steps."""
        graph, steps = self._session.begin(
            compilation.graph,
            cwd=self._invocation.cwd,
            private=compilation.folder,
            prefixes=PrefixMap(bases=self._prefixes.bases),
        )
        compilation = compilation._replace(graph=graph)
        # What is needed after the last tool is found while tools run.
        if self._direct:
            self._parts = steps.parts
            steps.ended = partial(self._prepare, compilation, steps)
            compilation = compilation._replace(markers=partial(self._markers, compilation))
        return compilation, steps

    def _prepare(self, compilation: Compilation, steps: StepCache, step: Step) -> None:
        scans = steps.scans = self._text_scans(compilation)
        texts = _preprocessed_texts(compilation)
        for path in {*step.writes}.intersection(texts):
            scans.prepare(path)
            self._prepared += 1
        # The host compiler runs now, most often longer than all other tools.
        if Path(step.command.argv[0]).name == "cudafe++" and self._prepared == len(texts):
            begun = self._completed(compilation, Outcome((), None, 0.0), steps)
            row = self._direct[0].describe_early(begun, scans)
            driver = driver_files(os.path.realpath(self._invocation.nvcc))
            if row is not None and driver is not None:
                with contextlib.suppress(_UncheckableError):
                    conditions = self._known_conditions(row, self._requests[0], driver)
                    self._early_conditions = (row, conditions)

    def _markers(self, compilation: Compilation, path: Path) -> bytes:
        return self._text_scans(compilation).preprocessed_file(path).markers

    def _text_scans(self, compilation: Compilation) -> TextScans:
        if self._scans is None:
            # Imported late: a hit doesn't need its patterns.
            from archsplit.compiler.include_scan import HeaderFacts, TextScans  # noqa: PLC0415

            system = system_folders(tuple(step.command.argv for step in compilation.graph.steps))
            headers = HeaderFacts(self._session.cache.digests.folder, system=system)
            steps = compilation.dryrun.transcript.steps
            device = {path for step in steps if step.kind is StepKind.CICC for path in step.reads}
            self._scans = TextScans(headers=headers, device_texts=device, parts=self._parts)
        return self._scans

    def store(self, compilation: Compilation, outcome: Outcome, steps: StepCache) -> None:
        """Log the misses, and store the outputs of a compilation that succeeded.

        Args:
            compilation: as it was run.
            outcome: of its steps.
            steps: the cache of the steps.

        Raises:
            VerifyError: see `CacheSession.verify_steps`.
        """
        reasons = self._miss_reasons()
        self._store_whole(compilation, outcome, steps)
        reasons += [
            f"not shared with other folders: {direct.base_reason}"
            for direct in self._direct
            if direct.base_reason
        ]
        self._session.log_lookups(compilation.sources, reasons)
        self._session.verify_steps()

    def _miss_reasons(self) -> list[str]:
        """Return the differences from the nearest earlier compilation."""
        if not self._direct:
            return ["its includes were not scanned"]
        with_rows = (direct for direct in self._direct if direct.rows)
        return [*next(with_rows, self._direct[0]).explain()]

    def close(self) -> None:
        """Write what is left to write."""
        self._session.close()

    def _compile_requests(self) -> Iterator[CompileRequest]:
        """Yield the requests of the invocation, first the one that other checkouts share.

        It yields nothing if inputs or outputs are unpredictable.
        """
        invocation = self._invocation
        if invocation.reports.any or invocation.command.has_options_files:
            return
        nvcc = os.path.realpath(invocation.nvcc)
        tools = self._session.identify_tools(invocation.cwd)
        # Tools that use several cores generate other code.
        cores = "" if invocation.reproducible else " multicore"
        # A result with the name of a base is only for this checkout.
        for prefixes in dict.fromkeys([self._prefixes, PrefixMap(self._prefixes.isolated)]):
            request = compile_request(
                invocation.command,
                nvcc=nvcc,
                driver=tools.driver(nvcc, invocation.environment),
                cwd=invocation.cwd,
                environment=invocation.environment,
                salt=self._session.cache.settings.salt,
                version=__version__ + cores,
                prefixes=prefixes,
                bases=invocation.bases,
            )
            if request is not None:
                yield request

    def _save_direct_record(self, hit: CachedResult, request: CompileRequest) -> None:
        """Save a record of the hit, by which `direct_hit` finds it without a full lookup.

        A hit with a condition that only a full lookup can check has no record.
        """
        invocation, cache = self._invocation, self._session.cache
        nvcc = os.path.realpath(invocation.nvcc)
        driver = driver_files(nvcc)
        folder = Path(cache_dir(invocation.environment))
        # A direct hit reads no settings, so that they must be the default ones.
        is_default = folder == cache.settings.folder and cache.settings.mode == "on"
        if not invocation.direct_key or driver is None or not is_default:
            return
        blob = cache.local.get(hit.key)
        if blob is None:
            return
        note = _hit_note(LOCAL_TIER) if self._context.explain_cache else ""
        saved = repr(hit.cpu_seconds)
        places = {role: request.path(role) for role in hit.outputs}
        texts = {str(request.path(role)): text for role, text in self._depfiles(hit).items()}
        try:
            digest = sealed_digest(blob)
            sections: dict[str, list[str]] = {
                **self._known_conditions(hit.row, request, driver),
                "machine": [os.uname().nodename, str(invocation.cwd)],
                "hit": [request.key, hit.key, digest, saved, hit.stdout, hit.stderr, note],
                "bases": [*_base_condition(cache.settings.base_dir, invocation)],
                "links": [str(invocation.nvcc), nvcc],
                "outputs": [
                    *_output_places(blob, places),
                    *(
                        word
                        for path, text in texts.items()
                        for word in (path, "", "", text.decode(errors="surrogateescape"))
                    ),
                ],
            }
        except (_UncheckableError, DamagedError):
            return
        records = folder / RECORDS_FOLDER
        is_shared = self._can_be_shared(request)
        # Without a base, one record serves this machine and others.
        if invocation.bases or not is_shared:
            write_record(str(records / invocation.direct_key), sections)
        if is_shared:
            # gcc skips a link to another include folder, which there may be in another checkout.
            folders = include_folders(invocation.command.dryrun_options)
            sections["links"] += [
                text for each in folders for text in (each, os.path.realpath(each))
            ]
            # The file of settings, which isn't there, has another place for another user.
            at = sections["files"].index(str(config_file(invocation.environment)))
            del sections["files"][at : at + 3]
            shared = str(records / invocation.shared_key)
            write_record(shared, sections, request.prefixes.bases)

    def _known_conditions(
        self, row: ManifestRow, request: CompileRequest, driver: Sequence[str]
    ) -> dict[str, list[str]]:
        known, conditions = self._early_conditions
        if row == known:
            return conditions
        invocation = self._invocation
        resolver = FileResolver(
            cwd=request.cwd,
            environment=invocation.environment,
            digests=self._session.cache.digests,
            group=request.key,
        )
        replies = self._session.identify_tools(invocation.cwd).replies
        more_files = (*driver, str(config_file(invocation.environment)), *invocation.option_files)
        return _conditions(row, more_files, resolver, replies)

    def _can_be_shared(self, request: CompileRequest) -> bool:
        invocation, prefixes = self._invocation, request.prefixes
        texts = (part.value.encode(errors="surrogateescape") for part in request.parts)
        return (
            invocation.shared_key != ""
            and prefixes == PrefixMap(bases=invocation.bases)
            and not any(map(prefixes.has_folder, texts))
        )

    def _write_outputs(self, hit: CachedResult, request: CompileRequest) -> bool:
        try:
            for role, content in (*hit.outputs.items(), *self._depfiles(hit).items()):
                overwrite_file(request.path(role), content)
        except OSError:
            # nvcc runs next, and reports the error.
            return False
        return True

    def _depfiles(self, hit: CachedResult) -> dict[str, bytes]:
        """Return the depfiles of a hit, by role."""
        has_outputs = _OTHER_OUTPUTS in hit.notes
        return {
            role: depfile_text([markers], command=self._invocation.command, has_outputs=has_outputs)
            for role, markers in hit.depfiles.items()
        }

    def _store_whole(self, compilation: Compilation, outcome: Outcome, cache: StepCache) -> None:
        """Store the whole compilation."""
        # A failure isn't stored: the next call may have more memory, or a mended tool.
        if not self._direct or outcome.failure is not None or not _has_known_reads(compilation):
            return
        completed = self._completed(compilation, outcome, cache)
        # A warning with the private folder's name would be wrong on a hit.
        if str(compilation.folder) in completed.stderr:
            return
        scans = self._text_scans(compilation)
        self._direct[0].count_misses(completed)
        for direct, request in zip(self._direct, self._requests, strict=True):
            direct.store(completed, scans)
            hit = direct.stored.get(*WHOLE)
            if hit is not None:
                self._save_direct_record(hit, request)
                break
        scans.save()

    def _completed(
        self, compilation: Compilation, outcome: Outcome, cache: StepCache
    ) -> CompletedCompile:
        request, dryrun, folder = self._requests[0], compilation.dryrun, compilation.folder
        transcript, finished = dryrun.transcript, outcome.finished
        steps = compilation.graph.steps
        commands = tuple(step.command.argv for step in steps)
        staged = compilation.staged
        written = (staged.get(path, path) for step in steps for path in step.writes)
        outputs = (path for path in written if not path.is_relative_to(folder))
        return CompletedCompile(
            outputs={"": {request.role(path): path for path in outputs}},
            texts=_preprocessed_texts(compilation),
            host_depfiles=tuple(
                Path(name) for argv in commands for name in option_values(argv, (DEPFILE_FLAG,))
            ),
            depfiles={
                request.role(rule.path): rule.sources
                for rule in transcript.depfiles
                if rule.path is not None
            },
            notes={"": {_OTHER_OUTPUTS: "1"} if has_other_outputs(transcript) else {}},
            commands=commands,
            environment=dryrun.environment,
            private=folder,
            began=self._began,
            without_bases=cache.without_bases,
            stdout="".join(step.stdout for step in finished),
            stderr="".join([compilation.diagnostics, *(step.stderr for step in finished)]),
            # A hit also saves the time of steps that were hits this time.
            cpu_seconds=sum(step.cpu_seconds for step in finished) + cache.saved,
        )


def _warm_up() -> None:
    import archsplit.compiler.include_scan  # noqa: F401, PLC0415

    # Compiles its pattern, for a millisecond.
    has_unsupported_flags(("gcc", "-c"))
    # Keys are made of megabytes of text for each target.
    reuse_freed_memory()


def _preprocessed_texts(compilation: Compilation) -> tuple[Path, ...]:
    steps = compilation.dryrun.transcript.steps
    return tuple(path for step in steps if step.kind is StepKind.PREPROCESS for path in step.writes)


def _has_known_reads(compilation: Compilation) -> bool:
    """Return True if all input files and outputs of a compilation are known."""
    dryrun, steps = compilation.dryrun, compilation.graph.steps
    transcript = dryrun.transcript
    kinds = {step.kind for step in transcript.steps}
    # A link reads libraries that no list names; numbered files change names by process.
    # An output that is a device or a FIFO can't be read again.
    can_be_read = all(map(is_replaceable, compilation.staged.values()))
    if not kinds <= _CACHEABLE or dryrun.numbered or not can_be_read:
        return False
    if any(has_unsupported_flags(step.command.argv) for step in steps):
        return False
    # Two rules with one path, or a rule on standard output, can't be stored.
    paths = {rule.path for rule in transcript.depfiles if rule.path}
    if len(paths) != len(transcript.depfiles):
        return False
    listed = {
        compilation.staged.get(path, path)
        for step in steps
        for path in step.writes
        if any(option_values(step.command.argv, (DEPFILE_FLAG,)))
    }
    for step in transcript.steps:
        if step.kind is StepKind.PREPROCESS and not step.writes:
            return False
        # A compile of a source without preprocessed text must list what it has read.
        reads_source = step.kind is StepKind.HOST_COMPILE and not step.reads
        if reads_source and listed.isdisjoint(step.writes):
            return False
    return True


def _hit_note(tier: str) -> str:
    return f"cache hit ({tier})"


class _UncheckableError(Exception):
    """A condition that only a full lookup can check."""


def _conditions(
    row: ManifestRow, more_files: Iterable[str], resolver: FileResolver, replies: ReplyCache
) -> dict[str, list[str]]:
    """Return the files of a hit as conditions on paths, names and times.

    Args:
        row: the files that the entry was made from.
        more_files: further files that the request depends on, existing or missing.
        resolver: finds the files of the row, and has their digests.
        replies: the compilers' replies to questions about themselves.

    Raises:
        _UncheckableError: only a full lookup can check a condition.
    """
    search = resolver.environment.get("PATH", "")
    # All digests and stats are from after this time.
    since = resolver.digests.began
    variables: list[str] = []
    programs: list[str] = []
    compilers: list[tuple[str, str]] = []
    files: list[str] = []
    for name, digest in row.programs:
        if name.startswith(VARIABLE_PREFIX):
            variables += [name.removeprefix(VARIABLE_PREFIX), digest]
        # A query has arguments, a program's name has no space.
        elif " " in name:
            compilers.append((name, digest))
        else:
            # The path is a condition too: another program may come earlier on the PATH.
            path = find_program(name, search)
            if path is None:
                raise _UncheckableError
            programs += [name, path]
            real = os.path.realpath(path)
            files += (path, _digest(real, resolver), reliable_stat(path, since=since))
    for spelled, digest in row.files:
        path = resolver.resolve(spelled)
        files += (path, digest, reliable_stat(path, since=since))
    for path in more_files:
        files += (path, _digest(path, resolver), reliable_stat(path, since=since))
    folders = list(map(resolver.resolve, row.folders))
    return {
        "variables": variables,
        "programs": programs,
        "compiler_files": list(_reply_stats(replies, compilers, resolver.environment)),
        "replies": [text for pair in compilers for text in pair],
        "files": files,
        "folders": folders,
        "watched": watched_texts(folders, row.names, since=since),
        "names": list(row.names),
        "shadowing": list(map(resolver.resolve, row.shadowing)),
    }


def _reply_stats(
    replies: ReplyCache, compilers: Iterable[tuple[str, str]], environment: Mapping[str, str]
) -> Iterator[str]:
    for query, digest in compilers:
        found = replies.find(query, environment)
        if found is None or found.reply != digest:
            raise _UncheckableError
        for pair in found.file_stats.items():
            yield from pair


def _digest(path: str, resolver: FileResolver) -> str:
    return resolver.digests.digest(path, group=PROGRAM_GROUP) or ""


def _output_places(blob: bytes, outputs: Mapping[str, Path]) -> Iterator[str]:
    """Yield the path of each output, and its place in the entry."""
    spans = file_spans(blob)
    for role, path in outputs.items():
        if role not in spans:
            raise _UncheckableError
        yield from (str(path), *map(str, spans[role]), "")
