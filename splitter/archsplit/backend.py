"""The PEP 517 backend: a project with a recipe.toml beside its pyproject.toml.

``python -m build --wheel`` gives the core, ``--config-setting target=sm_90`` a plugin, both by the
code that ``archsplit build`` runs. ``--config-setting nvcc=PATH``, ``jobs=N`` and ``policy=NAME``
are that command's options; a source distribution is the same for all policies.

The compile cache is used as that command uses it, and set by environment and file.
``--config-setting cache=off`` does without; it is ``ARCHSPLIT_CACHE``.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from archsplit.arch.gpu_list import parse_gpu_targets
from archsplit.build.pipeline import build_recipe, write_source
from archsplit.build.plan import BuildRequest
from archsplit.cache.config import resolve_settings
from archsplit.errors import UsageError
from archsplit.release.context import Effects
from archsplit.system.fs import temporary_dir
from archsplit.system.nvidia import detect_gpus
from archsplit.system.progress import PlainLines
from archsplit.system.resources import available_cores, parse_job_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.arch.target import Target
    from archsplit.cache.config import Settings

_SETTINGS = ("target", "nvcc", "jobs", "policy", "cache")


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, str | list[str]] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the core, or one plugin; PEP 517's mandatory hook.

    Raises:
        UsageError: a setting that doesn't exist.
        ArchsplitError: the build failed.
    """
    del metadata_directory
    settings = _checked(config_settings or {})
    target = _target(settings["target"]) if "target" in settings else None
    order = BuildRequest(
        recipe=Path.cwd(),
        targets=() if target is None else (target,),
        core=target is None,
        nvcc=Path(settings["nvcc"]) if "nvcc" in settings else None,
        policy=settings.get("policy"),
    )
    wanted = "core" if target is None else "plugin"
    with temporary_dir() as folder:
        effects = replace(_effects(settings), cache=_cache(settings))
        report = build_recipe(order, effects, out=folder)
        (name,) = (wheel.file for wheel in report.wheels if wheel.role == wanted)
        shutil.copyfile(folder / name, Path(wheel_directory) / name)
    return name


def build_sdist(
    sdist_directory: str, config_settings: Mapping[str, str | list[str]] | None = None
) -> str:
    """Pack the recipe and everything it names; PEP 517's mandatory hook.

    Raises:
        UsageError: a setting that doesn't exist.
        ArchsplitError: the recipe is wrong or a file can't be read.
    """
    settings = _checked(config_settings or {})
    return write_source(Path.cwd(), _effects(settings), out=Path(sdist_directory)).name


def _checked(settings: Mapping[str, str | list[str]]) -> Mapping[str, str]:
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise UsageError(
            f"unknown --config-setting {', '.join(unknown)}",
            hint=f"there are {', '.join(_SETTINGS)}",
        )
    repeated = sorted(name for name, value in settings.items() if not isinstance(value, str))
    if repeated:
        raise UsageError(f"--config-setting {', '.join(repeated)} is given more than once")
    return {name: str(value) for name, value in settings.items()}


def _target(text: str) -> Target:
    targets = parse_gpu_targets(text, detect=detect_gpus)
    if len(targets) != 1:
        raise UsageError(
            f"--config-setting target={text} is more than one target",
            hint="one wheel is built at a time: name one, as in sm_90",
        )
    return targets[0]


def _jobs(text: str) -> int:
    try:
        return parse_job_count(text)
    except ValueError:
        raise UsageError(f"--config-setting jobs={text} is not a number of 1 or more") from None


def _cache(settings: Mapping[str, str]) -> Settings | None:
    found = resolve_settings({"mode": settings["cache"]} if "cache" in settings else {}, os.environ)
    return None if found.mode == "off" else found


def _effects(settings: Mapping[str, str]) -> Effects:
    return Effects(
        progress=PlainLines(Console(stderr=True, highlight=False, emoji=False)),
        environment=os.environ,
        jobs=_jobs(settings.get("jobs", str(available_cores()))),
    )
