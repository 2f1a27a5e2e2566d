"""One-dimensional device memory as this package sees it, of any owner."""

from __future__ import annotations

from dataclasses import dataclass

# The vecsort_dtype numbers of the C header.
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint32": 5, "uint64": 6}

VALUE_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArray:
    """Contiguous items on one device, as long as their exporter is held.

    Attributes:
        name: what the caller of this package calls the argument.
        pointer: where the first item is; 0 is possible if there are none.
        shape: as exported.
        type_name: of an item, such as ``float32``.
        item_size: in bytes.
        device: its CUDA ordinal, or None if there are no items and the exporter doesn't say.
        writable: whether results may go there.
        stream: a stream that work on the items has to wait for, or None.
    """

    name: str
    pointer: int
    shape: tuple[int, ...]
    type_name: str
    item_size: int
    device: int | None
    writable: bool
    stream: int | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 1:
            raise ValueError(f"{self.name} has shape {self.shape}; expected one dimension")

    @property
    def size(self) -> int:
        """How many items there are."""
        return self.shape[0] if self.shape else 1

    @property
    def dtype(self) -> int:
        """The C header's number of the items' type; TypeError if it has none."""
        number = DTYPES.get(self.type_name)
        if number is None:
            raise TypeError(
                f"{self.name} has items of type {self.type_name}; expected {', '.join(DTYPES)}"
            )
        return number

    @property
    def value_size(self) -> int:
        """The size of items that are only moved; TypeError if it is not a possible one."""
        if self.item_size not in VALUE_SIZES:
            sizes = ", ".join(map(str, VALUE_SIZES))
            raise TypeError(f"{self.name} has items of {self.item_size} bytes; expected {sizes}")
        return self.item_size

    def as_output(self, *, size: int, type_name: str) -> DeviceArray:
        """The array itself, if results of this kind may go there.

        Raises:
            TypeError: its items have another type.
            ValueError: it is read-only, or has another size.
        """
        if not self.writable:
            raise ValueError(f"{self.name} is read-only (or a copy); results can't go there")
        if self.type_name != type_name:
            raise TypeError(f"{self.name} has items of type {self.type_name}; expected {type_name}")
        if self.size != size:
            raise ValueError(f"{self.name} has {self.size} items; expected {size}")
        return self
