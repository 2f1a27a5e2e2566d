"""Options that several verbs share, and the effects of the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.errors import InputError, OutputError, UsageError, WheelError
from archsplit.system.resources import parse_job_count
from archsplit.system.signals import deferred_signals
from archsplit.system.units import count_text, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType

    from archsplit.arch.target import Capability, Target
    from archsplit.build.plan import BuildRequest
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.release.variants import Variant
    from archsplit.remote.endpoint import DaskEndpoint, Endpoint, EngineChoice
    from archsplit.system.terminal import ActivityBar
    from archsplit.system.worker_processes import WorkerProcesses

    # argparse has no public name for what add_subparsers returns.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

GPU_LIST = 'sm_90,compute_120, 9.0, H100, "RTX 4090" or native'
"""Examples of GPU names for help texts; `archsplit.arch.gpu_list` parses all forms."""
_DISPLAY_END = 1.0
"""Seconds in which the thread of a stopped display ends; it takes none but on a busy machine."""
_LONG = 3.0
"""Seconds of a silent command from which a log gets a line about it."""
_REPORT_MARKS = {"html": b"<!DOCTYPE", "sarif": b"/sarif-2.1.0.json", "junit": b"<testsuites"}
"""Bytes among the first 512 of each kind of report, by its option."""


def check_report_files(arguments: argparse.Namespace) -> None:
    """Refuse options that would replace another file than such a report, as the checked wheel.

    Raises:
        OutputError: names the file.
    """
    from archsplit.system.fs import input_errors

    for name, mark in _REPORT_MARKS.items():
        path = getattr(arguments, name, None)
        # Devices and FIFOs are written to.
        if path is None or not path.is_file():
            continue
        with input_errors(path), path.open("rb") as file:
            head = file.read(512)
        if head and mark not in head:
            fault = f"{path} would be replaced by --{name}, and isn't such a report"
            raise OutputError(fault, hint="remove it, or name another file")


@contextlib.contextmanager
def value_of(option: str) -> Iterator[None]:
    """Name the option in the error about its value."""
    try:
        yield
    except WheelError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def add_options(
    parser: argparse._ActionsContainer,
    table: str,
    *,
    types: Mapping[str, Callable[[str], object]] | None = None,
    **defaults: object,
) -> None:
    """Add the options of a table that looks like the help.

    A row has the names of an option, the word for its value and, after two spaces, its help; deeper
    lines continue the help. A row without a dash is a positional argument. The word gives the type
    (`_TYPES`); ``{a,b}`` lists all values, and an option without a word is a switch. Marks after
    the word: ``...`` for an option that may be repeated, ``+`` and ``*`` for several values, ``?``
    for a value that may be missing, ``!`` for an option that must be given.

    Args:
        types: functions for more words.
        defaults: by the names of the options; otherwise None, an empty list or False.
    """
    readers = {**_TYPES, **(types or {})}
    for row in re.split(r"\n(?=\S)", table.strip()):
        head, _, text = row.partition("  ")
        words = head.split()
        names = [word for word in words if word.startswith("-")] or words[:1]
        value = "".join(words[len(names) :])
        keywords = _keywords(value, readers, is_option=names[0].startswith("-"))
        parser.add_argument(*names, help=" ".join(text.split()), **keywords)
    parser.set_defaults(**defaults)


def _keywords(
    value: str, types: Mapping[str, Callable[[str], object]], *, is_option: bool
) -> dict[str, Any]:
    """Return argparse's keywords for the word and the mark of a value."""
    if not value:
        return {"action": "store_true"} if is_option else {}
    word = value.rstrip("+*?!.")
    keywords: dict[str, Any] = {"metavar": word, "type": types.get(word, str)}
    if word.startswith("{"):
        keywords = {"choices": word.strip("{}").split(",")}
    mark = value[len(word) :]
    if mark == "!":
        return {**keywords, "required": True}
    if mark == "?" and is_option:
        # A missing value is "", and not the working folder.
        keywords |= {"const": "", "type": str}
    elif mark and is_option:
        keywords["default"] = []
    how = {"action": "append"} if mark == "..." else {"nargs": mark}
    return {**keywords, **how} if mark else keywords


def _job_count(text: str) -> int:
    try:
        return parse_job_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    if (size := parse_size(text)) < 1:
        raise UsageError(f"{text!r} is not a size of at least one byte")
    return size


_TYPES: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("DIR", "FILE", "PATH"), Path),
    "MAJOR": int,
    "N": _job_count,
    "SIZE": _size,
}
"""Functions for values, by the word for the value."""

JSON = "--json  print JSON, for programs"
QUIET = "--quiet  no progress"
OUT = "--out DIR!  the folder to write to; made if it is missing"
JOBS = "--jobs -j N  programs at a time (default: the number of cores)"
MEMORY = "--memory SIZE  memory limit for all programs together, as 24G (default: the machine's)"
TARGETS = f"--targets LIST  only these targets: {GPU_LIST}"
DEVICE = """
--device GPU...  only the device code that these GPUs take: 9.0, sm_90, H100, native; a list, or
                 repeated
"""
DRY_RUN = "--dry-run  print what would be done, and change nothing"
COPY = "--copy  if there is nothing to do, copy the file and end with 0"
IGNORE_RECORD = "--ignore-record  use files that differ from their hash in RECORD, too, as pip does"
EXPLAIN = "--explain  print hits and miss reasons of each step"
HTML = "--html FILE  write a page with pictures"
SUMMARY = """
--summary FILE?  append a report in Markdown to FILE (default: the job summary of GitHub Actions,
                 $GITHUB_STEP_SUMMARY)
"""
FINDINGS = """
--sarif FILE  write the findings as SARIF, for code scanning
--junit FILE  write the findings as JUnit XML, a test report
"""
PLACES = """
--site-packages DIR...  where packages are installed; may be repeated (default: this Python's own)
"""
URL = "--url URL  the address that the folder is served from, for links in pages and locks"
RECOMPRESS = """
--recompress {9,19,off}  store images as zstd frames of this level, for drivers since CUDA 12.4; 19
               takes 25 times as long; off keeps the vendor's bytes (default: %(default)s)
"""
EDITS = (
    RECOMPRESS
    + """
--keep-ptx {newest,none,all}  which PTX stays; the newest of each container is what GPUs that are
               newer than all machine code need to start (default: newest)
--unregistered {keep,zero}  machine code that only the library finds, and that these GPUs can't run:
               keep it, or overwrite it with zeros where it lies (default: zero for versions of
               libraries whose results a GPU has proven to stay equal, keep for others)
"""
)
NVCC = """
--nvcc PATH  nvcc, or its toolkit's folder (default: CUDA_HOME, CUDA_PATH, PATH, index wheels)
"""
REMOTE = "the farm: grpcs://host:port/instance; the scheduler: tls://host:port"
RECIPE = f"""
recipe PATH      recipe.toml, or the folder that holds it
{TARGETS}
--policy NAME    build by the recipe's [policy.NAME]: fewer targets, a dated version, a size budget
--cuda MAJOR     build the release of one CUDA major of the recipe's cuda.majors, as in 12
--machine {{x86_64,aarch64}}  the machine that the wheels are for: another one than this is
                 cross-compiled (default: this machine)
{JOBS}
--nvcc PATH...   nvcc, or its toolkit's folder (default: CUDA_HOME, CUDA_PATH, PATH, index wheels);
                 one for each major of a recipe with cuda.majors, which are also found in
                 /usr/local/cuda-*
"""
CERTIFICATES = """
--remote-ca FILE    certificates of the authority of the server (PEM)
--remote-cert FILE  certificate of this machine (PEM)
--remote-key FILE   key of this machine's certificate (PEM)
"""
PROPERTY = """
--remote-property NAME=VALUE...  a property that the farm's workers must have; may be repeated
"""
ENGINE = f"""
--remote URL     run the steps on a farm with the Remote Execution API, grpcs://host:port/instance,
                 or on a cluster with dask's scheduler, tls://host:port (default: on this machine)
--remote-jobs N  most steps on the farm at a time (default: %(default)s)
{PROPERTY.strip()}
{CERTIFICATES.strip()}
"""
CACHE = "--cache MODE  the compile cache: on, read-only, verify (compile and compare) or off"
WITHOUT = """
--without CELL...  this cell of the release may have no wheel: a name or pattern such as
                   'cp310-*aarch64*' or '*:9.0'; may be repeated
"""
RELEASE_EXCEPTIONS = f"""
--allow-missing-kernels PATTERN...  kernels of a built release that some targets may lack: names,
                 mangled or readable, with * and ? as in a shell; may be repeated
{WITHOUT.strip()}
"""
VARIANTS = """
--variants  experimental: also write the core as wheel variants (PEP 825, a draft), into the folder
            variants of the output; each requires the plugins of some GPUs
"""


def for_machine(effects: Effects, arguments: argparse.Namespace) -> Effects:
    """Return the effects for the machine of ``--machine``."""
    from dataclasses import replace

    return replace(effects, machine=arguments.machine) if arguments.machine else effects


def build_request(recipe: Recipe, arguments: argparse.Namespace) -> BuildRequest:
    """Return the build request from the recipe options."""
    from archsplit.build.plan import BuildRequest

    return BuildRequest(
        recipe=recipe,
        targets=targets(arguments.targets),
        nvcc=tuple(arguments.nvcc),
        policy=arguments.policy,
        cuda_major=arguments.cuda,
    )


def targets(text: str | None) -> tuple[Target, ...] | None:
    """Read an option that takes a list of targets or GPUs; None if it is not given.

    Raises:
        TargetError: an entry can't be read.
    """
    from archsplit.arch.gpu_list import parse_gpu_targets

    # None means all targets; an empty list would mean none.
    return None if text is None else parse_gpu_targets(text)


def capabilities(texts: Sequence[str]) -> tuple[Capability, ...]:
    """Read a repeatable option that takes GPUs, without repetition.

    Raises:
        TargetError: an entry can't be read.
    """
    from archsplit.arch.gpu_list import parse_capabilities

    return parse_capabilities(",".join(texts)) if texts else ()


def target_patterns(texts: Sequence[str]) -> tuple[str, ...]:
    """Read a repeatable option that takes targets, GPUs or shell patterns of targets.

    Raises:
        TargetError: an entry can't be read.
    """
    from archsplit.arch.gpu_list import parse_target_patterns

    return parse_target_patterns(",".join(texts)) if texts else ()


def show(text: object, *, end: str = "\n") -> None:
    """Print to standard output, which has nothing but data."""
    print(text, end=end)  # noqa: T201 - the one place


def json_text(content: object) -> str:
    """Return the text that ``--json`` prints for a content."""
    return json.dumps(content, indent=2)


def say(console: Console, text: str) -> None:
    """Print a message to standard error, in one piece and without markup."""
    console.print(text, markup=False, soft_wrap=True)


def print_all(parts: Iterable[RenderableType], width: int = 140) -> None:
    """Print to standard output: as wide as the terminal, or ``width`` in a pipe."""
    from rich.text import Text

    from archsplit.system.safe_output import SafeConsole

    out = SafeConsole(highlight=False, markup=False, emoji=False)
    # rich assumes 80 columns for a pipe, which would cut tables.
    if not out.is_terminal:
        out.width = width
    for part in parts:
        # A command or a table of a recipe that is wrapped can't be pasted; a log has long lines.
        is_whole = isinstance(part, str) or (not out.is_terminal and isinstance(part, Text))
        out.print(part, soft_wrap=is_whole)


@contextlib.contextmanager
def effects(console: Console, *, jobs: int = 1, quiet: bool = False) -> Iterator[Effects]:
    """Yield the real effects: child processes, this environment, a display on ``console``."""
    from archsplit.release.context import Effects
    from archsplit.system.terminal import progress_display

    with progress_display(console, quiet=quiet) as progress:
        yield Effects(progress=progress, environment=os.environ, jobs=jobs)


@contextlib.contextmanager
def show_activity(console: Console, title: str, done: str = "") -> Iterator[WorkerProcesses]:
    """Show on a terminal that a command works, as long as the block runs.

    Args:
        done: the line about a long block in a log, with a verb in the past; "" for no line.

    Yields:
        Permission to use worker processes, which pauses the display while they are forked.
    """
    from archsplit.system.worker_processes import WorkerProcesses

    # A log would get a line for each frame of the display.
    if not console.is_terminal:
        began = time.monotonic()
        yield WorkerProcesses()
        if done and (seconds := time.monotonic() - began) >= _LONG:
            say(console, f"{done} in {seconds:.1f} s")
        return
    from archsplit.system.terminal import ActivityBar

    display = ActivityBar(console, title)
    try:
        _start(display)
        yield WorkerProcesses(pause=lambda: _paused(display), advance=display.advance)
    finally:
        _stop(display)


def _start(display: ActivityBar) -> None:
    # Ctrl-C in the middle of it would leave the cursor hidden. Where the system permits no more
    # threads, the display doesn't move.
    with deferred_signals(), contextlib.suppress(RuntimeError):
        display.start()


def _stop(display: ActivityBar) -> None:
    with deferred_signals():
        display.stop()


@contextlib.contextmanager
def _paused(display: ActivityBar) -> Iterator[None]:
    """Stop a display and wait for the end of its thread; start it again afterwards."""
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    _stop(display)
    for thread in others:
        # Another thread than the display's may go on: nothing is forked then.
        thread.join(_DISPLAY_END)
    try:
        yield
    finally:
        _start(display)


# More than the cores here: the steps run on machines of the farm.
_FARM_JOBS = 64
_TOKEN_VARIABLE = "ARCHSPLIT_REMOTE_TOKEN"


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a farm."""
    group = parser.add_argument_group(
        "a build farm", f"its bearer token is read from {_TOKEN_VARIABLE}"
    )
    add_options(group, ENGINE, remote_jobs=_FARM_JOBS)


def engine_choice(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> EngineChoice | None:
    """Return the farm of ``--remote``; None for this machine.

    Raises:
        UsageError: see `remote_endpoint`.
    """
    if arguments.remote is None:
        return None
    from archsplit.remote.endpoint import EngineChoice

    endpoint = remote_endpoint(arguments, environment)
    return EngineChoice(endpoint=endpoint, jobs=arguments.remote_jobs)


def remote_endpoint(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> Endpoint | DaskEndpoint:
    """Return the farm or the scheduler at the address in the arguments.

    Raises:
        UsageError: the address is invalid, or a secret would be sent without encryption.
    """
    from archsplit.remote.endpoint import parse_engine

    return parse_engine(
        arguments.remote,
        token=environment.get(_TOKEN_VARIABLE, ""),
        certificates=arguments.remote_ca,
        certificate=arguments.remote_cert,
        key=arguments.remote_key,
        properties=arguments.remote_property,
    )


def write_built_variants(report: Release, out: Path, console: Console) -> None:
    """Write the variants of a build.

    Raises:
        InputError: no core was built.
    """
    from archsplit.release.requirements import exact_pin
    from archsplit.release.variants import built_variants
    from archsplit.wheels.filename import plugin_distribution

    if report.core is None or report.build is None:
        raise InputError("variants need a core, and none was built", hint="leave out --no-core")
    plugins = {
        target: exact_pin(plugin_distribution(report.project, target), report.version)
        for target in report.build.targets
    }
    variants, notes = built_variants(plugins)
    for note in notes:
        say(console, f"warning: {note}")
    _write(out / report.core.file, variants, console)


def write_split_variants(report: Release, out: Path, console: Console) -> None:
    """Write the variants of a split."""
    from archsplit.release.requirements import exact_pin
    from archsplit.release.variants import split_variants

    needs = {} if report.split is None else report.split.needs
    requirements = {
        wheel.label: exact_pin(wheel.distribution, report.version) for wheel in report.plugins
    }
    variants = split_variants(needs, requirements)
    # Packs have one name for all Pythons, so the index's list is the same for all cores.
    for core in report.cores:
        _write(out / core.file, variants, console)


def _write(core: Path, variants: Sequence[Variant], console: Console) -> None:
    from archsplit.release.variants import VARIANTS_FOLDER, write_variants

    names = write_variants(core, variants, core.parent / VARIANTS_FOLDER)
    say(
        console,
        f"Wrote {count_text(len(names) - 1, 'wheel variant')} (PEP 825, a draft) and {names[-1]} in"
        f" {core.parent / VARIANTS_FOLDER}; pip and uv don't install them yet",
    )
