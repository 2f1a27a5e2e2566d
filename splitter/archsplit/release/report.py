"""What a build made, as a file beside the wheels: the one list that later steps go by."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from archsplit.release.listing import read_listing, with_earlier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__pure__ = True

REPORT_SCHEMA = 1
REPORT_FILE = "archsplit-report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelEntry:
    """One wheel of a build.

    Attributes:
        file: its name in the output folder.
        role: ``core``, ``plugin`` or ``meta``.
        distribution: the name that pip knows it by.
        targets: whose device code is inside.
        size: bytes.
        sha256: of the file, 64 hexadecimal digits.
    """

    file: str
    role: str
    distribution: str
    targets: tuple[str, ...]
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A build, as far as it is the same on every machine: no path, no time, no user.

    Attributes:
        build_id: 64 hexadecimal digits, also in the core and in every plugin.
        interface_hash: the same.
        toolkit: CUDA's version.
        host: what the host's tools say of themselves.
        deflate: the version of what packs, on which the bytes of every wheel depend.
        epoch: the time that all files carry, in seconds since 1970.
        targets: all of the recipe's, built now or not.
        wheels: sorted by file name.
    """

    project: str
    version: str
    build_id: str
    interface_hash: str
    toolkit: str
    host: tuple[str, ...]
    deflate: str
    epoch: int
    targets: tuple[str, ...]
    wheels: tuple[WheelEntry, ...]

    def together_with(self, path: Path) -> Report:
        """This report, and the wheels of an earlier one of the same build that are still there.

        So the plugins of one release may be built one after the other, each by itself.

        Raises:
            InputError: there is a report, and it can't be read.
        """
        earlier = read_report(path) if path.exists() else self
        if (earlier.build_id, earlier.version) != (self.build_id, self.version):
            return self
        return replace(self, wheels=with_earlier(self.wheels, earlier.wheels, path.parent))

    def as_json(self) -> str:
        """The file's text: sorted keys, one final newline."""
        content: Mapping[str, object] = {"schema": REPORT_SCHEMA, **asdict(self)}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_report(path: Path) -> Report:
    """Read a report's file.

    Raises:
        InputError: it can't be read, or is not a report of this schema.
    """
    return read_listing(path, _REPORT, schema=REPORT_SCHEMA, what="a build's report")


_REPORT = TypeAdapter(Report)
