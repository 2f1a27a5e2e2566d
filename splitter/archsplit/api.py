"""Public Python API: one function for each verb that reports, and the records they return.

    from archsplit import api

    for row in api.inspect("torch.whl").inventory.rows():
        print(row.target, row.file_bytes)

Everything else in `archsplit`, except the build backend `archsplit.backend`, is private and may
change in any release. Paths may be strings; GPUs and targets are spelled as on the command line.
Functions print nothing and raise subclasses of `archsplit.errors.ArchsplitError`. A function
imports what it needs when it is called, so that importing this module costs next to nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ArchsplitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Literal, TypeAlias

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.model import Inventory
    from archsplit.inspect.inspection import Inspection
    from archsplit.inspect.sizes import DeviceUsage
    from archsplit.mirror.mirror import MirrorReport
    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.release.verify import CheckedRelease
    from archsplit.slim.report import SlimReport
    from archsplit.split.restore import Joined
    from archsplit.system.finding import Finding

    StrPath: TypeAlias = str | os.PathLike[str]
    Spellings: TypeAlias = str | Iterable[str]

# The records too, so that users can name the types in annotations of their own.
__all__ = [
    "ArchsplitError",
    "CheckedRelease",
    "DeviceUsage",
    "Finding",
    "Inspection",
    "Inventory",
    "Joined",
    "MirrorReport",
    "Release",
    "SlimReport",
    "build",
    "doctor",
    "inspect",
    "join",
    "mirror",
    "slim",
    "split",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import the records when the first of them is used (PEP 562)."""
    # What the interpreter and tools look for (`__path__`, `_ipython_display_`) must not import
    # anything.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    records = {record.__name__: record for record in _import_records()}
    # Kept, so that the second use costs nothing.
    globals().update(records)
    return records[name]


def _import_records() -> Iterator[type]:
    from archsplit.devicecode.model import Inventory
    from archsplit.inspect.inspection import Inspection
    from archsplit.inspect.sizes import DeviceUsage
    from archsplit.mirror.mirror import MirrorReport
    from archsplit.release.report import Release
    from archsplit.release.verify import CheckedRelease
    from archsplit.slim.report import SlimReport
    from archsplit.split.restore import Joined
    from archsplit.system.finding import Finding

    yield from (CheckedRelease, DeviceUsage, Finding, Inspection)
    yield from (Inventory, Joined, MirrorReport, Release, SlimReport)


def inspect(
    subject: StrPath,
    *,
    gpus: Spellings = (),
    kernels: bool = False,
    digest: bool = False,
    site_packages: Iterable[StrPath] = (),
) -> Inspection:
    """Return the device code in a file, wheel, folder or installed package.

    Args:
        subject: a path, or the name of an installed package.
        gpus: the GPUs to judge it for; none for all that are known.
        kernels: list the kernels too, which unpacks machine code.
        digest: compute the SHA-256 of the file.
        site_packages: folders with installed packages; none for this Python's own.

    Raises:
        InputError: there is no such path or package, or it can't be read.
        BinaryFormatError: the file is damaged, or of a kind without device code.
        TargetError: a GPU can't be parsed.
        WheelError: the wheel is damaged.
    """
    from archsplit.arch.compat import GPU_BY_CAPABILITY
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.inspection import Inspection
    from archsplit.inspect.sizes import device_usage

    # This Python's own search path, so that an installed package is found by its name.
    folders = tuple(map(Path, site_packages)) or tuple(map(Path, filter(None, sys.path)))
    capabilities = _capabilities(gpus) or tuple(GPU_BY_CAPABILITY)
    request = InspectRequest(
        subject=os.fspath(subject), site_folders=folders, digest=digest, kernels=kernels
    )
    inventory = read_inventory(request)
    return Inspection(inventory=inventory, devices=device_usage(inventory, capabilities))


def slim(
    source: StrPath,
    *,
    out: StrPath = ".",
    device: Spellings = (),
    keep: Spellings = (),
    drop: Spellings = (),
    keep_ptx: Literal["all", "newest", "none"] = "newest",
    mode: Literal["shrink", "in-place"] = "shrink",
    label: str | None = None,
    dry_run: bool = False,
) -> SlimReport:
    """Write a wheel or library again, without the device code that is not wanted.

    Exactly one of ``device``, ``keep`` and ``drop`` is given. The source never changes. If there is
    nothing to remove, the report's ``output`` is None, and its ``notes`` have the reason.

    Args:
        out: the folder to write to.
        device: keep what these GPUs take, container by container.
        keep: keep these targets.
        drop: remove these targets.
        keep_ptx: the PTX that stays in addition to ``device`` or ``keep``.
        mode: ``in-place`` keeps the size of files and only makes them pack better.
        label: mark a wheel in its version, not with a build tag.
        dry_run: write nothing.

    Raises:
        UsageError: not exactly one choice is given.
        ArchsplitError: base of all errors; the source is damaged, or the output fails its checks.
    """
    from archsplit.arch.gpu_list import require_published
    from archsplit.devicecode.file_plan import EditMode
    from archsplit.devicecode.select import PtxPolicy, Selection
    from archsplit.slim.request import SlimRequest
    from archsplit.slim.wheel import slim_file, slim_wheel

    request = SlimRequest(
        source=Path(source),
        out=Path(out),
        selection=Selection(
            devices=frozenset(_capabilities(device)),
            keep=require_published(_targets(keep) or ()),
            drop=frozenset(_targets(drop) or ()),
            ptx=PtxPolicy(keep_ptx),
        ),
        mode=EditMode(mode),
        label=label,
        dry_run=dry_run,
    )
    # By suffix, as on the command line: a wheel must have its name to be installed.
    return (slim_wheel if request.source.suffix == ".whl" else slim_file)(request, _effects())


def split(
    source: StrPath,
    *,
    out: StrPath,
    targets: Spellings | None = None,
    name: str | None = None,
    version: str | None = None,
    by: Literal["capability", "target"] = "capability",
    install: Literal["core", "all", "meta"] = "core",
    release: bool = False,
) -> Release:
    """Split a fat wheel or library into a core and one wheel per GPU kind.

    Args:
        source: a wheel or library with device code; it never changes.
        out: the folder for all wheels.
        targets: pack only what these GPUs need; None for everything.
        name: of the core; None for the fat wheel's name.
        version: of the core; None for the fat wheel's, or 0 for a library.
        by: one pack for each capability, or one for each target.
        install: the wheels that come with the core: none, all, or all by ``NAME-all``.
        release: give the core the file name of the fat wheel, to be published in its place.

    Raises:
        NothingToDoError: there is nothing to split.
        ArchsplitError: base of all errors; the source is damaged, or the wheels fail their checks.
    """
    from archsplit.devicecode.partition import PackBy
    from archsplit.split.model import InstallDefaults, SplitRequest
    from archsplit.split.sources import minimal_project, split_library
    from archsplit.split.split import split_wheel

    request = SplitRequest(
        source=Path(source),
        out=Path(out),
        name=name,
        version=version,
        by=PackBy(by),
        targets=_targets(targets),
        install=InstallDefaults(install),
        release=release,
    )
    if request.source.suffix == ".whl":
        return split_wheel(request, _effects())
    return split_library(request, _effects(), minimal_project(name, version or "0"))


def join(folder: StrPath, *, out: StrPath) -> tuple[Joined, ...]:
    """Write the fat libraries of a split again, byte for byte.

    Args:
        folder: has the core and all its packs.
        out: the folder to write to.

    Raises:
        InputError: there is not one core, or a pack is missing.
        ArchsplitError: base of all errors; a wheel is damaged.
    """
    from archsplit.split.restore import join_split

    return join_split(Path(folder), Path(out))


def mirror(
    *inputs: StrPath,
    out: StrPath,
    device: Spellings,
    split: bool = False,
    keep_ptx: Literal["all", "newest", "none"] = "newest",
    unregistered: Literal["keep", "zero"] | None = None,
    keep_proprietary: bool = False,
    extras: Iterable[str] = (),
    groups: Iterable[str] = (),
    lock_name: str = "",
    url: str = "",
    downloads: StrPath | None = None,
) -> MirrorReport:
    """Make or update a package index with the wheels of a resolution.

    Args:
        inputs: requirement files, ``pylock.toml`` or ``uv.lock`` files, of one environment.
        out: the folder of the index.
        device: the GPUs of all machines that install from it.
        split: make a core and a pack for each GPU, in place of one wheel for all GPUs.
        keep_ptx: the PTX that stays in slimmed wheels.
        unregistered: code that only a library finds; None for zeros in proven files only.
        keep_proprietary: leave wheels as they are whose licence forbids changes.
        extras: extras of a lock.
        groups: dependency groups of a lock.
        lock_name: the name of the lock; a mirror may have several.
        url: the address at which the index is served; "" for relative paths in the lock.
        downloads: a folder that keeps the originals; None to remove them after use.

    Raises:
        UsageError: no input.
        ArchsplitError: base of all errors; a wheel can't be resolved, downloaded or written.
    """
    from archsplit.devicecode.select import PtxPolicy
    from archsplit.mirror.mirror import update_mirror
    from archsplit.mirror.model import MirrorRequest
    from archsplit.system.env import output_time

    # An empty resolution would remove every wheel of an earlier one.
    if not inputs:
        raise UsageError("a mirror needs requirements or a lock")
    request = MirrorRequest(
        inputs=tuple(map(Path, inputs)),
        out=Path(out),
        devices=_capabilities(device),
        ptx=PtxPolicy(keep_ptx),
        split=split,
        keeps_proprietary=keep_proprietary,
        lock_name=lock_name,
        url=url,
        downloads=None if downloads is None else Path(downloads),
        extras=tuple(extras),
        groups=tuple(groups),
        unregistered=unregistered or "",
        now=output_time(os.environ),
    )
    return update_mirror(request, _effects())


def build(
    recipe: StrPath,
    *,
    out: StrPath,
    targets: Spellings | None = None,
    policy: str | None = None,
    nvcc: StrPath | None = None,
    jobs: int | None = None,
    core: bool = True,
) -> Release:
    """Build the core wheel and the plugin wheels of a recipe.

    The compile cache is used as `archsplit build` uses it, set by environment and file.

    Args:
        recipe: ``recipe.toml`` or its folder; a recipe for something prebuilt is split.
        out: the folder for all wheels.
        targets: build the plugins of these only; None for all of the recipe's.
        policy: the recipe's policy to build by.
        nvcc: the compiler, or the folder of its toolkit; None searches for one.
        jobs: programs at a time; None for the number of cores.
        core: False builds the plugins only.

    Raises:
        RecipeError: the recipe is wrong; the message lists every fault.
        UsageError: ``core`` or ``nvcc`` for a prebuilt file, which no nvcc compiles.
        ArchsplitError: base of all errors; a step failed; ``out`` is as it was.
    """
    from dataclasses import replace

    from archsplit.recipe.load import load
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.recipe.single_build import apply_policy_to_prebuilt

    known, effects = load(Path(recipe)), _effects(jobs=jobs)
    compiler = None if nvcc is None else Path(nvcc)
    # The same file name, two kinds of recipes: `[source]` instead of sources to compile.
    if isinstance(known, SplitRecipe):
        from archsplit.split.from_recipe import split_by_recipe
        from archsplit.system.env import build_date

        # A command of the recipe compiles, too.
        if not core or (compiler and not known.source.build):
            raise UsageError(f"core and nvcc are for sources; {known.file} has a prebuilt file")
        if policy is not None:
            known = apply_policy_to_prebuilt(known, policy, day=build_date(effects.environment))
        wanted = _targets(targets)
        return split_by_recipe(known, effects, out=Path(out), targets=wanted, nvcc=compiler)
    from archsplit.build.pipeline import build_recipe
    from archsplit.build.plan import BuildRequest
    from archsplit.cache.config import active_settings

    request = BuildRequest(
        recipe=known,
        targets=_targets(targets),
        core=core,
        nvcc=(compiler,) if compiler else (),
        policy=policy,
    )
    effects = replace(effects, cache=active_settings(effects.environment))
    return build_recipe(request, effects, out=Path(out))


def verify(folder: StrPath, *, targets: Spellings | None = None) -> CheckedRelease:
    """Read every wheel of a release again, and check the release as a whole.

    Args:
        folder: written by `build` or `split`.
        targets: the only plugins that have to be there; None for all.

    Raises:
        VerifyError: ``findings`` has every difference as a record.
        InputError: the folder has no wheel.
    """
    from archsplit.release.checks import CheckScope
    from archsplit.release.verify import verify_release

    return verify_release(Path(folder), _effects(), CheckScope(targets=_targets(targets)))


def doctor(package: str, *, full: bool = False) -> dict[str, Any]:
    """Return which plugin serves which GPU for an installed core.

    The core's own doctor runs in a child process; the core is not imported. The result is the
    content of ``python -m PACKAGE.doctor --json``; its ``schema`` changes when a field is renamed
    or removed.

    Args:
        package: the core's import package, its folder, or its distribution.
        full: read all of every plugin, not only its index.

    Raises:
        InputError: nothing of that name is installed, or it is not a core.
        ToolFailedError: the doctor crashed.
    """
    from archsplit.release.installed_core import doctor_report

    return doctor_report(package, full=full, environment=os.environ)


def _effects(*, jobs: int | None = 1) -> Effects:
    from archsplit.release.context import Effects
    from archsplit.system.resources import available_cores
    from archsplit.system.terminal import SilentProgress

    # No progress: a library that prints disturbs notebooks and services. One job is the default,
    # because a split has two workers of its own.
    return Effects(
        progress=SilentProgress(),
        environment=os.environ,
        jobs=available_cores() if jobs is None else jobs,
    )


def _targets(spellings: Spellings | None) -> tuple[Target, ...] | None:
    from archsplit.arch.gpu_list import parse_gpu_targets

    if spellings is None:
        return None
    # Each entry may itself be a list, "9.0,12.0".
    found = (one for text in _texts(spellings) for one in parse_gpu_targets(text))
    return tuple(dict.fromkeys(found))


def _capabilities(spellings: Spellings) -> tuple[Capability, ...]:
    from archsplit.arch.gpu_list import parse_capabilities

    found = (one for text in _texts(spellings) for one in parse_capabilities(text))
    return tuple(dict.fromkeys(found))


def _texts(spellings: Spellings) -> Iterable[str]:
    # A string is iterable too, letter by letter.
    return [spellings] if isinstance(spellings, str) else spellings
