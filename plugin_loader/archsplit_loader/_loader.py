"""An ``archsplit_loader`` as a Python object."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from . import _bindings
from ._errors import (
    DeviceError,
    PluginError,
    PluginNotFoundError,
    PluginOpenError,
    SettingError,
)
from ._folders import FOLDER, table_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

DRIVER_STATES = ("ready", "not-asked", "missing", "no-gpu", "all-hidden", "failed")

_SKIP_DEVICES, _VERIFY_PLUGINS = 1, 2
_NO_PLUGIN = 4
_ERRORS = {3: DeviceError, _NO_PLUGIN: PluginNotFoundError, 5: PluginOpenError, 8: SettingError}


class Loader:
    """An ``archsplit_loader``, for use in a ``with`` statement."""

    def __init__(
        self,
        folders: Sequence[str] = (),
        *,
        files: Sequence[str] = (),
        devices: bool = True,
        full: bool = False,
        digests: Sequence[str] = (),
    ) -> None:
        self.library = _bindings.open_library()
        # A pointer object, because the C function writes the handle into it.
        self._handle = ctypes.c_void_p()
        struct = _bindings.CoreStruct(
            size=ctypes.sizeof(_bindings.CoreStruct),
            flags=(0 if devices else _SKIP_DEVICES) | (_VERIFY_PLUGINS if full else 0),
            folders=_list_of_paths(folders),
            files=_list_of_paths(files),
            table=os.fsencode(table_path()),
            digests=_list_of_paths(digests),
        )
        # ctypes keeps the texts alive for the call, and the loader copies them.
        self._check(self.library.archsplit_loader_create(struct, self._handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Opened plugins stay open: their functions may still be in use.
        self.library.archsplit_loader_destroy(self._handle)

    def summary(self) -> Any:  # noqa: ANN401 (ctypes fields have no types)
        """See ``archsplit_summary``."""
        return self._read(self.library.archsplit_loader_summary, _bindings.SummaryStruct)

    def candidate(self, index: int) -> Any:  # noqa: ANN401 (ctypes fields have no types)
        """See ``archsplit_candidate``."""
        return self._read(self.library.archsplit_loader_candidate, _bindings.CandidateStruct, index)

    def device(self, index: int) -> Any:  # noqa: ANN401 (ctypes fields have no types)
        """See ``archsplit_device``."""
        return self._read(self.library.archsplit_loader_device, _bindings.DeviceStruct, index)

    def capability(self, index: int) -> str:
        """Return the capability of a device, ``"9.0"``; often known without NVML."""
        function = self.library.archsplit_loader_device
        struct = _bindings.CapabilityStruct(size=ctypes.sizeof(_bindings.CapabilityStruct))
        # A shorter struct requests less: NVML may stay closed then, see archsplit_loader_device.
        device = ctypes.cast(ctypes.byref(struct), ctypes.POINTER(_bindings.DeviceStruct))
        self._check(function(self._handle, index, device))
        return f"{struct.major}.{struct.minor}"

    def note(self, index: int) -> str:
        """See ``archsplit_loader_note``."""
        return _bindings.text(self.library.archsplit_loader_note(self._handle, index))

    def verdict(self, struct: Any) -> str:  # noqa: ANN401 (ctypes fields have no types)
        """Return the name of a candidate's verdict."""
        return _bindings.text(self.library.archsplit_verdict_name(struct.verdict))

    def verdicts(self, folder: str = "") -> dict[str, str]:
        """Return the verdict of each plugin, by the name of its folder.

        A plugin may be in several places: an accepted file outweighs others, and then the first.

        Args:
            folder: only the plugins in it are counted.
        """
        found: dict[str, str] = {}
        for number in range(self.summary().candidate_count):
            struct = self.candidate(number)
            path, verdict = _bindings.text(struct.path), self.verdict(struct)
            name = os.path.basename(os.path.dirname(path))  # noqa: PTH119, PTH120 (as in _folders)
            # Installers write beside the core, so a refusal there is the one that they can mend.
            if path.startswith(folder) and (name not in found or verdict == "accepted"):
                found[name] = verdict
        return found

    def choose(self, capability: str) -> tuple[int, str] | None:
        """Return the number of the candidate that serves a capability and its target, or None."""
        struct = _bindings.ChoiceStruct(size=ctypes.sizeof(_bindings.ChoiceStruct))
        status = self.library.archsplit_loader_choose(
            self._handle, *_bindings.numbers(capability), struct
        )
        # No plugin is a result for the doctor, and an error for load().
        if status == _NO_PLUGIN:
            return None
        self._check(status)
        return struct.candidate, str(struct.target)

    def service(self, capability: str) -> Any:  # noqa: ANN401 (ctypes fields have no types)
        """See ``archsplit_process_service``."""
        function = self.library.archsplit_process_service
        struct = _bindings.ServiceStruct(size=ctypes.sizeof(_bindings.ServiceStruct))
        # The folder is the key of what the stubs of this core recorded in the process.
        folder = os.fsencode(FOLDER)
        self._check(function(self._handle, folder, *_bindings.numbers(capability), struct))
        return struct

    def grafted(self) -> Iterator[Any]:
        """See ``archsplit_process_container``: each container of the libraries that are loaded."""
        struct = _bindings.GraftedStruct(size=ctypes.sizeof(_bindings.GraftedStruct))
        folder, index = os.fsencode(FOLDER), 0
        # The number of containers is not known before: another thread may load a library meanwhile.
        while self.library.archsplit_process_container(folder, index, struct) == 0:
            yield struct
            index += 1

    def open(self, device: int) -> int:
        """Return the handle of a device's plugin, or raise the error of the status."""
        plugin = ctypes.c_void_p()
        self._check(self.library.archsplit_loader_open(self._handle, device, plugin))
        return plugin.value or 0

    def open_for_capability(self, capability: str) -> int:
        """Return the handle of a capability's plugin, or raise the error of the status."""
        plugin = ctypes.c_void_p()
        function = self.library.archsplit_loader_open_for_capability
        self._check(function(self._handle, *_bindings.numbers(capability), plugin))
        return plugin.value or 0

    def _read(self, function: Any, kind: type[ctypes.Structure], *index: int) -> Any:  # noqa: ANN401 (ctypes fields have no types)
        struct = kind(size=ctypes.sizeof(kind))
        self._check(function(self._handle, *index, struct))
        return struct

    def _check(self, status: int) -> None:
        if status != 0:
            message = _bindings.text(self.library.archsplit_last_error())
            raise _ERRORS.get(status, PluginError)(message)


def _list_of_paths(paths: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(paths) + 1))(*map(os.fsencode, paths), None)
