"""Open the plugin for a device, or say which command helps."""

from __future__ import annotations

import ctypes
import os
import shlex
from typing import TYPE_CHECKING

from . import _bindings
from ._core import Core, pack_folders, plugin_folders, read_core, table_path
from ._errors import DeviceError, PluginError, PluginNotFoundError
from ._loader import Loader

if TYPE_CHECKING:
    from collections.abc import Sequence

LAST_DEVICE = 2**31 - 1
"""CUDA counts with a C int."""


def start_loader(core: Core, files: Sequence[str] | None, *, devices: bool = True) -> Loader:
    """A loader over the installed plugins, or over ``files`` alone.

    Raises:
        PluginError: the core is damaged.
    """
    if core.is_split:
        return Loader(core, folders=pack_folders(core), devices=devices, table=table_path())
    if files is None:
        return Loader(core, folders=plugin_folders(core), devices=devices)
    return Loader(core, files=files, devices=devices)


def open_plugin(device: int, capability: str | None, files: Sequence[str] | None) -> ctypes.CDLL:
    """Open what serves a device, or a capability when one is given.

    Raises:
        PluginError: or one of its kinds; see ``load``.
    """
    if not 0 <= device <= LAST_DEVICE:
        raise DeviceError(
            f"there is no device {device}: devices are counted from 0 to {LAST_DEVICE}"
        )
    core = read_core()
    if core.is_split:
        raise PluginError(
            f"{core.distribution} has device packs, which its libraries find by themselves; there "
            "is nothing to load"
        )
    with start_loader(core, files, devices=capability is None) as loader:
        try:
            handle = _open(loader, device, capability)
        except PluginNotFoundError as error:
            wanted = capability or capability_of(loader.device(device))
            raise PluginNotFoundError(f"{error}\n{advice(loader, core, wanted)}") from None
        chosen = loader.choose(capability or capability_of(loader.device(device)))
        assert chosen is not None, "what was opened was chosen"
        return ctypes.CDLL(os.fsdecode(loader.candidate(chosen[0]).path), handle=handle)


def capability_of(device: _bindings.DeviceStruct) -> str:
    """``9.0``."""
    return f"{device.major}.{device.minor}"


def remedy(loader: Loader, core: Core, capability: str) -> tuple[str | None, str | None]:
    """Which of the core's targets a capability needs, and the command that makes it usable."""
    target = _bindings.best_target(loader.library, capability, tuple(core.targets))
    if target is None:
        return None, None
    candidates = map(loader.candidate, range(loader.summary().candidate_count))
    found = [(_bindings.text(each.path), loader.verdict(each)) for each in candidates]
    for path, verdict in found:
        if path.endswith(f"/{target}/{core.library}"):
            return target, core.command(target, verdict)
    for path, _ in found:
        if path.endswith(f"/{core.plugins_package}/cuda"):  # it could not be listed
            return target, f"chmod -R a+rX {shlex.quote(path.removesuffix('/cuda'))}"
    return target, core.command(target, None)


def advice(loader: Loader, core: Core, capability: str) -> str:
    """What was needed and the command that brings it, for the end of an error message."""
    target, command = remedy(loader, core, capability)
    if target is None:
        return (
            f"needed: a plugin for capability {capability}, but {core.distribution} "
            f"{core.version} is built for {', '.join(sorted(core.targets))} only"
        )
    return f"needed: the plugin for {target}\nhint: {command or 'update the NVIDIA driver'}"


def _open(loader: Loader, device: int, capability: str | None) -> int:
    return loader.open(device) if capability is None else loader.open_for_capability(capability)
