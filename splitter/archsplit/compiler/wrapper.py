"""The compiler wrapper: run one command line of nvcc, with the same outputs as nvcc.

In: an invocation. Out: nvcc's outputs, depfiles, warnings and exit code. The steps come from
a dry run. They run in parallel, or their results come from the cache. If a tool crashes, or the
command line can't be planned, nvcc itself runs.

The last functions write the reports on a compilation (graph, table, commands, intermediate files)
and compare it with nvcc's own (``--verify``): intermediate files and outputs byte by byte; of ELF
files only the sections with SHF_ALLOC, because others have names of temporary files.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.usage import stat_text
from archsplit.compiler.invocation import with_all_options
from archsplit.compiler.wrapper_graph import plan_compilation, query_dryrun
from archsplit.errors import OutputError, VerifyError
from archsplit.nvcc.cmdline import FallBackToNvccError
from archsplit.nvcc.depfile import depfile_text, has_other_outputs
from archsplit.scheduler.outcome import format_graph_dot, format_steps_table
from archsplit.system.fs import output_errors, put_file, stable_dir, temporary_dir, write_file
from archsplit.system.outputs import overwrite_file
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from archsplit.compiler.invocation import Invocation, WrapperContext
    from archsplit.compiler.wrapper_cache import WrapperCache
    from archsplit.compiler.wrapper_graph import Compilation
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import FinishedStep, Outcome
    from archsplit.scheduler.runner import ResultCache

_THREADED_FAILURE = 255
"""Exit code of nvcc with ``--threads``, whatever step fails."""
_KEPT_TEXTS = {".c", ".cpp", ".gpu", ".ii", ".ptx", ".s"}


def run_wrapper(invocation: Invocation, context: WrapperContext) -> int:
    """Do the work of nvcc, and return its exit code.

    Raises:
        FallBackToNvccError: only nvcc itself can do it; nothing has been printed or made.
        VerifyError: nvcc's outputs are different, and the invocation asks for a comparison.
    """
    invocation = with_all_options(invocation)
    # A cached step has only files that later steps read; `--keep` also shows the others.
    is_kept = invocation.command.keep_folder is not None
    if context.cache is None or is_kept or invocation.verify:
        return _compile(invocation, context, None)
    # Imported late: a compilation without the cache doesn't need it.
    from archsplit.compiler.wrapper_cache import WrapperCache, with_base_dirs  # noqa: PLC0415

    invocation = with_base_dirs(invocation, context.cache.base_dir)

    with contextlib.closing(WrapperCache(invocation, context, context.cache)) as cache:
        if cache.restore():
            context.call_counter("cached")
            return 0
        return _compile(invocation, context, cache)


def _compile(invocation: Invocation, context: WrapperContext, cache: WrapperCache | None) -> int:
    with _private_dir(invocation) as folder:
        with contextlib.nullcontext() if cache is None else cache.warmed_up():
            dryrun = query_dryrun(invocation, folder, context.runner)
        compilation, step_cache = plan_compilation(dryrun, context), None
        if cache is not None:
            compilation, step_cache = cache.begin(compilation)
        verify = invocation.verify
        outcome = _run_verified(compilation) if verify else _run(compilation, step_cache)
        _write_output(compilation, outcome)
        try:
            _write_depfiles(compilation, outcome)
        except OutputError:
            # An object without its depfile would be up to date for make.
            _remove_outputs(compilation, 0)
            raise
        _place_outputs(compilation, outcome)
        if invocation.reports.any:
            write_reports(compilation, outcome)
        if cache is not None and step_cache is not None:
            cache.store(compilation, outcome, step_cache)
        context.call_counter("compiled")
        return _exit_code(compilation, outcome)


def _private_dir(invocation: Invocation) -> AbstractContextManager[Path]:
    """Return the folder for intermediate files."""
    if not invocation.reproducible:
        return temporary_dir()
    # Debug information and sanitizers write the folder's name into objects, so the name must be the
    # same in every checkout.
    subject = "\0".join(invocation.command.argv)
    for folder in (str(invocation.cwd), *invocation.bases):
        subject = subject.replace(folder, "")
    return stable_dir(subject)


def _exit_code(compilation: Compilation, outcome: Outcome) -> int:
    if outcome.failure is None:
        return 0
    # With `--threads`, nvcc hides the exit code of the step that failed.
    is_threaded = compilation.invocation.command.is_threaded
    return _THREADED_FAILURE if is_threaded else outcome.failure.returncode


def _run(compilation: Compilation, step_cache: ResultCache | None = None) -> Outcome:
    invocation, graph_runner = compilation.invocation, compilation.context.graph_runner
    for path, text in compilation.texts.items():
        path.write_text(text)
    choice, farm = compilation.context.farm, None
    if choice is not None:
        # Imported late: most compilations have no farm.
        from archsplit.compiler.wrapper_farm import WrapperFarm  # noqa: PLC0415

        farm = WrapperFarm(compilation, choice, graph_runner.runner)
    outcome = graph_runner.run(
        compilation.graph if farm is None else farm.graph,
        group=compilation.history_group,
        parallel=not (invocation.reproducible or invocation.verify),
        result_cache=step_cache,
        executor=farm,
        remote_slots=0 if choice is None else choice.jobs,
    )
    if outcome.failure is not None and outcome.failure.returncode <= 0:
        # Only nvcc itself gives the right message and exit code for a tool that crashed, or that
        # wrote no output.
        _remove_outputs(compilation, 0)
        raise FallBackToNvccError(f"{outcome.failure.name} {outcome.failure.fault}")
    return outcome


def _run_verified(compilation: Compilation) -> Outcome:
    reference = run_nvcc(compilation)
    outcome = _run(compilation.with_module_ids(reference.module_ids))
    if outcome.failure is None:
        compare_outputs(reference, compilation)
    return outcome


def _write_output(compilation: Compilation, outcome: Outcome) -> None:
    """Print the output of the tools, in nvcc's order, up to the one that failed."""
    finished = tuple(_until_failure(outcome))
    compilation.context.write_output(
        "".join(done.stdout for done in finished),
        "".join([compilation.diagnostics, *(done.stderr for done in finished)]),
    )


def _until_failure(outcome: Outcome) -> Iterator[FinishedStep]:
    last = outcome.failure.position if outcome.failure is not None else None
    return (done for done in outcome.finished if last is None or done.position <= last)


def _place_outputs(compilation: Compilation, outcome: Outcome) -> None:
    """Move outputs to their final paths, and remove files that nvcc would not have made."""
    failure, command = outcome.failure, compilation.invocation.command
    done = compilation.graph.steps[: None if failure is None else failure.position]
    for path in (path for step in done for path in step.writes if path in compilation.staged):
        _move(path, compilation.staged[path])
    if failure is not None:
        _remove_outputs(compilation, failure.position + 1)
    if command.keep_folder is not None:
        # nvcc starts no step after a failure.
        last = None if failure is None else failure.position + 1
        for path in (
            path for step in compilation.dryrun.transcript.steps[:last] for path in step.writes
        ):
            if path.is_relative_to(compilation.folder) and path.exists():
                _rename_folder(path, compilation.folder, command.kept_prefix)
                _move(path, compilation.invocation.cwd / command.keep_folder / path.name)


def _rename_folder(path: Path, folder: Path, kept_prefix: str) -> None:
    """Replace the private folder's name in a kept text, as nvcc does."""
    old = f"{folder}/".encode()
    content = path.read_bytes() if path.suffix in _KEPT_TEXTS else b""
    if old in content:
        path.write_bytes(content.replace(old, os.fsencode(kept_prefix)))


def _remove_outputs(compilation: Compilation, first: int) -> None:
    """Remove what the steps from ``first`` on have written. Older outputs stay, as with nvcc."""
    for step in compilation.graph.steps[first:]:
        for path in step.writes:
            if stat_text(str(path)) != compilation.old_stats.get(path):
                path.unlink(missing_ok=True)


def _write_depfiles(compilation: Compilation, outcome: Outcome) -> None:
    """Write the depfiles of the sources that were preprocessed."""
    dryrun, stdout = compilation.dryrun, compilation.context.stdout
    steps = compilation.graph.steps
    last = len(steps) if outcome.failure is None else outcome.failure.position
    written = {path for step in steps[:last] for path in step.writes}
    for rule in dryrun.transcript.depfiles:
        if not written.issuperset(rule.sources):
            continue
        text = depfile_text(
            map(compilation.markers, rule.sources),
            command=compilation.invocation.command,
            has_outputs=has_other_outputs(dryrun.transcript),
        )
        if rule.path is None:
            stdout.write(text)
            stdout.flush()
        else:
            with output_errors(rule.path):
                overwrite_file(rule.path, text)


def _move(source: Path, target: Path) -> None:
    with output_errors(target):
        put_file(source, target)


def write_reports(compilation: Compilation, outcome: Outcome) -> None:
    """Write each requested report, also after a failed step.

    Raises:
        OutputError: a report can't be written.
    """
    graph, reports = compilation.graph, compilation.invocation.reports
    if reports.graph is not None:
        write_file(reports.graph, format_graph_dot(graph, outcome))
    if reports.table is not None:
        write_file(reports.table, format_steps_table(graph, outcome))
    if reports.verbose is not None:
        write_file(reports.verbose, _commands_text(graph))
    if reports.save is not None:
        _save_files(graph, reports.save)


def _commands_text(graph: Graph) -> str:
    lines = []
    for step in graph.steps:
        lines.append(step.name)
        lines += [f"    {word}" for word in step.command.argv]
    return "\n".join(lines) + "\n"


def _save_files(graph: Graph, folder: Path) -> None:
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, step in enumerate(graph.steps):
            for path in step.writes:
                if path.is_file():
                    overwrite_file(folder / f"{number:02}-{path.name}", path.read_bytes())


_INTERMEDIATE = {".ptx", ".cubin", ".fatbin", ".ltoir", ".o", ".tilebc"}
_SHF_ALLOC = 2
"""Flag of sections that are in memory when the program runs."""


class NvccReference(NamedTuple):
    """Outputs of nvcc itself.

    Attributes:
        kept: the folder with nvcc's intermediate files.
        outputs: copies of the files that nvcc wrote, by their paths.
        module_ids: nvcc's module ids of translation units, by the files that hold the ids here.
    """

    kept: Path
    outputs: Mapping[Path, Path]
    module_ids: Mapping[Path, str]


def run_nvcc(compilation: Compilation) -> NvccReference:
    """Run nvcc before the steps, which then get its module ids.

    Raises:
        FallBackToNvccError: nvcc fails, so that there is nothing to compare with.
    """
    dryrun, invocation = compilation.dryrun, compilation.invocation
    kept = compilation.folder / "nvcc-kept"
    kept.mkdir()
    # Sources of one name would overwrite each other's kept files.
    keep_flags = () if dryrun.numbered else ("--keep", "--keep-dir", str(kept))
    argv = (str(invocation.nvcc), *keep_flags, *invocation.command.dryrun_argv)
    command = Command(argv=argv, cwd=invocation.cwd, env=invocation.environment)
    if compilation.context.runner.run(command).returncode != 0:
        raise FallBackToNvccError("nvcc fails, so there is nothing to verify")
    id_files = (path for path in dryrun.transcript.module_id_files if path in compilation.texts)
    files = {path: kept / path.name for path in id_files}
    return NvccReference(
        kept=kept,
        outputs=_copy_outputs(compilation, kept),
        module_ids={ours: theirs.read_text() for ours, theirs in files.items() if theirs.is_file()},
    )


def _copy_outputs(compilation: Compilation, kept: Path) -> dict[Path, Path]:
    """Copy the outputs of nvcc, which the steps write again."""
    import shutil  # noqa: PLC0415 - only for this

    copies = {}
    written = (path for step in compilation.graph.steps for path in step.writes)
    outputs = (compilation.staged.get(path, path) for path in written)
    for number, path in enumerate(outputs):
        # Our private folder has files from the plan, and nvcc writes none there.
        if path.is_file() and not path.is_relative_to(compilation.folder):
            copies[path] = kept / f"output-{number}"
            shutil.copy2(path, copies[path])
    return copies


def compare_outputs(reference: NvccReference, compilation: Compilation) -> None:
    """Compare PTX, cubins, containers, objects and outputs with nvcc's.

    Raises:
        VerifyError: lists the files that are different.
    """
    # An archive is still in the private folder when it is compared.
    staged = {final: private for private, final in compilation.staged.items()}
    pairs = [(staged.get(path, path), theirs) for path, theirs in reference.outputs.items()]
    pairs += [
        (path, reference.kept / path.name)
        for step in compilation.dryrun.transcript.steps
        for path in step.writes
        if path.suffix in _INTERMEDIATE
    ]
    # nvcc keeps some of the files only with some options.
    both = [(ours, theirs) for ours, theirs in pairs if ours.is_file() and theirs.is_file()]
    faults = sorted({str(ours) for ours, theirs in both if _differ(ours, theirs)})
    if faults:
        raise VerifyError(
            "nvcc's own output differs for\n  " + "\n  ".join(faults),
            hint="compile without archsplit, and report this command line",
        )


def _differ(ours: Path, theirs: Path) -> bool:
    content, expected = ours.read_bytes(), theirs.read_bytes()
    return content != expected and list(_parts(content, "")) != list(_parts(expected, ""))


def _parts(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the sections with SHF_ALLOC; of a file without sections, the whole file."""
    # Imported late: other calls compare nothing.
    from archsplit.formats.elf import ELF_MAGIC, Elf  # noqa: PLC0415
    from archsplit.formats.libraries import AR_MAGIC, read_members  # noqa: PLC0415
    from archsplit.formats.reader import Window  # noqa: PLC0415

    window = Window(content, source=name)
    # A member's times and owner don't count.
    if content.startswith(AR_MAGIC):
        for member in read_members(window):
            yield from _parts(member.content.to_bytes(), member.name)
    elif content.startswith(ELF_MAGIC):
        elf = Elf(window)
        for section in elf.sections():
            if section.flags & _SHF_ALLOC:
                yield section.name, elf.content(section).to_bytes()
    else:
        yield name, content
