"""The file WHEEL: who made the archive, and for which interpreters, ABIs and platforms.

Source: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

from dataclasses import dataclass
from email.parser import Parser
from typing import TYPE_CHECKING

from splitter.errors import WheelError

if TYPE_CHECKING:
    from email.message import Message

__pure__ = True

_ROOTS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInfo:
    """What WHEEL says.

    Attributes:
        generator: the program that made the archive, and its version.
        tags: expanded, such as ``py3-none-any``, sorted.
        purelib: whether the archive's root installs into purelib rather than platlib.
        build: the build tag, or "" for none.
    """

    generator: str
    tags: tuple[str, ...]
    purelib: bool = False
    build: str = ""

    def __post_init__(self) -> None:
        if not self.tags or list(self.tags) != sorted(set(self.tags)):
            raise WheelError(f"WHEEL needs a sorted set of tags, not {self.tags}")
        values = (self.generator, self.build, *self.tags)
        if not (self.generator and all(v.isascii() and v.isprintable() for v in values)):
            raise WheelError("WHEEL needs a generator, and holds printable ASCII alone")

    def encode(self) -> bytes:
        """Write WHEEL."""
        lines = [
            "Wheel-Version: 1.0",
            f"Generator: {self.generator}",
            f"Root-Is-Purelib: {str(self.purelib).lower()}",
            *(f"Tag: {tag}" for tag in self.tags),
            *([f"Build: {self.build}"] if self.build else []),
        ]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> WheelInfo:
        """Read WHEEL.

        Raises:
            WheelError: a field is missing, repeated or has another meaning than we know.
        """
        try:
            fields = Parser().parsestr(content.decode("ascii"))
        except UnicodeDecodeError as error:
            raise WheelError(f"WHEEL is not ASCII: {error}") from None
        version, root = _one(fields, "Wheel-Version"), _one(fields, "Root-Is-Purelib")
        if version.partition(".")[0] != "1":
            raise WheelError(f"WHEEL has the format version {version!r}; archsplit reads 1.x")
        if root.lower() not in _ROOTS:
            raise WheelError(f"WHEEL says Root-Is-Purelib: {root!r}, neither true nor false")
        return cls(
            generator=_one(fields, "Generator"),
            tags=tuple(sorted(set(fields.get_all("Tag", [])))),
            purelib=_ROOTS[root.lower()],
            build=_one(fields, "Build") if "Build" in fields else "",
        )


def _one(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    if len(values) != 1:
        raise WheelError(f"WHEEL has {len(values)} lines {name}, not one")
    return values[0].strip()
