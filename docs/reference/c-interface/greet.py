"""Open the plugin for a GPU through ctypes, and call one of its functions.

``python greet.py FOLDER [CAPABILITY]``: FOLDER has ``core.pack`` and the loader's library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SKIP_DEVICES = 1  # ARCHSPLIT_SKIP_DEVICES
Trace = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)


class Core(ctypes.Structure):
    """Beginning of ``archsplit_core``: no more than this program needs of it.

    The library allocates the whole struct, so a pointer to its first fields is enough.
    """

    _fields_ = (("size", ctypes.c_uint32), ("flags", ctypes.c_uint32))


def open_loader(folder: str) -> ctypes.CDLL:
    """Open the loader's library, and declare the functions that are used here.

    Without `argtypes`, ctypes passes a 64-bit handle as a 32-bit int.
    """
    library = ctypes.CDLL(str(Path(folder, "libarchsplit_loader.so")))
    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    library.archsplit_last_error.restype = ctypes.c_char_p
    library.archsplit_trace.argtypes = [Trace, ctypes.c_void_p]
    library.archsplit_core_read.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(Core))]
    library.archsplit_core_free.argtypes = [ctypes.POINTER(Core)]
    library.archsplit_core_free.restype = None
    library.archsplit_loader_create.argtypes = [ctypes.POINTER(Core), out]
    library.archsplit_loader_destroy.argtypes = [handle]
    library.archsplit_loader_destroy.restype = None
    library.archsplit_loader_open.argtypes = [handle, ctypes.c_uint32, out]
    library.archsplit_loader_open_for_capability.argtypes = [
        handle, ctypes.c_uint32, ctypes.c_uint32, out,
    ]  # fmt: skip
    return library


class PluginOpener:
    """A core's loader."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.library = open_loader(folder)

    def open(self, capability: str | None = None) -> ctypes.CDLL:
        """Open the plugin for a capability, or for CUDA's device 0."""
        core, loader, plugin = ctypes.POINTER(Core)(), ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.library.archsplit_core_read(os.fsencode(self.folder), core))
        if capability is not None:
            core.contents.flags = SKIP_DEVICES
        status = self.library.archsplit_loader_create(core, loader)
        self.library.archsplit_core_free(core)  # the loader has copied it
        self._check(status)
        if capability is None:
            self._check(self.library.archsplit_loader_open(loader, 0, plugin))
        else:
            major, _, minor = capability.partition(".")
            open_for = self.library.archsplit_loader_open_for_capability
            self._check(open_for(loader, int(major), int(minor), plugin))
        self.library.archsplit_loader_destroy(loader)  # the plugin stays open
        return ctypes.CDLL("the plugin", handle=plugin.value)

    def _check(self, status: int) -> None:
        # The text belongs to this thread, and to its last call.
        if status != 0:
            raise OSError(os.fsdecode(self.library.archsplit_last_error()))


@Trace
def print_decision(line: bytes, _: int | None) -> None:
    """Print a decision. This object must live as long as the library may call it."""
    print("decision:", line.decode(errors="replace"), file=sys.stderr)


def main() -> int:
    """Print the name that the plugin gives itself."""
    folder, *capability = sys.argv[1:]
    opener = PluginOpener(folder)
    opener.library.archsplit_trace(print_decision, None)
    name = opener.open(*capability).tinyvec_name
    name.restype = ctypes.c_char_p
    print(name().decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
