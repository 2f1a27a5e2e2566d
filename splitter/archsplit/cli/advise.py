"""``archsplit advise``: the targets to ship within a budget, for the GPUs that users have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import find_subject, read_text
from archsplit.cli.inspect import report_problems, site_folders
from archsplit.cli.verbs import add_verb
from archsplit.errors import BudgetError, TargetError
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from rich.console import Console

    from archsplit.inspect.advise import Advice, AdviceRequest
    from archsplit.inspect.gpu_table import GpuTable

_OPTIONS = f"""
subject        a wheel, library, device pack or installed package with device code, or the folder of
               a build or split
--gpus CSV!    the GPUs that users have: a file with columns share and gpu (a name) or capability
               (9.0); or a list, all alike: 9.0,H100,native
--budget SIZE  size limit of all files together, as 100MB
--ptx {{any,none}}  propose PTX, which drivers compile, or none (default: %(default)s)
--policy NAME  print a policy of this name for a recipe (default: nightly for a build, none for a
               prebuilt file)
{options.PLACES}
{options.JSON}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "advise",
        "archsplit advise torch.whl --gpus 7.5,H100 --budget 900MB",
        "archsplit advise split --gpus gpus.csv",
    )
    options.add_options(parser, _OPTIONS, types={"NAME": _policy}, ptx="any")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compare lists of targets, and print the best."""
    from archsplit.inspect.advice_report import advice_json, advice_text
    from archsplit.inspect.advise import AdviceRequest

    folders = site_folders(arguments)
    subject = arguments.subject = find_subject(arguments.subject, folders, console)
    users = _users(arguments.gpus)
    request = AdviceRequest(
        budget=arguments.budget,
        ptx=arguments.ptx == "any",
        policy=arguments.policy,
    )
    advice = _advice(arguments, users, request, console)
    if arguments.json:
        options.show(advice_json(advice, subject=subject))
    else:
        options.print_all(advice_text(advice, subject=subject))
    # After the report: it shows how much is missing.
    if advice.best is None:
        raise BudgetError(
            f"no list of targets fits the budget: {_least(advice)}",
            hint="raise the budget, or split it: `archsplit split` gives each GPU a wheel",
        )
    return 0


def _policy(text: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from archsplit.inspect.advise import DEFAULT_POLICY
    from archsplit.recipe.policy import PolicyName

    try:
        return str(TypeAdapter(PolicyName).validate_python(text))
    except ValidationError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a policy name, such as {DEFAULT_POLICY}"
        ) from None


def _users(gpus: str) -> GpuTable:
    """Read a table from a file, or a list of GPUs without such a file."""
    from archsplit.inspect.gpu_table import equal_shares, read_gpu_table

    # A misspelled file should be reported as missing, not as an unknown GPU.
    if not Path(gpus).exists() and not gpus.endswith(".csv"):
        return equal_shares(options.capabilities([gpus]))
    return read_gpu_table(read_text(Path(gpus)), where=gpus)


def _advice(
    arguments: argparse.Namespace, users: GpuTable, request: AdviceRequest, console: Console
) -> Advice:
    from archsplit.inspect.advise import advise, plugin_sizes
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.sizes import device_usage
    from archsplit.inspect.target_search import inventory_costs, release_costs
    from archsplit.release.identity import ReleaseKind
    from archsplit.release.report import find_report
    from archsplit.system.worker_processes import WorkerProcesses

    report = find_report(Path(arguments.subject))
    # A pack has code for several targets, so its costs are read from its images.
    if report is not None and report.kind is ReleaseKind.BUILT:
        costs = release_costs(report, name=arguments.subject)
        return advise(costs, users, request, plugin_sizes(costs, users))
    inventory = read_inventory(
        InspectRequest(
            subject=arguments.subject,
            site_folders=site_folders(arguments),
            workers=WorkerProcesses(),
        )
    )
    report_problems(inventory, console)
    costs = inventory_costs(inventory)
    # A pure Python wheel is a mistake of the caller, not an empty result.
    if not costs.sizes:
        raise TargetError(f"{costs.name} has no device code to choose from")
    plugins = {one.capability: one.used for one in device_usage(inventory, users.shares)}
    return advise(costs, users, request, plugins)


def _least(advice: Advice) -> str:
    front = advice.proposals.front
    if not front:
        return "no target that may be proposed runs on a GPU of the table"
    return f"the smallest, {' '.join(map(str, front[0].targets))}, has {size_text(front[0].size)}"
