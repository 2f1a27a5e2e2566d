"""The file WHEEL: who made the archive, and for which interpreters, ABIs and platforms.

Source: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.parser import Parser
from typing import TYPE_CHECKING

from archsplit.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from email.message import Message

__pure__ = True

_ROOTS = {"true": True, "false": False}
_ROOT = "Root-Is-Purelib"
_NAME_LINES = re.compile(rb"^(Build|Tag):.*(\r?\n|\Z)", re.MULTILINE)
_ROOT_LINE = re.compile(rb"^Root-Is-Purelib:.*(\r?\n|\Z)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInfo:
    """What WHEEL says.

    Attributes:
        generator: the program that made the archive, and its version.
        tags: expanded, such as ``py3-none-any``, sorted.
        purelib: whether the archive's root installs into purelib rather than platlib.
        build: the build tag, or "" for none.
        notes: what is odd in a file that installers take all the same.
    """

    generator: str
    tags: tuple[str, ...]
    purelib: bool = False
    build: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

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
        """Read WHEEL; of several lines Root-Is-Purelib the first counts, as for pip.

        Raises:
            WheelError: a field is missing, repeated or has another meaning than we know.
        """
        try:
            fields = Parser().parsestr(content.decode("ascii"))
        except UnicodeDecodeError as error:
            raise WheelError(f"WHEEL is not ASCII: {error}") from None
        version, root = _one(fields, "Wheel-Version"), _first(fields, _ROOT)
        if version.partition(".")[0] != "1":
            raise WheelError(f"WHEEL has the format version {version!r}; archsplit reads 1.x")
        if root.lower() not in _ROOTS:
            raise WheelError(f"WHEEL says Root-Is-Purelib: {root!r}, neither true nor false")
        return cls(
            generator=_one(fields, "Generator"),
            tags=tuple(sorted(set(fields.get_all("Tag", [])))),
            purelib=_ROOTS[root.lower()],
            build=_one(fields, "Build") if "Build" in fields else "",
            notes=tuple(_repeated(fields, _ROOT)),
        )


def revised_info(content: bytes, *, tags: Iterable[str], build: str) -> bytes:
    """Give WHEEL the tags and build tag of a file name, and one line Root-Is-Purelib."""
    text = _NAME_LINES.sub(b"", content)
    if roots := list(_ROOT_LINE.finditer(text)):
        end = roots[0].end()
        text = text[:end] + _ROOT_LINE.sub(b"", text[end:])
    lines = [f"Tag: {tag}\n" for tag in tags]
    lines += [f"Build: {build}\n"] if build else []
    return text.rstrip() + b"\n" + "".join(lines).encode()


def _first(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    return values[0].strip() if values else _one(fields, name)


def _repeated(fields: Message, name: str) -> Iterator[str]:
    values: list[str] = fields.get_all(name, [])
    if len(values) > 1:
        first = values[0].strip()
        yield f"WHEEL has {len(values)} lines {name}; the first, {first}, counts, as for pip"


def _one(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    if len(values) != 1:
        raise WheelError(f"WHEEL has {len(values)} lines {name}, not one")
    return values[0].strip()
