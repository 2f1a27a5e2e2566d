"""Summary of a release for the terminal: wheels, totals, and the downloads of each kind of GPU.

In: the report of a build or a split. Out: text. The table of GPUs is the last part, because that is
what the users of the release will see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability
from archsplit.devicecode.partition import UNUSED_PACKS, capability_extra
from archsplit.release.matrix import release_matrix
from archsplit.system.units import count_text, short_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.release.report import Release, ReleaseWheel, SplitDetails

__pure__ = True

_GROWN = 1.25
"""Ratio of all wheels to the fat wheels above which ``--by target`` is proposed."""
_PRODUCTS = 24
"""Characters for the names of products in a row of the table."""
_ROOM = 80 - len('  999.9 MB  pip install "[cc120]"')
"""Characters for GPUs and the project's name in a row that a terminal doesn't break."""


def build_summary(release: Release, folder: Path) -> str:
    """Return the summary of a build."""
    lines = [f"{release.project} {release.version} in {folder}", *_wheel_lines(release)]
    total = sum(wheel.size for wheel in release.wheels)
    wheels = count_text(len(release.wheels), "wheel")
    return "\n".join([*lines, f"together {short_size(total)}, {wheels}"])


def split_summary(release: Release) -> str:
    """Return the summary of a split, with the table of downloads at its end."""
    details = release.split
    if details is None:
        raise ValueError("a build has no summary of a split")
    verb = "is" if len(details.sources) == 1 else "are"
    lines = [f"{', '.join(source.file for source in details.sources)} {verb} now"]
    lines += _wheel_lines(release)
    lines += _totals(release, details)
    lines += _merged(_details_rows(details), len(details.sources))
    return "\n".join([*lines, *_download_table(release, details)])


def _details_rows(details: SplitDetails) -> Iterator[tuple[str, str]]:
    """Yield the lines about libraries and wheels, each with its core."""
    for library in details.libraries:
        sizes = f"{short_size(library.size_before)} -> {short_size(library.size_after)}"
        yield library.core, "\n  ".join((f"{library.name}: {sizes}", *library.notes))
    for code in details.unmoved:
        images = count_text(code.images, "image")
        what = f"{images} ({short_size(code.size)})" if code.images else "device code"
        yield code.core, f"{code.name}: kept {what}: {code.why}"
    for note in details.notes:
        core, _, text = note.partition(": ")
        yield core, text


def _merged(rows: Iterable[tuple[str, str]], count: int) -> Iterator[str]:
    """Yield each text once, with the names of its cores if others lack it."""
    cores: dict[str, dict[str, None]] = {}
    for core, text in rows:
        cores.setdefault(text, {})[core] = None
    for text, names in cores.items():
        yield f"{', '.join(names)}: {text}" if len(names) < count else text


def _wheel_lines(release: Release) -> Iterator[str]:
    for wheel in release.wheels:
        purpose = _purpose(wheel, release.split)
        yield f"  {short_size(wheel.size):>9}  {wheel.file}  {purpose}".rstrip()


def _purpose(wheel: ReleaseWheel, details: SplitDetails | None) -> str:
    if details is None:
        return wheel.label
    # The table below has these GPUs, and a terminal has no room for them here.
    if wheel.gpus:
        return ""
    gpus = [one for one, packs in details.needs.items() if wheel.label in packs]
    unused = ", not published" if wheel.label in UNUSED_PACKS else ""
    return f"part for {', '.join(gpus)}" if gpus else f"{wheel.label}{unused}"


def _totals(release: Release, details: SplitDetails) -> Iterator[str]:
    """Compare the sum with the fat wheels."""
    total = sum(wheel.size for wheel in release.wheels)
    fat = sum(source.size for source in details.sources)
    count = len(details.sources)
    inputs = "the fat wheel's" if count == 1 else f"the {count} fat wheels'"
    yield f"together {short_size(total)}, {total / fat:.2f} times {inputs} {short_size(fat)}"
    names = {wheel.distribution for wheel in release.published}
    yield f"names on the index: {len(names)}"
    by_capability = any(wheel.gpus for wheel in release.wheels)
    if by_capability and fat * _GROWN < total:
        yield (
            "hint: images that several kinds of GPU take are in several packs; --by target puts"
            " each in one, with more packs for each GPU"
        )


def _download_table(release: Release, details: SplitDetails) -> Iterator[str]:
    """Yield a row for each kind of GPU: its download, and the command that installs it."""
    sizes = {wheel.file: wheel.size for wheel in release.wheels}
    # Cores for several Pythons have sizes of their own; a user downloads one of them.
    downloads: dict[str, list[int]] = {}
    for cell in release_matrix(release):
        if not cell.missing:
            downloads.setdefault(cell.gpu, []).append(sum(sizes[file] for file in cell.files))
    groups: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Capability]] = {}
    for gpu, totals in downloads.items():
        key = details.needs[gpu], tuple(totals)
        groups.setdefault(key, []).append(Capability.parse(gpu))
    rows = [
        (
            _gpu_text(sorted(gpus), _ROOM - len(release.project)),
            _range_text(totals),
            f'pip install "{release.project}[{capability_extra(min(gpus))}]"',
        )
        for (_, totals), gpus in sorted(groups.items(), key=lambda group: min(group[1]))
    ]
    if rows:
        yield from download_lines([("GPU", "download", "install"), *rows])


def download_lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table, the head first; its second column has sizes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, size, *others in rows:
        cells = (first.ljust(widths[0]), size.rjust(widths[1]), *map(str.ljust, others, widths[2:]))
        yield "  ".join(cells).rstrip()


def _gpu_text(gpus: Sequence[Capability], room: int) -> str:
    """Return the capabilities of a row, with the products that fit into its column."""
    text, products = ", ".join(map(str, gpus)), ""
    known = [GPU_BY_CAPABILITY[gpu].display.split(", ") for gpu in gpus if gpu in GPU_BY_CAPABILITY]
    # Of each capability the first; then the last, which is often a card of a desktop.
    names = [row[0] for row in known] + [row[-1] for row in reversed(known)]
    # 8.8 has no product.
    for name in filter(None, dict.fromkeys(names)):
        short = name.removeprefix("GeForce ")
        more = f"{products}, {short}" if products else short
        products = more if len(more) <= min(_PRODUCTS, room - len(f"{text} ()")) else products
    return f"{text} ({products})" if products else text


def _range_text(sizes: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys((short_size(min(sizes)), short_size(max(sizes)))))
