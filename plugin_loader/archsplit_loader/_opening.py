"""Open the plugin for a device, or say which command helps."""

from __future__ import annotations

import ctypes
import os
import shlex
from typing import TYPE_CHECKING

from . import _bindings
from ._errors import DeviceError, PluginError, PluginNotFoundError
from ._folders import pack_folders, plugin_folders
from ._loader import Loader
from ._reading import read_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._core import Core

LAST_DEVICE = 2**31 - 1
"""CUDA counts with a C int."""


def start_loader(
    core: Core, files: Sequence[str] | None, *, devices: bool = True, full: bool = False
) -> Loader:
    """Return a loader over the installed plugins, or only over ``files``.

    Args:
        full: read all of each plugin; a damaged one counts as absent.

    Raises:
        PluginError: the core is damaged, or there are no digests for ``full``.
    """
    if core.is_split:
        return Loader(pack_folders(core), devices=devices, full=full)
    everywhere = plugin_folders(core)
    folders = everywhere if files is None else ()
    digests = _digests(core, everywhere) if full else ()
    files = files or ()
    return Loader(folders, files=files, devices=devices, full=full, digests=digests)


def _digests(core: Core, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the digests in the installer's record, or () if the core's table has them."""
    if core.digests:
        return ()
    from ._installed_records import recorded_digests  # noqa: PLC0415 (few ask for it)

    return recorded_digests(core, folders)


def open_plugin(
    device: int, capability: str | None, files: Sequence[str] | None, *, full: bool
) -> ctypes.CDLL:
    """Open what serves a device, or a capability when one is given.

    Args:
        full: compare the whole file with its recorded digest before it is opened.

    Raises:
        PluginError: or one of its kinds; see ``load``.
    """
    # ctypes would cut a larger number off, and open the plugin of another device.
    if not 0 <= device <= LAST_DEVICE:
        raise DeviceError(f"no device {device}: devices are numbered from 0 to {LAST_DEVICE}")
    core = read_core()
    if core.is_split:
        raise PluginError(
            f"{core.distribution} has device packs, which its libraries find by themselves; there "
            "is nothing to load"
        )
    with start_loader(core, files, devices=capability is None, full=full) as loader:
        try:
            handle = _open(loader, device, capability)
        except PluginNotFoundError as error:
            wanted = capability or loader.capability(device)
            raise PluginNotFoundError(f"{error}\n{advice(loader, core, wanted)}") from None
        # The handle has no path; the name of the CDLL is for messages and debuggers.
        chosen = loader.choose(capability or loader.capability(device))
        assert chosen is not None, "what was opened was chosen"
        return ctypes.CDLL(os.fsdecode(loader.candidate(chosen[0]).path), handle=handle)


def remedy(loader: Loader, core: Core, capability: str) -> tuple[str | None, str | None]:
    """Return the core's target for a capability, and the command that makes the target usable."""
    from ._commands import plugin_command  # noqa: PLC0415 (few need a command)

    target = _bindings.best_target(loader.library, capability, tuple(core.targets))
    if target is None:
        return None, None
    candidates = map(loader.candidate, range(loader.summary().candidate_count))
    found = [(_bindings.text(each.path), loader.verdict(each)) for each in candidates]
    # What lies in the target's own folder decides between installing and mending.
    for path, verdict in found:
        if path.endswith(f"/{target}/{core.library}"):
            return target, plugin_command(core, target, verdict)
    for path, _ in found:
        if path.endswith(f"/{core.plugins_package}/cuda"):  # it could not be listed
            return target, f"chmod -R a+rX {shlex.quote(os.path.dirname(path))}"  # noqa: PTH120 (as in _folders)
    return target, plugin_command(core, target, None)


def advice(loader: Loader, core: Core, capability: str) -> str:
    """Return the end of an error message: the missing target and its command."""
    target, command = remedy(loader, core, capability)
    if target is None:
        return (
            f"it needs a plugin for capability {capability}, but {core.distribution} "
            f"{core.version} is built for {', '.join(sorted(core.targets))} only"
        )
    return f"it needs the plugin for {target}\nhint: {command or 'update the NVIDIA driver'}"


def _open(loader: Loader, device: int, capability: str | None) -> int:
    return loader.open(device) if capability is None else loader.open_for_capability(capability)
