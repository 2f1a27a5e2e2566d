"""Install exactly the plugins that serve this machine's GPUs, and repair outdated ones.

In: the core, the GPUs (of this machine, or named), and the source of the wheels. Out: one command
of pip or uv. Plugins are pinned and taken without dependencies, so that no installer ever puts
another wheel in the core's place.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from . import _bindings
from ._errors import DeviceError, PluginError
from ._folders import FOLDER, pack_folders, plugin_folders
from ._opening import start_loader
from ._origin import (
    Source,
    program,
    save_source,
    saved_source,
    source_of,
    wheels_in,
    without_credentials,
)
from ._reading import read_core
from ._safe_text import printable, wrap_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._core import Core
    from ._loader import Loader

_USABLE = ("accepted", "shadowed")
_OUTDATED = "wrong-version"
_CAPABILITY = re.compile(r"(?:sm|compute|cc)?[_-]?([1-9][0-9]?)[.]?([0-9])[af]?")


class InstallRequest(NamedTuple):
    """A request of the command line."""

    gpus: tuple[str, ...] = ()
    """Capabilities or names of GPUs; () for the GPUs of this machine."""
    source: Source = Source()
    """Places of the wheels; empty for the saved ones."""
    dry_run: bool = False


class Plan(NamedTuple):
    """Plugins to install, with a line for each GPU."""

    gpus: tuple[str, ...]
    """A line for each GPU."""
    distributions: tuple[str, ...]
    """Distributions to install."""
    reinstalls: bool
    """True if one of them is installed already, and damaged."""
    unserved: tuple[str, ...]
    """Capabilities that the release has nothing for."""


def install(request: InstallRequest) -> int:
    """Install what is missing, or say what would be; the exit status.

    Raises:
        PluginError: the core is damaged, a GPU can't be read, or no wheel can be found.
        DeviceError: no GPU was found, and no GPU is named.
    """
    core = read_core()
    if not request.gpus:
        # What is installed is for all processes; a subset is only for this one.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with start_loader(core, None, devices=not request.gpus) as loader:
        capabilities = _parse_gpus(loader, request.gpus) if request.gpus else _detect_gpus(loader)
        plan = _plan(loader, core, capabilities)
    _print_lines(f"core: {core.distribution} {core.version}", *plan.gpus)
    for each in plan.unserved:
        _print_lines(f"{core.distribution} {core.version} has no plugin for capability {each}")
    # The exit status is about the GPUs: nothing to install may be because there is nothing.
    if not plan.distributions:
        _print_lines("there is nothing to install")
        return 1 if plan.unserved else 0
    command = _command(core, plan, request)
    words = without_credentials(shlex.join(command))
    _print_lines(*wrap_command(f"{'would run' if request.dry_run else 'running'}: {words}"))
    if request.dry_run:
        return 1 if plan.unserved else 0
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise PluginError(
            f"{os.path.basename(command[0])} ended with status {status}; nothing else was changed"  # noqa: PTH119 (as in _folders)
            "\nhint: if the wheels are elsewhere, name the place with --find-links DIR or"
            " --index-url URL"
        )
    # Installers record no index, so the next update would need the option again.
    save_source(
        core, request.source if any(request.source) else saved_source(core), plan.distributions
    )
    return _check(capabilities)


def _check(capabilities: Sequence[tuple[str, str]]) -> int:
    """Ask the doctor in a new process which GPUs are served now.

    This process may have loaded the core's libraries before the plugins came.
    """
    # A folder is run, and no module: a project may have a doctor of its own.
    command = (sys.executable, FOLDER, "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        report = json.loads(done.stdout)
        served = {row["served"]["capability"] for row in report["known"] if row["served"]["target"]}
    except (KeyError, TypeError, ValueError):
        served = set()
    missing = [capability for capability, _ in capabilities if capability not in served]
    for capability in dict.fromkeys(missing):
        _print_lines(f"capability {capability} is still not served; see the report of the doctor")
    return 1 if missing else 0


def _detect_gpus(loader: Loader) -> tuple[tuple[str, str], ...]:
    """Return the capability and the name of each GPU of this machine."""
    summary = loader.summary()
    devices = [loader.device(number) for number in range(summary.device_count)]
    # A guess would download hundreds of megabytes for a GPU that is not there.
    if not devices:
        reason = _bindings.text(summary.driver_reason)
        raise DeviceError(f"{reason or 'no GPU found'}\nhint: name the GPUs, such as --gpu 9.0")
    found = tuple((f"{gpu.major}.{gpu.minor}", _bindings.text(gpu.name)) for gpu in devices)
    if "ARCHSPLIT_CAPABILITY" in os.environ:
        known = dict(_bindings.known_capabilities(loader.library))
        for capability, _ in found:
            _check_known(capability, known)
    return found


def _parse_gpus(loader: Loader, gpus: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the same for GPUs that are named.

    Raises:
        PluginError: one is not a capability and not a known name.
    """
    known = dict(_bindings.known_capabilities(loader.library))
    found = []
    for text in gpus:
        match = _CAPABILITY.fullmatch(text.strip().lower())
        capability = f"{match[1]}.{match[2]}" if match else _capability_of(text, known)
        if capability is None:
            raise PluginError(f"unknown GPU {text!r}\nhint: write the capability: --gpu 9.0")
        _check_known(capability, known)
        found.append((capability, known[capability]))
    return tuple(found)


def _check_known(capability: str, known: dict[str, str]) -> None:
    """Refuse a capability that was typed wrong: as a later GPU it would get all PTX.

    Raises:
        PluginError: no GPU that was published has it.
    """
    if capability not in known:
        raise PluginError(
            f"no GPU has the compute capability {capability}\nhint: the published ones are "
            f"{', '.join(known)}; for a later GPU, install on its machine"
        )


def _capability_of(text: str, known: dict[str, str]) -> str | None:
    """Return the capability of a product such as ``RTX 4090``, where it has only one."""
    words = text.lower().replace("nvidia", "").split()
    found = {
        capability
        for capability, gpus in known.items()
        for name in gpus.lower().split(", ")
        if words and name.split()[-len(words) :] == words
    }
    return found.pop() if len(found) == 1 else None


def _plan(loader: Loader, core: Core, capabilities: Sequence[tuple[str, str]]) -> Plan:
    verdicts = loader.verdicts()
    rows = [
        (
            _line(capability, gpu, needed, verdicts),
            [name for name in needed if _is_missing(verdicts.get(name))],
            capability if not needed else None,
        )
        for capability, gpu in capabilities
        for needed in [_needed(loader, core, capability)]
    ]
    # These were installed on purpose; after an update of only the core they are useless. Those
    # of another environment on the search path belong to the core there.
    own = loader.verdicts(_own_folder(core))
    outdated = [name for name, verdict in own.items() if verdict == _OUTDATED]
    names = dict.fromkeys([*(name for _, missing, _ in rows for name in missing), *outdated])
    distributions = dict(core.plugins())
    return Plan(
        gpus=tuple(dict.fromkeys(line for line, _, _ in rows)),
        distributions=tuple(distributions[name] for name in names if name in distributions),
        reinstalls=any(verdicts.get(name, _OUTDATED) != _OUTDATED for name in names),
        unserved=tuple(dict.fromkeys(one for _, _, one in rows if one is not None)),
    )


def _line(capability: str, gpu: str, needed: Sequence[str], verdicts: dict[str, str]) -> str:
    states = ", ".join(
        f"{name} ({verdict if _is_missing(verdict) else 'installed'})"
        for name in needed
        for verdict in [verdicts.get(name, "missing")]
    )
    return f"{gpu}, capability {capability}: {states or 'nothing'}"


def _is_missing(verdict: str | None) -> bool:
    """Return True if a plugin is not in use and a new installation may help."""
    return verdict not in (*_USABLE, "driver-too-old", "unsafe")


def _needed(loader: Loader, core: Core, capability: str) -> tuple[str, ...]:
    """Return the plugins that a GPU takes, by the names of their folders."""
    if core.is_split:
        return core.packs_for(capability)
    target = _bindings.best_target(loader.library, capability, tuple(core.targets))
    return () if target is None else (target,)


def _own_folder(core: Core) -> str:
    """Return the folder of the plugins beside the core, where installers put them."""
    return (pack_folders if core.is_split else plugin_folders)(core)[0]


def _command(core: Core, plan: Plan, request: InstallRequest) -> tuple[str, ...]:
    """Return the installer's command line.

    Raises:
        PluginError: no installer was found, or the folder of the core's wheel has no such plugin.
    """
    installer = program(core)
    wanted = list(plan.distributions)
    words = ["--no-deps", "--only-binary=:all:"]
    if installer.target is not None:
        # pip replaces whole folders there, so all that is in use has to come again.
        wanted += [name for name in _installed(core) if name not in wanted]
        words += ["--upgrade", "--target", installer.target]
    # Installers skip a version that is there, even if its files are damaged.
    if plan.reinstalls:
        words.append("--reinstall" if installer.name == "uv" else "--force-reinstall")
    return (*installer.install, *words, *_wheel_words(core, wanted, request.source))


def _wheel_words(core: Core, wanted: Sequence[str], requested: Source) -> tuple[str, ...]:
    """Return the options and arguments that name the plugins' wheels.

    Raises:
        PluginError: the folder of the core's wheel has no such plugin.
    """
    pins = [f"{name}=={core.version}" for name in wanted]
    saved = requested if any(requested) else saved_source(core)
    origin = None if any(requested) else source_of(core)
    if origin is None:
        return (*saved.options(), *pins)
    if "://" in origin:
        return (*saved._replace(find_links=(origin, *saved.find_links)).options(), *pins)
    try:
        return ("--no-index", *(_wheel(origin, name, core) for name in wanted))
    except PluginError:
        # The plugins of this core may never have been in its own folder.
        if not any(saved):
            raise
        return (*saved.options(), *pins)


def _installed(core: Core) -> Iterator[str]:
    with start_loader(core, None, devices=False) as loader:
        verdicts = loader.verdicts(_own_folder(core))
    for name, distribution in core.plugins():
        if verdicts.get(name) in _USABLE:
            yield distribution


def _wheel(folder: str, distribution: str, core: Core) -> str:
    """Return the wheel of a plugin, beside the core's own.

    An index is not asked for it: somebody else may have that name there.

    Raises:
        PluginError: it is not there.
    """
    found = list(wheels_in(folder, distribution, core.version))
    matching = [path for path in found if path.endswith((f"_{platform.machine()}.whl", "-any.whl"))]
    # An index might have a wheel of this name that somebody else made.
    if not matching:
        raise PluginError(
            f"{core.distribution} was installed from {folder}, where no wheel of {distribution} "
            f"{core.version} is\nhint: put it there, or name its place with --find-links DIR or"
            " --index-url URL"
        )
    return matching[0]


def _print_lines(*lines: str) -> None:
    for line in lines:
        print(printable(line), flush=True)
