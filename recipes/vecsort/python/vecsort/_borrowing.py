"""Borrow arrays of any library for the length of one call."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ._cuda_array_interface import described
from ._dlpack import imported
from ._streams import stream_handle

if TYPE_CHECKING:
    from types import TracebackType

    from ._device_array import DeviceArray


class Borrowing:
    """Arrays that are held until the ``with`` block ends, for work on one stream.

    Attributes:
        stream: the handle of that stream.
        arrays: what has been borrowed so far.
    """

    def __init__(self, stream: object) -> None:
        self.stream = stream_handle(stream)
        self.arrays: list[DeviceArray] = []
        self._held = ExitStack()

    def __enter__(self) -> Borrowing:  # noqa: PYI034 (Self is from Python 3.11)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.__exit__(kind, error, traceback)

    def array(self, owner: object, name: str) -> DeviceArray:
        """Borrow through DLPack, which orders streams by contract, or else the CUDA interface.

        Raises:
            TypeError: the owner speaks neither, or has items that no function here can use.
            ValueError: it isn't contiguous CUDA memory in one dimension.
        """
        if hasattr(owner, "__dlpack__"):
            found = self._held.enter_context(imported(owner, name, self.stream))
        else:
            interface = getattr(owner, "__cuda_array_interface__", None)
            if interface is None:
                raise TypeError(
                    f"{name} is a {type(owner).__name__}, which has neither __dlpack__ nor "
                    "__cuda_array_interface__"
                )
            found = described(interface, name)
        self.arrays.append(found)
        return found

    def target(self, source: DeviceArray, out: object, name: str) -> DeviceArray:
        """Where the result of something that can be done in place goes.

        Raises:
            TypeError: it can't go to that array, because of its type.
            ValueError: it can't go there for another reason.
        """
        target = source if out is None else self.array(out, name)
        return target.as_output(size=source.size, type_name=source.type_name)

    def device(self) -> int | None:
        """The device that all arrays are on; None if they are all empty and none says.

        Raises:
            ValueError: they are on several.
        """
        placed = {array.device: array.name for array in self.arrays if array.device is not None}
        if len(placed) > 1:
            where = ", ".join(f"{name} on device {device}" for device, name in placed.items())
            raise ValueError(f"arrays are on different devices: {where}")
        return next(iter(placed), None)

    def streams(self) -> set[int]:
        """Streams that the work has to wait for."""
        return {array.stream for array in self.arrays if array.stream is not None} - {self.stream}
