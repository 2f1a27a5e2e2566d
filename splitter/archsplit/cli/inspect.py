"""``archsplit inspect``: the device code in a library, wheel, folder or installed package."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import find_subject, finding_files
from archsplit.cli.verbs import add_verb
from archsplit.errors import OutputError, TargetError, UsageError, VerifyError
from archsplit.system.env import output_time
from archsplit.system.fs import output_errors, read_file, write_file
from archsplit.system.outputs import append_to_file
from archsplit.system.units import parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Inventory
    from archsplit.devicecode.stats import SizeLimits
    from archsplit.inspect.html import PageOrigin
    from archsplit.inspect.sizes import DeviceUsage

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


_OPTIONS = f"""
subject           a .so, .a, .o, .fatbin, .cubin, .pack or .whl file, a folder, an installed package
                  (a core with its plugins), or a wheel of the index: NAME==VERSION or a URL
{options.PLACES}
{options.DEVICE}
--targets         add the tables of targets and files
--kernels         list the kernels (slower)
"""
_OUTPUTS = f"{options.JSON}\n{options.HTML}\n{options.SUMMARY}"
_LIMITS = f"""
--budget SIZE      size limit of all files together, as 100MB
--max-target TARGET=SIZE...  limit of the bytes of a target, as sm_90=30MB; may be repeated
--forbid TARGET...  targets or GPUs that must have no code: compute_*, sm_90, H100
--require TARGET...  targets or GPUs that must have code: sm_90, H100
{options.FINDINGS}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "inspect",
        "archsplit inspect xgboost==3.2.0",
        "archsplit inspect torch --device H100 --require sm_90",
    )
    options.add_options(parser, _OPTIONS)
    options.add_options(parser.add_argument_group("output"), _OUTPUTS)
    limits = parser.add_argument_group("limits", "exit code 9 when one is broken")
    options.add_options(limits, _LIMITS)
    parser.set_defaults(run=run, command_line=())


def site_folders(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Return the folders with installed packages.

    Raises:
        InputError: one is an environment, and not the folder of its packages.
    """
    from archsplit.system.installers import refuse_environment

    for folder in arguments.site_packages or ():
        refuse_environment(folder)
    return tuple(arguments.site_packages or map(Path, filter(None, sys.path)))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Inspect, print, and check the limits."""
    from archsplit.arch.compat import GPU_BY_CAPABILITY
    from archsplit.devicecode.stats import limit_findings
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.sizes import device_usage

    limits = _limits(arguments)
    capabilities = options.capabilities(arguments.device) or tuple(GPU_BY_CAPABILITY)
    # After the options: it may download a wheel.
    folders = site_folders(arguments)
    subject = arguments.subject = find_subject(arguments.subject, folders, console)
    request = InspectRequest(
        subject=subject,
        site_folders=folders,
        digest=arguments.json,
        kernels=arguments.kernels,
        # An environment has hundreds of libraries; a sample of each would take minutes.
        zstd=Path(subject).is_file(),
    )
    with options.show_activity(console, f"reading {subject}", f"Read {subject}") as workers:
        inventory = read_inventory(replace(request, workers=workers))
    _show(inventory, device_usage(inventory, capabilities), arguments)
    report_problems(inventory, console)
    with finding_files(arguments, check="inspect", checked=subject):
        findings = limit_findings(inventory, limits)
        if findings:
            raise VerifyError(f"{inventory.name} breaks its limits:", findings=findings)
    return 0


def report_problems(inventory: Inventory, console: Console) -> None:
    """Print the files that could not be read, to standard error."""
    for file in inventory.files:
        if file.problem is not None:
            options.say(console, f"warning: {file.path}: {file.problem}")


def write_summary(arguments: argparse.Namespace, text: Callable[[], str]) -> None:
    """Append a report where ``--summary`` asks for it.

    Raises:
        UsageError: no file is named, and the command does not run in a job of GitHub Actions.
    """
    if arguments.summary is None:
        return
    name = arguments.summary or os.environ.get(_SUMMARY_VARIABLE, "")
    if not name:
        raise UsageError(
            f"--summary needs a file: ${_SUMMARY_VARIABLE} is not set", hint="--summary FILE"
        )
    path = Path(name)
    if not path.is_file():
        write_file(path, text())
        return
    # Archives and libraries have a zero among their first bytes.
    if b"\0" in read_file(path)[:64]:
        raise OutputError(f"{path}, of --summary, isn't text", hint="name another file")
    # All steps of a job share one file, so what is there stays.
    with output_errors(path):
        append_to_file(path, text().encode(errors="backslashreplace"))


def page_origin(arguments: argparse.Namespace) -> PageOrigin:
    """Return the date and the command for the header of a page."""
    from archsplit.inspect.html import PageOrigin

    # Today's date would make a page differ at each run, which reproducible builds forbid.
    date = time.strftime("%Y-%m-%d", time.gmtime(output_time(os.environ)))
    return PageOrigin(command=arguments.command_line, date=date)


def _show(
    inventory: Inventory, devices: tuple[DeviceUsage, ...], arguments: argparse.Namespace
) -> None:
    from archsplit.inspect.inspection import inventory_json, inventory_markdown
    from archsplit.inspect.text import inventory_text

    if arguments.html is not None:
        # Imported where it is needed: most of the time of a short command is its imports.
        from archsplit.inspect.html import inventory_page

        origin = page_origin(arguments)
        page = inventory_page(inventory, devices, origin, gpu=_required_gpu(arguments))
        write_file(arguments.html, page)
    write_summary(arguments, lambda: inventory_markdown(inventory, devices))
    if arguments.json:
        options.show(inventory_json(inventory, devices))
    else:
        options.print_all(
            inventory_text(
                inventory,
                devices,
                is_asked=bool(arguments.device),
                required=_required_gpu(arguments),
                names=_names(arguments.device),
                targets=arguments.targets,
            )
        )


def _required_gpu(arguments: argparse.Namespace) -> Capability | None:
    """Return the capability of the first target that must have code; None without one."""
    from archsplit.arch.target import Target

    for pattern in options.target_patterns(arguments.require):
        with contextlib.suppress(TargetError):
            return Target.parse(pattern).capability
    return None


def _names(texts: Iterable[str]) -> dict[Capability, str]:
    """Return the products that the user named, by capability."""
    from archsplit.arch.gpu_list import product_capability

    words = {word.strip() for text in texts for word in text.split(",")}
    found = ((product_capability(word), word) for word in sorted(words))
    return {capability: word for capability, word in found if capability is not None}


def _limits(arguments: argparse.Namespace) -> SizeLimits:
    from archsplit.devicecode.stats import SizeLimits

    return SizeLimits(
        budget=arguments.budget,
        max_targets=tuple(chain.from_iterable(map(_target_limits, arguments.max_target))),
        forbid=options.target_patterns(arguments.forbid),
        require=options.target_patterns(arguments.require),
    )


def _target_limits(text: str) -> Iterator[tuple[str, int]]:
    names, equals, size = text.rpartition("=")
    if not (names and equals):
        raise UsageError(f"invalid limit for a target: {text!r}", hint="write it like sm_90=30MB")
    for pattern in options.target_patterns([names]):
        yield pattern, parse_size(size)
