"""Options that several verbs share, and the effects that the command line brings in."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.arch.target import parse_targets
from splitter.system.cores import available_cores, job_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from splitter.arch.target import Target

    # argparse has no public name for what add_subparsers returns.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001
    from splitter.planning import Order
    from splitter.workshop import Workshop


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``build`` and ``plan`` have in common."""
    parser.add_argument("recipe", type=Path, help="recipe.toml, or the folder that holds it")
    parser.add_argument(
        "--targets",
        metavar="LIST",
        help="build the plugins of these targets only: sm_90,compute_120; the spellings of"
        " TORCH_CUDA_ARCH_LIST and CMAKE_CUDA_ARCHITECTURES are understood too",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="build by the recipe's [policy.NAME]: fewer targets, a dated version, a size budget",
    )
    parser.add_argument(
        "--jobs",
        "-j",
        type=_job_count,
        default=available_cores(),
        metavar="N",
        help="run at most N programs at a time (default: %(default)s, the cores there are)",
    )
    add_nvcc_option(parser)


def add_nvcc_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--nvcc``."""
    parser.add_argument(
        "--nvcc",
        type=Path,
        metavar="PATH",
        help="nvcc, or its toolkit's folder (default: CUDA_HOME, CUDA_PATH, PATH, index wheels)",
    )


def order(arguments: argparse.Namespace) -> Order:
    """What the recipe options ask for."""
    from splitter.planning import Order

    targets: tuple[Target, ...] | None = None
    if arguments.targets is not None:
        targets = tuple(parse_targets(arguments.targets))
    return Order(
        recipe=arguments.recipe, targets=targets, nvcc=arguments.nvcc, policy=arguments.policy
    )


@contextlib.contextmanager
def workshop(console: Console, *, jobs: int = 1, quiet: bool = False) -> Iterator[Workshop]:
    """The real effects: child processes, this environment, a display on ``console``."""
    from splitter.system.progress import Silent, shown_on
    from splitter.workshop import Workshop

    with contextlib.ExitStack() as stack:
        progress = Silent() if quiet else stack.enter_context(shown_on(console))
        yield Workshop(progress=progress, environment=os.environ, jobs=jobs)


def _job_count(text: str) -> int:
    try:
        return job_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
