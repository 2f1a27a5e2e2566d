"""Size of a library's releases over time: records, and a log of JSON lines.

In go inventories and the log of earlier releases; out come `ReleaseSize` records, and one line of
JSON each. The SHA-256 of its file identifies a release, so CI can run the command again and again,
and the log holds each release once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.stats import target_sizes
from archsplit.errors import BinaryFormatError, InputError
from archsplit.system.schema import type_adapter
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archsplit.devicecode.model import Inventory

__pure__ = True

LOG_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSize:
    """Bytes of one release.

    Attributes:
        name: the file's name.
        version: of the wheel; the file's name for other files.
        sha256: of the file.
        size: bytes of the download, or of a file that is not a wheel.
        targets: bytes of each target, in the same measure.
    """

    name: str
    version: str
    sha256: str
    size: int
    targets: Mapping[str, int]

    @property
    def device_code(self) -> int:
        """Bytes of all targets."""
        return sum(self.targets.values())

    def as_line(self) -> str:
        """Return the line of the log."""
        return json.dumps({"schema": LOG_SCHEMA, **asdict(self)}, sort_keys=True)


def measure_release(inventory: Inventory) -> ReleaseSize:
    """Return the bytes of a file.

    Raises:
        InputError: the inventory has no digest: it is of a folder or a package.
    """
    if inventory.sha256 is None:
        raise InputError(
            f"{inventory.path} is not a file", hint="name wheels or libraries, one for each release"
        )
    name = inventory.name
    return ReleaseSize(
        name=name,
        version=WheelName.parse(name).version if name.endswith(".whl") else name,
        sha256=inventory.sha256,
        size=inventory.size,
        targets=dict(target_sizes(inventory, in_download=inventory.is_wheel)),
    )


def read_log(text: str, *, where: str) -> tuple[ReleaseSize, ...]:
    """Read the lines of a log.

    Args:
        where: the file, for messages.

    Raises:
        BinaryFormatError: a line is not JSON, of another schema, or lacks a key.
    """
    from pydantic import ValidationError  # noqa: PLC0415 (0.1 s)

    releases = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = type_adapter(dict[str, object]).validate_json(line)
            if fields.pop("schema", None) != LOG_SCHEMA:
                raise BinaryFormatError(
                    f"{where}, line {number}: not of schema {LOG_SCHEMA}",
                    hint="a later archsplit wrote it; update archsplit",
                )
            releases.append(type_adapter(ReleaseSize).validate_python(fields))
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"]))
            raise BinaryFormatError(
                f"{where}, line {number}: {place + ': ' if place else ''}{fault['msg']}",
                hint="each line is a record that archsplit diff --log wrote; remove this line",
            ) from None
    return tuple(releases)


def merge_releases(
    logged: Iterable[ReleaseSize], measured: Iterable[ReleaseSize]
) -> tuple[ReleaseSize, ...]:
    """Return the logged releases, and then the measured ones that are not in the log."""
    return tuple({release.sha256: release for release in (*logged, *measured)}.values())


def growth_of_last(releases: Sequence[ReleaseSize]) -> float:
    """Return the last release's growth as a part of the one before; 0 without one."""
    if len(releases) <= 1 or not releases[-2].size:
        return 0.0
    return releases[-1].size / releases[-2].size - 1
