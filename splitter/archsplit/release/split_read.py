"""Reader of the wheels of a split: the core, its packs and the meta wheel.

Every wheel is read to its end, and packs are unpacked into a scratch folder, two at a time. Damaged
wheels are reported together.
"""

from __future__ import annotations

import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from archsplit.devicecode.scan import release_pages
from archsplit.errors import ArchsplitError, BinaryFormatError, InputError, VerifyError, WheelError
from archsplit.formats.device_pack import PACK_FILE, TABLE_FILE, read_pack
from archsplit.formats.reader import Window, open_file
from archsplit.release.findings import ReleaseKind, error_finding, finding
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE, PluginKind, parse_identity
from archsplit.release.list_checks import wheels_in
from archsplit.release.report import find_report
from archsplit.release.wheel_checks import meta_faults
from archsplit.system.fs import output_errors
from archsplit.wheels.reader import extract_member, open_wheel
from archsplit.wheels.record import RecordRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from packaging.metadata import Metadata

    from archsplit.formats.device_pack import Pack, PackImage
    from archsplit.release.identity import Identity, PackIdentity
    from archsplit.system.finding import Finding
    from archsplit.wheels.reader import Wheel


_NO_PACK = "is neither the core nor one of its packs"
_fault = partial(finding, ReleaseKind.SPLIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCore:
    """A core's wheel.

    Attributes:
        path: of the wheel.
        identity: of the core.
        face: the loader's folder in the wheel.
        table: every image of the fat wheel.
    """

    path: Path
    identity: Identity
    face: str
    table: Pack = field(repr=False)

    @property
    def packs(self) -> Mapping[str, PackIdentity]:
        """The packs of the core by name."""
        return self.identity.packs

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """The packs that each capability needs."""
        return self.identity.needs


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPack:
    """A device wheel.

    Attributes:
        name: of its pack.
        digests: of all images as they are in the pack, if the pack was not kept.
    """

    path: Path
    name: str
    metadata: Metadata = field(repr=False)
    pack: Pack = field(repr=False)
    digests: Mapping[tuple[int, int, int], bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMeta:
    """A wheel without files, which requires others."""

    path: Path
    metadata: Metadata = field(repr=False)


def is_split(folder: Path) -> bool:
    """Return True if a folder has a split's report, its core or a pack."""
    with contextlib.suppress(InputError):
        release = find_report(folder)
        if release is not None and release.kind is PluginKind.PACK:
            return True
    # A report that can't be read is reported by the checks, of either kind.
    return any(map(_has_pack, wheels_in(folder)))


def read_split(
    folder: Path, scratch: Path, *, keep: bool = True
) -> tuple[SplitCore, tuple[SplitPack, ...]]:
    """Read all wheels to their end; unpack the packs into ``scratch``.

    Args:
        keep: keep the unpacked packs; without, only the digests of their images are kept, and at
            most two packs are on the disk at a time.

    Raises:
        InputError: a file can't be read.
        VerifyError: wheels are damaged, or neither a core nor a pack's, nor require them all; lists
            every one. Or there is no core, or more than one.
    """
    read = _read_all(wheels_in(folder), scratch, keep=keep)
    cores = [one for one in read if isinstance(one, SplitCore)]
    if len(cores) != 1:
        names = ", ".join(core.path.name for core in cores) or "none"
        fault = _fault("one-core", str(folder), f"one core is needed, and there is {names}")
        raise VerifyError("the wheels are not those of one split:", findings=(fault,))
    faults = tuple(
        fault
        for one in read
        if isinstance(one, SplitMeta)
        for fault in meta_faults(one.path.name, one.metadata, (), cores[0].identity)
    )
    if faults:
        raise VerifyError("a wheel requires something else:", findings=faults)
    return cores[0], tuple(one for one in read if isinstance(one, SplitPack))


def _read_all(
    paths: tuple[Path, ...], scratch: Path, *, keep: bool
) -> list[SplitCore | SplitPack | SplitMeta]:
    # Unpacking leaves the interpreter to others, so two wheels are read at a time.
    with ThreadPoolExecutor(2) as workers:
        jobs = [
            workers.submit(_read, path, scratch / str(number), keep=keep)
            for number, path in enumerate(paths)
        ]
    findings: list[Finding] = []
    for number, (path, job) in enumerate(zip(paths, jobs, strict=True)):
        error = job.exception()
        if isinstance(error, VerifyError):
            findings += error.findings
        elif isinstance(error, (BinaryFormatError, WheelError)):
            # The place of our own copy helps nobody, and differs from one reading to the next.
            plain = type(error)(error.message.replace(f"{scratch / str(number)}/", ""))
            findings.append(error_finding(ReleaseKind.SPLIT, path.name, plain))
    if findings:
        raise VerifyError("wheels are damaged:", findings=tuple(findings))
    return [job.result() for job in jobs]


def _read(path: Path, room: Path, *, keep: bool) -> SplitCore | SplitPack | SplitMeta:
    with output_errors(room):
        room.mkdir()
    with open_wheel(path, same_tags=False) as wheel:
        place = next((name for name in wheel.names if _is_table(name)), None)
        if place is not None:
            return _core(wheel, place, room)
        if all(name.startswith(f"{wheel.dist_info}/") for name in wheel.names):
            wheel.check_contents()
            return SplitMeta(path=path, metadata=wheel.metadata())
        return _pack(wheel, room, keep=keep)


def _core(wheel: Wheel, place: str, scratch: Path) -> SplitCore:
    wheel.check_contents()
    face = place.removesuffix(f"/{TABLE_FILE}")
    table = _unpacked(wheel, place, scratch / TABLE_FILE)
    identity = parse_identity(wheel.read(f"{face}/{IDENTITY_FILE}"), where=IDENTITY_FILE)
    return SplitCore(
        path=wheel.path,
        identity=identity,
        face=face,
        table=read_pack(open_file(table), is_table=True),
    )


def _pack(wheel: Wheel, scratch: Path, *, keep: bool) -> SplitPack:
    places = [name for name in wheel.names if name.endswith(f"/{PACK_FILE}")]
    others = [name for name in wheel.names if not name.startswith(f"{wheel.dist_info}/")]
    if len(places) != 1 or others != places:
        fault = _fault("not-of-release", wheel.path.name, _NO_PACK)
        raise VerifyError("a wheel is not of a split:", findings=(fault,))
    name = places[0].split("/")[-2]
    file = _unpacked(wheel, places[0], scratch / PACK_FILE)
    pack = read_pack(open_file(file))
    for own in set(wheel.names) - set(places):
        wheel.read(own)
    digests = {}
    if not keep:
        digests = {key: _digest(pack, image) for key, image in pack.images()}
        # The file takes space until its last mapping ends.
        pack = replace(pack, window=Window(b"", source=pack.window.source))
        file.unlink()
    metadata = wheel.metadata()
    return SplitPack(path=wheel.path, name=name, metadata=metadata, pack=pack, digests=digests)


def _digest(pack: Pack, image: PackImage) -> bytes:
    content = pack.content(image)
    digest = hashlib.sha256(content.data).digest()
    release_pages(content)
    return digest


def _unpacked(wheel: Wheel, name: str, path: Path) -> Path:
    extract_member(wheel.archive, wheel.record.get(name, RecordRow(path=name)), path)
    return path


def _is_table(name: str) -> bool:
    return name.endswith(f"/{LOADER_PACKAGE}/{TABLE_FILE}")


def _has_pack(path: Path) -> bool:
    try:
        with open_wheel(path, same_tags=False) as wheel:
            return any(_is_table(name) or name.endswith(f"/{PACK_FILE}") for name in wheel.names)
    except ArchsplitError:
        # Whoever reads it says what is wrong with it.
        return False


_T = TypeVar("_T")


def read_wheels(folder: Path, read: Callable[[Wheel], _T]) -> dict[str, _T]:
    """Return the results of reading each readable wheel, by file name.

    Damaged wheels are left out: other checks report them.
    """
    found = {}
    for path in wheels_in(folder):
        with contextlib.suppress(ArchsplitError), open_wheel(path, same_tags=False) as wheel:
            found[path.name] = read(wheel)
    return found
