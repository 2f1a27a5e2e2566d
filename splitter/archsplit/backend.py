"""Build backend (PEP 517, PEP 660): a project with a recipe.toml beside its pyproject.toml.

``python -m build --wheel`` gives the core, ``--config-setting target=sm_90`` a plugin, both by the
code that ``archsplit build`` runs. ``--config-setting nvcc=PATH``, ``jobs=N`` and ``policy=NAME``
are the options of ``archsplit build``; a source distribution is the same for all policies.

``pip install -e .`` leaves the Python files in the source tree. ``target`` adds the plugins of one
or more targets there, because only plugins of the same build fit the core.

The metadata of a wheel is made without a compile. A ``[project]`` table in pyproject.toml must
agree with the recipe: see `archsplit.recipe.pyproject_table`.

The compile cache is used as ``archsplit build`` uses it, set by environment and file.
``--config-setting cache=off`` turns it off; the setting has the values of ``ARCHSPLIT_CACHE``.

``remote=URL`` runs the steps on a farm.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.gpu_list import parse_gpu_targets
from archsplit.build.backend_hooks import (
    METADATA_FILE,
    build_editable_core,
    read_metadata,
    write_dist_info,
)
from archsplit.build.pipeline import build_recipe, write_source
from archsplit.build.plan import BuildRequest, requested_recipe
from archsplit.cache.config import active_settings
from archsplit.errors import UsageError, VerifyError
from archsplit.recipe.load import load_recipe
from archsplit.recipe.pyproject_table import check_project_table
from archsplit.release.context import Effects
from archsplit.remote.endpoint import EngineChoice, parse_engine
from archsplit.system.fs import read_file, temporary_dir
from archsplit.system.resources import available_cores, parse_job_count
from archsplit.system.safe_output import SafeConsole
from archsplit.system.terminal import SilentProgress, progress_display
from archsplit.wheels.metadata import encode_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.arch.target import Target

_FARM_SETTINGS = ("remote", "remote-jobs", "remote-ca", "remote-cert", "remote-key")
_SETTINGS = ("target", "nvcc", "jobs", "policy", "cache", *_FARM_SETTINGS)
_TOKEN_VARIABLE = "ARCHSPLIT_REMOTE_TOKEN"
_CONSOLE = SafeConsole(stderr=True, highlight=False, emoji=False)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, str | list[str]] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the core, or one plugin; PEP 517's mandatory hook.

    Raises:
        UsageError: a setting that doesn't exist.
        VerifyError: the wheel's metadata would differ from ``metadata_directory``.
        ArchsplitError: the build failed.
    """
    call = _call(config_settings)
    target = call.target
    request = replace(call.request, targets=(target,) if target else (), core=target is None)
    _check_metadata(call, metadata_directory)
    wanted = "core" if target is None else "plugin"
    # The display ends with the line of the last stage.
    with temporary_dir() as folder, progress_display(_CONSOLE) as progress:
        report = build_recipe(request, replace(call.effects, progress=progress), out=folder)
        (name,) = (wheel.file for wheel in report.wheels if wheel.role == wanted)
        shutil.copyfile(folder / name, Path(wheel_directory) / name)
    return name


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, str | list[str]] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a core whose Python files stay in the source tree; PEP 660's mandatory hook.

    Raises:
        ArchsplitError: see `build_wheel`.
    """
    call = _call(config_settings, is_editable=True)
    _check_metadata(call, metadata_directory)
    request = replace(call.request, targets=call.targets)
    with progress_display(_CONSOLE) as progress:
        effects = replace(call.effects, progress=progress)
        return build_editable_core(request, effects, out=Path(wheel_directory)).name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Mapping[str, str | list[str]] | None = None
) -> str:
    """Write the metadata of the core, or of one plugin, without a compile.

    Raises:
        ArchsplitError: the recipe, a setting or a target is not usable.
    """
    call = _call(config_settings)
    out = Path(metadata_directory)
    return write_dist_info(call.request, call.effects, target=call.target, out=out).name


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Mapping[str, str | list[str]] | None = None
) -> str:
    """Write the metadata of the core, whichever targets it is built with.

    Raises:
        ArchsplitError: the recipe or a setting is not usable.
    """
    call = _call(config_settings, is_editable=True)
    out = Path(metadata_directory)
    return write_dist_info(call.request, call.effects, target=None, out=out).name


def build_sdist(
    sdist_directory: str, config_settings: Mapping[str, str | list[str]] | None = None
) -> str:
    """Pack the recipe and everything it names; PEP 517's mandatory hook.

    Raises:
        UsageError: a setting that doesn't exist.
        ArchsplitError: the recipe is wrong or a file can't be read.
    """
    settings = _checked(config_settings or {})
    # All policies have the same source distribution, the release's.
    settings = {name: text for name, text in settings.items() if name != "policy"}
    call = _call(settings)
    return write_source(call.request.recipe, call.effects, out=Path(sdist_directory)).name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a hook, with its settings as the other modules take them.

    Attributes:
        targets: the targets of ``target``; () without that setting.
        is_editable: True for the hooks that put plugins into the core's wheel.
    """

    request: BuildRequest
    effects: Effects
    targets: tuple[Target, ...]
    is_editable: bool

    @property
    def target(self) -> Target | None:
        """Target of the plugin; None for a core."""
        return self.targets[0] if self.targets and not self.is_editable else None


def _call(
    config_settings: Mapping[str, str | list[str]] | None, *, is_editable: bool = False
) -> _Call:
    settings = _checked(config_settings or {})
    request = BuildRequest(
        recipe=load_recipe(Path.cwd()),
        nvcc=(Path(settings["nvcc"]),) if "nvcc" in settings else (),
        policy=settings.get("policy"),
    )
    effects = _effects(settings)
    targets = _targets(settings["target"], several=is_editable) if "target" in settings else ()
    # Resolvers have read the table before any hook ran.
    recipe = requested_recipe(request, effects)
    check_project_table(recipe.project, recipe.root)
    return _Call(request=request, effects=effects, targets=targets, is_editable=is_editable)


def _check_metadata(call: _Call, folder: str | None) -> None:
    """Compare the wheel's metadata with the metadata that a frontend asked for before.

    Raises:
        VerifyError: they are different: a file, or the date of a policy's version, has changed.
    """
    if folder is None:
        return
    metadata, _ = read_metadata(call.request, call.effects, target=call.target)
    if read_file(Path(folder) / METADATA_FILE) != encode_metadata(metadata):
        raise VerifyError(
            f"the metadata of {metadata.name} {metadata.version} differs from the one in {folder}",
            hint="run the build again: a file, a setting or the date has changed in the meantime",
        )


def _checked(settings: Mapping[str, str | list[str]]) -> Mapping[str, str]:
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise UsageError(
            f"unknown --config-setting {', '.join(unknown)}",
            hint=f"known settings: {', '.join(_SETTINGS)}",
        )
    repeated = sorted(name for name, value in settings.items() if not isinstance(value, str))
    if repeated:
        raise UsageError(f"--config-setting {', '.join(repeated)} is given more than once")
    return {name: str(value) for name, value in settings.items()}


def _targets(text: str, *, several: bool) -> tuple[Target, ...]:
    targets = parse_gpu_targets(text)
    if len(targets) != 1 and not several:
        raise UsageError(
            f"--config-setting target={text} is more than one target",
            hint="one wheel is built at a time: name one target, such as sm_90",
        )
    return targets


def _jobs(text: str, *, name: str = "jobs") -> int:
    try:
        return parse_job_count(text)
    except ValueError:
        raise UsageError(f"--config-setting {name}={text} is not a number of 1 or more") from None


def _engine(settings: Mapping[str, str]) -> EngineChoice | None:
    """Return the farm that the settings name; None for this machine."""
    if "remote" not in settings:
        # Without its address the build would silently run on this machine.
        if unsupported := sorted(settings.keys() & {*_FARM_SETTINGS}):
            raise UsageError(
                f"--config-setting {unsupported[0]} needs a build farm",
                hint="name one: --config-setting remote=grpcs://host:port/instance",
            )
        return None
    ca, cert, key = (
        Path(settings[name]) if name in settings else None for name in _FARM_SETTINGS[2:]
    )
    endpoint = parse_engine(
        settings["remote"],
        token=os.environ.get(_TOKEN_VARIABLE, ""),
        certificates=ca,
        certificate=cert,
        key=key,
    )
    # The default of `archsplit build --remote-jobs`.
    jobs = _jobs(settings.get("remote-jobs", "64"), name="remote-jobs")
    return EngineChoice(endpoint=endpoint, jobs=jobs)


def _effects(settings: Mapping[str, str]) -> Effects:
    return Effects(
        progress=SilentProgress(),
        environment=os.environ,
        jobs=_jobs(settings.get("jobs", str(available_cores()))),
        cache=active_settings(os.environ, mode=settings.get("cache")),
        engine=_engine(settings),
    )
