"""A wheel of a mirror: slimmed, split, or kept with the reason.

In: a downloaded wheel and the edit of the mirror. Out: an `EditedWheel` with its files in a private
folder. A wheel that can't be edited is an output too: it stays as its index has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.arch.gpu_list import parse_gpu_targets
from archsplit.arch.target import Capability
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import (
    BinaryFormatError,
    NothingToDoError,
    TargetError,
    ToolFailedError,
    VerifyError,
    WheelError,
)
from archsplit.mirror.download import public_url
from archsplit.mirror.model import MirroredFile, MirroredWheel, OriginalWheel
from archsplit.slim.request import SlimRequest
from archsplit.slim.wheel import slim_wheel
from archsplit.split.model import SplitRequest
from archsplit.split.split import split_wheel
from archsplit.system.fs import sha256
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.metadata import RawMetadata

    from archsplit.mirror.model import MirrorEdit, ResolvedWheel
    from archsplit.release.context import Effects
    from archsplit.release.report import Release

NO_CODE_FOR_GPU = "it has no code for the GPU"
"""Beginning of the reason why a wheel of another GPU stays as it is."""

_PROPRIETARY = re.compile(r"proprietary|\bNVIDIA\b.*\b(EULA|agreement|license)\b", re.IGNORECASE)
_CLASSIFIER = "License :: "
_LICENSE_WORDS = 80
_NOTHING = "no device code can be removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedWheel:
    """A wheel of a mirror, and its files in a private folder.

    Attributes:
        paths: of `MirroredWheel.files`, in their order.
    """

    wheel: MirroredWheel
    paths: tuple[Path, ...] = field(repr=False)


def change_ban(raw: RawMetadata) -> str:
    """Return the licence in METADATA that forbids changes, or "".

    The names of proprietary licences are recognized: NVIDIA's licence of the CUDA toolkit forbids
    to modify its parts. A licence without such a name is not judged.
    """
    classifiers = (
        text.removeprefix(_CLASSIFIER)
        for text in raw.get("classifiers", [])
        if text.startswith(_CLASSIFIER)
    )
    texts = (raw.get("license_expression", ""), raw.get("license", ""), *classifiers)
    for text in texts:
        # `License` may be the whole text of a licence; its first line has the name.
        line = next(iter(text.strip().splitlines()), "")
        if _PROPRIETARY.search(line):
            return line[:_LICENSE_WORDS]
    return ""


def describe_original(path: Path, resolved: ResolvedWheel) -> OriginalWheel:
    """Return the record of an original.

    Raises:
        WheelError: the file is not a sound wheel.
    """
    # Wheels of others have small faults, which the edit judges, not this record.
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        license_name = change_ban(wheel.raw_metadata)
    # For an index without digests: the state names the bytes that were edited.
    digest = resolved.sha256 or sha256(path)
    return OriginalWheel(
        file=resolved.file,
        url=public_url(resolved.url),
        sha256=digest,
        size=path.stat().st_size,
        license=license_name,
    )


def edit_wheel(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    """Edit a wheel into ``out``; a wheel that can't be edited stays as it is.

    Args:
        path: the original, under its own name.
        out: a folder for only this wheel.

    Raises:
        OutputError: the output can't be written.
        ToolNotFoundError: a split needs a program that is missing.
    """
    try:
        if edit.kind == "slim":
            return _slim(path, original, edit, out, effects)
        if edit.kind == "split":
            return _split(path, original, edit, out, effects)
        reason = f"its licence forbids changes: {original.license}"
    except NothingToDoError:
        reason = _NOTHING
    except TargetError as error:
        reason = f"{NO_CODE_FOR_GPU}: {error.message}"
    # The wheel is as its index has it; a fault that a user could live with stays as it is.
    except (BinaryFormatError, ToolFailedError, VerifyError, WheelError) as error:
        reason = f"{edit.kind} fails: {error.message}"
    return _unchanged(path, original, edit, " ".join(reason.split()))


def _slim(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    request = SlimRequest(
        source=path,
        out=out,
        selection=Selection(
            devices=frozenset(map(Capability.parse, edit.devices)), ptx=PtxPolicy(edit.ptx)
        ),
        zeroes_unregistered={"zero": True, "keep": False}.get(edit.unregistered),
        recompress=edit.recompress,
    )
    report = slim_wheel(request, effects)
    # The slim report has the reason, for example that all images are needed.
    if report.output is None:
        reason = next(iter(report.notes), _NOTHING)
        return _unchanged(path, original, edit, " ".join(reason.split()))
    new = Path(report.output)
    return _edited(original, edit, (_mirrored_file(new),), (new,))


def _split(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    targets = parse_gpu_targets(",".join(edit.devices))
    request = SplitRequest(source=path, out=out, targets=targets, recompress=edit.recompress)
    release = split_wheel(request, effects)
    files = tuple(_release_files(release, edit.devices))
    return _edited(original, edit, files, tuple(out / file.file for file in files))


def _release_files(release: Release, devices: tuple[str, ...]) -> Iterator[MirroredFile]:
    needs = {} if release.split is None else release.split.needs
    for wheel in release.wheels:
        users = tuple(one for one in devices if wheel.label in needs.get(one, ()))
        # A pack that no GPU of the mirror needs would only take space.
        if wheel.role == "plugin" and not users:
            continue
        yield MirroredFile(
            name=wheel.distribution,
            version=release.version,
            file=wheel.file,
            sha256=wheel.sha256,
            size=wheel.size,
            role="plugin" if wheel.role == "plugin" else "core",
            devices=users,
        )


def _edited(
    original: OriginalWheel,
    edit: MirrorEdit,
    files: tuple[MirroredFile, ...],
    paths: tuple[Path, ...],
) -> EditedWheel:
    name = WheelName.parse(original.file)
    wheel = MirroredWheel(
        name=name.project,
        version=name.version,
        original=original,
        edit=edit,
        files=files,
        tool=__version__,
    )
    return EditedWheel(wheel=wheel, paths=paths)


def _unchanged(path: Path, original: OriginalWheel, edit: MirrorEdit, reason: str) -> EditedWheel:
    file = replace(_mirrored_file(path), sha256=original.sha256)
    edited = _edited(original, edit, (file,), (path,))
    return replace(edited, wheel=replace(edited.wheel, unchanged=reason))


def _mirrored_file(path: Path) -> MirroredFile:
    name = WheelName.parse(path.name)
    return MirroredFile(
        name=name.project,
        version=name.version,
        file=path.name,
        sha256=sha256(path),
        size=path.stat().st_size,
    )
