"""The text that a split prints about its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.devicecode.partition import REST_PACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.report import Release, ReleaseWheel, SplitDetails

__pure__ = True

_GROWN = 1.25
"""Ratio of all wheels to the fat file above which ``--by target`` is proposed."""


def split_summary(release: Release) -> str:
    """Return the wheels of a split, their sizes, and the code that was not moved."""
    details = release.split
    if details is None:
        raise ValueError("a build has no summary of a split")
    lines = [f"{details.source} is now"]
    lines += [
        f"  {wheel.size / 1e6:8.1f} MB  {wheel.file}  {_purpose(wheel, details)}"
        for wheel in release.wheels
    ]
    lines += _totals(release, details)
    for library in details.libraries:
        before, after = library.size_before / 1e6, library.size_after / 1e6
        lines.append(f"{library.name}: {before:.1f} -> {after:.1f} MB")
        lines += [f"  {note}" for note in library.notes]
    for code in details.unmoved:
        what = f"{code.images} images, {code.size / 1e6:.1f} MB" if code.images else "what it has"
        lines.append(f"{code.name}: {what} stay: {code.why}")
    lines += details.notes
    return "\n".join(lines)


def _purpose(wheel: ReleaseWheel, details: SplitDetails) -> str:
    if wheel.gpus:
        return f"GPUs of capability {', '.join(wheel.gpus)}"
    gpus = [one for one, packs in details.needs.items() if wheel.label in packs]
    return f"part for GPUs of capability {', '.join(gpus)}" if gpus else wheel.label


def _totals(release: Release, details: SplitDetails) -> Iterator[str]:
    """Compare the sum with the fat file; list the downloads of each kind of GPU."""
    total = sum(wheel.size for wheel in release.wheels)
    fat = ""
    # Reports of older versions lack the size.
    if details.source_size:
        times = total / details.source_size
        fat = f", {times:.2f} times the fat wheel's {details.source_size / 1e6:.1f} MB"
    yield f"together {total / 1e6:.1f} MB{fat}"
    size_by_label = {wheel.label: wheel.size for wheel in release.wheels}
    gpus: dict[tuple[str, ...], list[str]] = {}
    for capability, packs in details.needs.items():
        gpus.setdefault(packs, []).append(capability)
    for packs, capabilities in gpus.items():
        size = size_by_label["core"] + sum(size_by_label[pack] for pack in packs)
        what = f"core, {', '.join(packs)}"
        yield f"  a GPU of {', '.join(capabilities)} downloads {size / 1e6:.1f} MB: {what}"
    # Only `archsplit join` needs the last pack, so it is not published.
    names = {wheel.distribution for wheel in release.wheels if wheel.label != REST_PACK}
    yield f"names on the index: {len(names)}"
    by_capability = any(wheel.gpus for wheel in release.wheels)
    if by_capability and 0 < _GROWN * details.source_size < total:
        yield (
            "note: images that several kinds of GPU take are in several packs; --by target puts"
            " each in one, with more packs for each GPU"
        )
