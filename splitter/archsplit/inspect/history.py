"""The size of a library's releases over time: records, a log of JSON lines, a chart.

In go inventories and the log of earlier releases; out come `ReleaseSize` records, one line of JSON
each, and a chart with a stacked bar for each release. The SHA-256 of its file identifies a release,
so CI can run the command again and again, and the log holds each release once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

from archsplit.devicecode.stats import target_sizes
from archsplit.errors import BinaryFormatError, InputError
from archsplit.inspect.breakdown import REST_COLOR, REST_LABEL, target_color
from archsplit.system.schema import type_adapter
from archsplit.system.units import size_text
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from archsplit.devicecode.model import Inventory

__pure__ = True

LOG_SCHEMA = 1
_BAR, _STEP = 22, 32
_WIDTH, _LABEL, _SIZE = 960, 180, 110
_LEGEND_STEP = 150
_LEGEND_COLUMNS = 6
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1c2026 } .soft { fill: #586069 }
.paper { fill: #fff } rect { stroke: #fff; stroke-width: 1 } .paper { stroke: none }
.in { fill: #fff; font-size: 12px; pointer-events: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ed } .soft { fill: #a3acb7 } .paper { fill: #14171b } rect { stroke: #14171b }
.paper { stroke: none } }"""
_STRIPES = (
    '<defs><pattern id="ptx" width="9" height="9" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><path d="M0 0h3v9h-3z" fill="#000" opacity=".4"/>'
    "</pattern></defs>"
)
"""The texture of PTX, as in the map of a page: a generation has one color."""
_LETTER = 7.5
"""The width of a letter in a bar, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSize:
    """The bytes of one release.

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
    return ReleaseSize(
        name=inventory.name,
        version=_version(inventory.name),
        sha256=inventory.sha256,
        size=inventory.size,
        targets=dict(target_sizes(inventory, in_download=inventory.is_wheel)),
    )


def _version(name: str) -> str:
    return WheelName.parse(name).version if name.endswith(".whl") else name


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


def history_picture(releases: Sequence[ReleaseSize]) -> str:
    """Return a chart (SVG): a bar for each release, divided among its targets."""
    labels = _all_targets(releases)
    rows = -(-(len(labels) + 1) // _LEGEND_COLUMNS)
    height = _STEP * len(releases) + 24 * rows + 40
    longest = max((release.size for release in releases), default=0) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(_summary(releases))}</title><style>{_STYLE}</style>",
        _STRIPES,
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
    ]
    for number, release in enumerate(releases):
        parts += _bar(release, labels, top=16 + number * _STEP, longest=longest)
    parts += _legend(labels, top=_STEP * len(releases) + 32)
    return "\n".join((*parts, "</svg>\n"))


def _all_targets(releases: Iterable[ReleaseSize]) -> tuple[str, ...]:
    # A target keeps its place in all bars, so that a growing part can be seen.
    return tuple(dict.fromkeys(target for release in releases for target in release.targets))


def _summary(releases: Sequence[ReleaseSize]) -> str:
    return ", ".join(f"{release.version}: {size_text(release.size)}" for release in releases)


def _bar(release: ReleaseSize, labels: Iterable[str], *, top: int, longest: int) -> Iterator[str]:
    middle = top + _BAR - 6
    yield f'<text x="8" y="{middle}">{escape(release.version[:24])}</text>'
    scale = (_WIDTH - _LABEL - _SIZE) / longest
    x = float(_LABEL)
    rest = max(0, release.size - release.device_code)
    for label, size, color in (
        *((label, release.targets.get(label, 0), target_color(label)) for label in labels),
        (REST_LABEL, rest, REST_COLOR),
    ):
        if size:
            title = escape(f"{release.version}, {label}, {size_text(size)}")
            width = size * scale
            yield (
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
                f' fill="{color}"><title>{title}</title></rect>'
            )
            yield from _stripes(label, f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"')
            # Two targets of one generation have one color: their names tell them apart.
            if label in release.targets and width > _LETTER * len(label) + 8:
                yield f'<text class="in" x="{x + 4:.1f}" y="{middle}">{escape(label)}</text>'
            x += width
    yield f'<text class="soft" x="{x + 8:.1f}" y="{middle}">{size_text(release.size)}</text>'


def _legend(labels: Iterable[str], *, top: int) -> Iterator[str]:
    names = [(label, target_color(label)) for label in labels]
    for number, (label, color) in enumerate([*names, (REST_LABEL, REST_COLOR)]):
        row, column = divmod(number, _LEGEND_COLUMNS)
        x, y = 8 + column * _LEGEND_STEP, top + 24 * row
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{color}"/>'
        yield from _stripes(label, f'x="{x}" y="{y}" width="14" height="14"')
        yield f'<text x="{x + 20}" y="{y + 12}">{escape(label)}</text>'


def _stripes(label: str, place: str) -> Iterator[str]:
    if label.startswith("compute_"):
        yield f'<rect {place} fill="url(#ptx)" pointer-events="none"/>'
