"""Open the plugin that serves a GPU, and explain which one that is.

This folder is copied into every core wheel as ``<package>/_archsplit``; a core's own code says
``from ._archsplit import load``. Importing it starts nothing and looks for nothing.
"""

from __future__ import annotations

import os
from operator import index

from . import _identity  # noqa: F401 (it fixes which core was imported)
from ._errors import DeviceError, PluginError, PluginNotFoundError, PluginOpenError

TYPE_CHECKING = False  # typing and dataclasses would take longer to import than all of this
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

    from ._explain import Explanation

__all__ = [
    "DeviceError",
    "PluginError",
    "PluginNotFoundError",
    "PluginOpenError",
    "explain",
    "load",
    "require",
]

# What was opened stays open for the life of the process, so it is remembered for as long: by what
# was asked for, and by dlopen's handle, because several devices may share a plugin.
_opened: dict[object, ctypes.CDLL] = {}


def load(
    device: int = 0,
    *,
    capability: str | None = None,
    plugins: Sequence[str | os.PathLike[str]] | None = None,
    verify: str = "index",
) -> ctypes.CDLL:
    """Open the plugin that serves a device best; the same library every time it is asked for.

    Args:
        device: as CUDA counts in this process, so after ``CUDA_VISIBLE_DEVICES``.
        capability: ``"9.0"`` opens what serves such a GPU and asks for no device.
        plugins: plugin files to choose from, instead of the installed ones.
        verify: ``"index"``, or ``"full"`` to compare the whole file with the digest that the
            installer recorded: about 4 ms a megabyte.

    Raises:
        DeviceError: no driver, no GPU, or no device of this number.
        PluginNotFoundError: no installed plugin serves it; the message has the command that helps.
        PluginOpenError: the plugin was chosen, but the system can't open it.
        PluginError: the core's own installation is damaged, a plugin has other bytes than recorded,
            or an argument is not a device's number or a capability.
    """
    files = None if plugins is None else tuple(map(str, plugins))
    number, full = _device_number(device), _is_full(verify)
    # A device's number means another GPU when the visible ones change.
    visible = _visibility() if capability is None else None
    key = (number, capability, files, full, visible)
    library = _opened.get(key)
    if library is None:
        from ._opening import open_plugin  # noqa: PLC0415 (importing the core must be cheap)

        found = open_plugin(number, capability, files, full=full)
        # setdefault is atomic: of racing threads, all return the same object.
        library = _opened[key] = _opened.setdefault(found._handle, found)  # noqa: SLF001 (ctypes)
    return library


def explain(*, plugins: Sequence[str | os.PathLike[str]] | None = None) -> Explanation:
    """Return the verdict on each plugin, its reason, and the code that serves each device.

    Nothing is opened, and nothing is remembered: each call looks again.

    Args:
        plugins: as for `load`.

    Raises:
        PluginError: the core's own installation is damaged.
    """
    from ._explain import explain_core  # noqa: PLC0415 (importing the core must be cheap)

    return explain_core(None if plugins is None else tuple(map(str, plugins)))


def require(*, verify: str = "index") -> None:
    """Make sure that plugins serve every GPU that CUDA shows; a machine without one is fine.

    In a process that has another copy of a split core already, this one's libraries stay empty.

    Args:
        verify: ``"index"``, or ``"full"`` to read all of every plugin too: about 4 ms a megabyte.

    Raises:
        PluginNotFoundError: a GPU misses device code; the message has the command that helps.
        PluginError: the core, or (with ``"full"``) a plugin, is damaged; or there is such a copy.
    """
    from ._copies import check_no_other_copy  # noqa: PLC0415 (importing the core must be cheap)
    from ._explain import check_served, explain_core  # noqa: PLC0415 (the same)

    full = _is_full(verify)
    check_no_other_copy()
    explanation = explain_core(full=full)
    for each in explanation.candidates:
        if full and each.verdict == "damaged":
            raise PluginError(f"{each.path} {each.reason}")
    check_served(explanation)


def _is_full(verify: str) -> bool:
    if verify not in {"index", "full"}:
        raise PluginError(f"verify is {verify!r}, expected 'index' or 'full'")
    return verify == "full"


def _visibility() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")))


def _device_number(device: int) -> int:
    try:
        return index(device)
    except TypeError:
        raise PluginError(f"{device!r} is not a device's number; write it like 0") from None
