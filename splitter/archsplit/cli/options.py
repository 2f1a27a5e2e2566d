"""Options that several verbs share, and the effects that the command line brings in."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.gpu_list import parse_capabilities, parse_gpu_targets, parse_target_patterns
from archsplit.build.plan import BuildRequest
from archsplit.release.context import Effects
from archsplit.system.cores import available_cores, job_count
from archsplit.system.nvidia import gpus_here
from archsplit.system.progress import Silent, shown_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from archsplit.arch.target import Capability, Target

    # argparse has no public name for what add_subparsers returns.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001
    from archsplit.release.context import Effects

GPU_LIST = 'sm_90,compute_120, 9.0, H100, "RTX 4090" or native'
"""The spellings of GPUs, for help texts; `archsplit.arch.gpu_list` has all."""


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``build`` and ``plan`` have in common."""
    parser.add_argument("recipe", type=Path, help="recipe.toml, or the folder that holds it")
    parser.add_argument(
        "--targets",
        metavar="LIST",
        help=f"build the plugins of these targets only: {GPU_LIST}",
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


def build_request(arguments: argparse.Namespace) -> BuildRequest:
    """What the recipe options ask for."""
    return BuildRequest(
        recipe=arguments.recipe,
        targets=targets(arguments.targets),
        nvcc=arguments.nvcc,
        policy=arguments.policy,
    )


def targets(text: str | None) -> tuple[Target, ...] | None:
    """Read an option that takes a list of targets or GPUs; None where it isn't given.

    Raises:
        TargetError: an entry can't be read.
    """
    return None if text is None else parse_gpu_targets(text, detect=gpus_here)


def capabilities(texts: Iterable[str]) -> tuple[Capability, ...]:
    """Read a repeatable option that takes GPUs, without repetition.

    Raises:
        TargetError: an entry can't be read.
    """
    found = (one for text in texts for one in parse_capabilities(text, detect=gpus_here))
    return tuple(dict.fromkeys(found))


def target_patterns(texts: Iterable[str]) -> tuple[str, ...]:
    """Read a repeatable option that takes targets, GPUs or shell patterns of targets.

    Raises:
        TargetError: an entry can't be read.
    """
    found = (one for text in texts for one in parse_target_patterns(text, detect=gpus_here))
    return tuple(dict.fromkeys(found))


@contextlib.contextmanager
def effects(console: Console, *, jobs: int = 1, quiet: bool = False) -> Iterator[Effects]:
    """The real effects: child processes, this environment, a display on ``console``."""
    from archsplit.release.context import Effects

    with contextlib.ExitStack() as stack:
        progress = Silent() if quiet else stack.enter_context(shown_on(console))
        yield Effects(progress=progress, environment=os.environ, jobs=jobs)


def _job_count(text: str) -> int:
    try:
        return job_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
