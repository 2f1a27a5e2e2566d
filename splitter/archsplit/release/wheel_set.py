"""The reader of a release: all wheels of a folder, built or split, as one `WheelSet`.

In: a folder of wheels and a scratch folder. Out: the facts of each wheel that checks need. Every
member is read to its end and compared with RECORD. Libraries and device packs are unpacked on the
way, so that checks map them and read nothing twice. A wheel that can't be read becomes a finding,
and the others are still read.
"""

from __future__ import annotations

import contextlib
import hashlib
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.recompress import remake_image
from archsplit.devicecode.registered import read_library
from archsplit.errors import (
    ArchsplitError,
    BinaryFormatError,
    InputError,
    ToolFailedError,
    VerifyError,
    WheelError,
)
from archsplit.formats.device_pack import PACK_FILE, TABLE_FILE, read_pack
from archsplit.formats.elf import ELF_MAGIC
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import Window, open_file
from archsplit.release.findings import error_finding, finding
from archsplit.release.identity import (
    IDENTITY_ENDING,
    LOADER_PACKAGE,
    Identity,
    ReleaseKind,
    parse_identity,
)
from archsplit.release.report import find_report
from archsplit.system.fs import output_errors, sha256
from archsplit.system.parallel import ThreadPool
from archsplit.system.resources import available_cores
from archsplit.system.scratch import ScratchFiles
from archsplit.wheels.filename import ALL_EXTRA, WheelName, fitting_file
from archsplit.wheels.metadata import decode_upstream_metadata
from archsplit.wheels.reader import extract_member, open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from packaging.metadata import Metadata

    from archsplit.devicecode.registered import Library
    from archsplit.formats.device_pack import ImageForm, Pack
    from archsplit.release.report import Role
    from archsplit.system.finding import Finding
    from archsplit.wheels.reader import Wheel

    PlatformJudge = Callable[[Mapping[str, Path], tuple[str, ...]], tuple[str, ...]]

_MAX_READERS = 4
"""Wheels read at a time; more would hold more of their packs unpacked."""
_IDENTITY_DEPTH = 2
"""``<package>/_archsplit/core.json``: deeper files belong to a core inside of another package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """Facts of a wheel that the checks of a release need.

    Attributes:
        name: parsed from the file name.
        metadata: None for the core of a split whose METADATA an index would refuse: upstream wrote
            that file, and installers are less strict.
        members: the installed files, without ``.dist-info``.
        licenses: the license files in its own folder.
        identity: of a core; None for other wheels.
        unpacked: the libraries of a built wheel and the pack of a split one, by their member.
        libraries: the content of each ELF file of a built wheel, by its member.
        library_digests: SHA-256 of each of those libraries, by its member.
        platforms: auditwheel's tags for those libraries; empty without a library.
        pack: the device pack of a split's plugin, or the table of its core.
        digests: the SHA-256 of each image in the pack, by its offset there.
    """

    path: Path
    name: WheelName
    purelib: bool
    metadata: Metadata | None = field(repr=False)
    members: tuple[str, ...]
    licenses: tuple[str, ...] = ()
    identity: Identity | None = None
    unpacked: Mapping[str, Path] = field(default_factory=dict, repr=False)
    libraries: Mapping[str, Library] = field(default_factory=dict, repr=False)
    library_digests: Mapping[str, str] = field(default_factory=dict, repr=False)
    platforms: tuple[str, ...] = ()
    pack: Pack | None = field(default=None, repr=False)
    digests: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    @property
    def file(self) -> str:
        """File name."""
        return self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSet:
    """Wheels of a folder that are meant as one release.

    Attributes:
        identity: of the core, or given for wheels without a core; of several cores the first's, if
            they name the same packs; else None.
        wheels: those that can be read, sorted by file name.
        damaged: a finding for each of the others; its subject is the file name.
        is_view: True for the wheels of one core of several.
    """

    folder: Path
    kind: ReleaseKind
    identity: Identity | None
    wheels: tuple[WheelFacts, ...]
    damaged: tuple[Finding, ...] = ()
    is_view: bool = False

    @property
    def cores(self) -> tuple[WheelFacts, ...]:
        """Wheels with an identity: one, or one for each Python and platform."""
        return tuple(wheel for wheel in self.wheels if wheel.identity is not None)

    @property
    def place(self) -> str:
        """Python and platform of a view, as in `cp311-cp311-linux_x86_64`; else ""."""
        return self.cores[0].name.place if self.is_view else ""

    @property
    def views(self) -> tuple[WheelSet, ...]:
        """For each core the wheels that an installer takes for it; the whole set if it has one.

        Wheels that are not a plugin of a core are in every view.
        """
        # With one core the set is its own view.
        if len(self.cores) <= 1 or self.identity is None:
            return (self,)
        return tuple(self._view(core) for core in self.cores)

    def _view(self, core: WheelFacts) -> WheelSet:
        roles = {wheel.file: self.role(wheel) for wheel in self.wheels}
        names: dict[str, list[WheelName]] = {}
        for wheel in self.wheels:
            if roles[wheel.file] == "plugin":
                names.setdefault(wheel.name.project, []).append(wheel.name)
        fitting = {fitting_file(core.name, files) for files in names.values()}
        wheels = tuple(
            wheel
            for wheel in self.wheels
            if wheel is core or roles[wheel.file] in {None, "meta"} or wheel.name in fitting
        )
        return replace(self, identity=core.identity, wheels=wheels, is_view=True)

    @property
    def plugins(self) -> Mapping[str, WheelFacts]:
        """Plugin wheels by target or pack; sorted by file name."""
        plugins = {} if self.identity is None else self.identity.plugins
        names = {project: name for name, project in plugins.items()}
        return {
            names[wheel.name.project]: wheel for wheel in self.wheels if wheel.name.project in names
        }

    @property
    def projects(self) -> frozenset[str]:
        """Distributions with a wheel in the folder, damaged or not."""
        names = {wheel.name.project for wheel in self.wheels}
        # A damaged wheel is not a missing one: both findings would contradict each other.
        for one in self.damaged:
            with contextlib.suppress(WheelError):
                names.add(WheelName.parse(one.subject).project)
        return frozenset(names)

    def role(self, wheel: WheelFacts) -> Role | None:
        """Return the role of a wheel by its content and name; None for a foreign wheel."""
        if wheel.identity is not None:
            return "core"
        if self.identity is None:
            return None
        if wheel.name.project in self.identity.plugins.values():
            return "plugin"
        is_meta = wheel.name.project == f"{self.identity.distribution}-{ALL_EXTRA}"
        return "meta" if is_meta else None

    def require_cores(self) -> tuple[WheelSet, ...]:
        """Return the views of wheels that are all sound: each has one core.

        Raises:
            VerifyError: wheels are damaged, no core was found, or releases differ.
        """
        if self.damaged:
            raise VerifyError("wheels are damaged:", findings=self.damaged)
        if self.identity is None or not self.cores:
            raise VerifyError("wheels of different releases:", findings=(*core_faults(self),))
        return self.views


def core_faults(release: WheelSet) -> Iterator[Finding]:
    """Find no core, or several that are not of one release; and packs that no core takes.

    A build of only plugins has the identity of its core.
    """
    cores = release.cores
    taken = {wheel.file for view in release.views for wheel in view.wheels}
    for wheel in release.wheels:
        if wheel.file not in taken:
            text = "matches the Python and platform of no core here"
            yield finding("not-of-release", wheel.file, text)
    if release.identity is None:
        names = ", ".join(core.file for core in cores) or "none"
        found = f"one core is needed, but found {names}"
        yield finding("one-core", str(release.folder), found)


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """Return the wheels of a folder, sorted."""
    return tuple(sorted(path for path in folder.glob("*.whl") if not path.name.startswith(".")))


class WheelReads:
    """Reads of wheels, each to its end, several at a time.

    Args:
        scratch: for unpacked libraries and packs.
        kind: of all wheels.
        keep_packs: see `read_wheel_set`.
        are_new: images were turned back when they were made, and are not again.
    """

    def __init__(
        self, scratch: ScratchFiles, kind: ReleaseKind, *, keep_packs: bool, are_new: bool = False
    ) -> None:
        self.scratch = scratch
        self.kind, self._keep_packs, self._are_new = kind, keep_packs, are_new
        self._workers = ThreadPool(min(available_cores(), _MAX_READERS))
        self._jobs: dict[Path, Future[WheelFacts]] = {}

    def begin(self, path: Path) -> Future[WheelFacts]:
        """Begin to read a finished wheel; each is read once."""
        if path not in self._jobs:
            self._jobs[path] = self._workers.submit(
                _read_wheel,
                path,
                self.kind,
                self.scratch,
                keep_packs=self._keep_packs,
                is_new=self._are_new,
            )
        return self._jobs[path]

    def close(self) -> None:
        """Wait for running reads, and drop the others."""
        self._workers.shutdown(cancel_futures=True)


def read_wheel_set(
    folder: Path,
    scratch: Path,
    *,
    paths: Sequence[Path] | None = None,
    platforms: PlatformJudge | None = None,
    identity: Identity | None = None,
    keep_packs: bool = True,
    begun: WheelReads | None = None,
) -> WheelSet:
    """Read every wheel of a folder to its end.

    Args:
        paths: the wheels to read; None for all in the folder.
        scratch: for unpacked libraries and packs, which the result refers to.
        platforms: returns auditwheel's tags for libraries, where those that other wheels provide
            are there; None to leave the tags of built wheels unchecked.
        identity: of the core, for plugins that were built without it.
        keep_packs: False to keep only the digests of images, and at most four unpacked packs on the
            disk at a time.
        begun: reads of these wheels that have begun, as they were written.

    Raises:
        InputError: the folder has no wheel.
    """
    if paths is None:
        paths = wheels_in(folder) if folder.is_dir() else ()
    if not paths:
        found = f"no wheel in {folder}" if folder.is_dir() else f"{folder} is not a folder"
        raise InputError(found, hint="give the folder that archsplit build or split wrote to")
    identities, reads = list[Identity](), begun
    if reads is None:
        outlines = [_read_outline(path) for path in paths]
        identities = [one for one, _ in outlines if one is not None]
        kind = _find_kind(folder, [*identities, *filter(None, [identity])], outlines)
        reads = WheelReads(ScratchFiles(scratch, memory=0), kind, keep_packs=keep_packs)
    with contextlib.closing(reads):
        # Inflating leaves the interpreter to others. The largest wheel, a core, begins first.
        for path in sorted(paths, key=lambda one: -one.stat().st_size):
            reads.begin(path)
        jobs = [reads.begin(path) for path in paths]
        wait(jobs)
    provided = tuple(name for one in (*identities, identity) if one for name in one.provided)
    # One damaged wheel must not hide the findings about the others.
    read = [_judge_wheel(job.result, platforms, provided) for job in jobs]
    wheels = tuple(each for each in read if isinstance(each, WheelFacts))
    cores = [wheel.identity for wheel in wheels if wheel.identity is not None]
    return WheelSet(
        folder=folder,
        kind=reads.kind,
        identity=_common_identity(cores) if cores else identity,
        wheels=wheels,
        damaged=tuple(
            _damaged_wheel(path, each, reads.scratch.folder / path.name)
            for path, each in zip(paths, read, strict=True)
            if isinstance(each, ArchsplitError)
        ),
    )


def _damaged_wheel(path: Path, error: ArchsplitError, scratch: Path) -> Finding:
    # The path of our own copy helps no user, and differs from one reading to the next.
    plain = error.message.replace(f"{scratch}/", "")
    return error_finding(path.name, type(error)(plain))


def _judge_wheel(
    read: Callable[[], WheelFacts], platforms: PlatformJudge | None, provided: tuple[str, ...]
) -> WheelFacts | ArchsplitError:
    """Return the facts of a wheel with its platform tags, or the error."""
    try:
        wheel = read()
        if not wheel.libraries or platforms is None:
            return wheel
        return replace(wheel, platforms=platforms(wheel.unpacked, provided))
    except (BinaryFormatError, InputError, ToolFailedError, WheelError) as error:
        return error


def _common_identity(cores: list[Identity]) -> Identity | None:
    """Return the identity of the first core, or None if others are of another release."""
    alike = {str(replace(core, source="")) for core in cores}
    # Each core of a build has plugins of its own.
    is_split = all(core.kind is ReleaseKind.SPLIT for core in cores)
    return cores[0] if len(cores) == 1 or (is_split and len(alike) == 1) else None


def _find_kind(
    folder: Path,
    identities: list[Identity],
    outlines: list[tuple[Identity | None, bool]],
) -> ReleaseKind:
    """Return the kind of a release: of its core, its report, or the form of its plugins."""
    if identities:
        return identities[0].kind
    # A report that can't be read is reported by the checks, of either kind.
    with contextlib.suppress(InputError):
        report = find_report(folder)
        if report is not None:
            return report.kind
    has_pack = any(has_pack for _, has_pack in outlines)
    return ReleaseKind.SPLIT if has_pack else ReleaseKind.BUILT


def _read_outline(path: Path) -> tuple[Identity | None, bool]:
    """Return a core's identity, and True for a wheel with a pack or table.

    Both have to be known before any wheel can be judged. A damaged wheel is reported later.
    """
    with contextlib.suppress(ArchsplitError), open_wheel(path, same_tags=False) as wheel:
        has_pack = any(name.endswith(f"/{PACK_FILE}") for name in wheel.names)
        with contextlib.suppress(ArchsplitError):
            return read_identity(wheel), has_pack
        return None, has_pack
    return None, False


def _read_wheel(
    path: Path, kind: ReleaseKind, scratch: ScratchFiles, *, keep_packs: bool, is_new: bool
) -> WheelFacts:
    # Public fat wheels contradict their own tags; installers go by the file name, and so does
    # the core of a split.
    with open_wheel(path, same_tags=kind is ReleaseKind.BUILT) as wheel:
        own, licenses = f"{wheel.dist_info}/", f"{wheel.dist_info}/licenses/"
        members = tuple(name for name in wheel.names if not name.startswith(own))
        is_wanted = partial(_is_elf, wheel) if kind is ReleaseKind.BUILT else _is_pack
        wanted = tuple(filter(is_wanted, members))
        wheel.check_contents(besides=wanted)
        files = {name: _unpack(wheel, name, scratch, n) for n, name in enumerate(wanted)}
        identity = read_identity(wheel)
        is_upstream = kind is ReleaseKind.SPLIT and identity is not None
        facts = WheelFacts(
            path=path,
            name=wheel.name,
            purelib=wheel.info.purelib,
            metadata=_read_metadata(wheel, is_upstream=is_upstream),
            members=tuple(wheel.installed_path(name) or name for name in members),
            licenses=tuple(
                name.removeprefix(licenses) for name in wheel.names if name.startswith(licenses)
            ),
            identity=identity,
            unpacked=files,
        )
        if kind is ReleaseKind.SPLIT:
            return _with_pack(facts, None if keep_packs else scratch, is_new=is_new)
        libraries = {name: read_library(file) for name, file in files.items()}
        digests = {name: sha256(file) for name, file in files.items()}
        return replace(facts, libraries=libraries, library_digests=digests)


def _with_pack(facts: WheelFacts, scratch: ScratchFiles | None, *, is_new: bool) -> WheelFacts:
    """Return the facts with the pack or table among the unpacked files.

    Args:
        scratch: to remove these files; None to keep them.
    """
    pack = _read_pack(facts.unpacked)
    if pack is None:
        return facts
    digests = _digest_images(pack, turns_back=not is_new)
    if scratch is not None:
        # The file takes space until its last mapping ends.
        pack = replace(pack, window=Window(b"", source=pack.window.source))
        for file in facts.unpacked.values():
            scratch.remove(file)
    return replace(facts, pack=pack, digests=digests)


def _read_metadata(wheel: Wheel, *, is_upstream: bool) -> Metadata | None:
    if not is_upstream:
        return wheel.metadata()
    try:
        return decode_upstream_metadata(wheel.read(f"{wheel.dist_info}/METADATA"))
    except WheelError:
        return None


def _read_pack(files: Mapping[str, Path]) -> Pack | None:
    packs = [
        read_pack(open_file(path), is_table=name.endswith(TABLE_FILE))
        for name, path in files.items()
    ]
    # Several packs in one wheel are reported as files that the wheel should not have.
    return packs[0] if len(packs) == 1 else None


def _digest_images(pack: Pack, *, turns_back: bool = True) -> dict[int, bytes]:
    """Return the digests of a pack's images; a table has rows and no images.

    Raises:
        VerifyError: an image that is stored in another form doesn't give the vendor's bytes.
    """
    digests = {}
    for _, image in pack.images():
        if image.offset:
            content = pack.content(image)
            digests[image.offset] = hashlib.sha256(content.data).digest()
            if turns_back and image.form and digests[image.offset] == image.digest:
                _check_form(content, image.form)
            # A pack has gigabytes, and most readers need these pages no more.
            release_pages(content)
    return digests


def _check_form(content: Window, form: ImageForm) -> None:
    try:
        remake_image(content.data, form)
    except BinaryFormatError as error:
        raise VerifyError(f"{content.source}: {error}", hint="split the fat wheel again") from error


def read_identity(wheel: Wheel) -> Identity | None:
    """Return the identity of a core; None for every other wheel."""
    for name in wheel.names:
        if name.endswith(IDENTITY_ENDING) and name.count("/") == _IDENTITY_DEPTH:
            return parse_identity(wheel.read(name), where=name)
    return None


def _unpack(wheel: Wheel, name: str, scratch: ScratchFiles, number: int) -> Path:
    folder = scratch.folder / wheel.path.name
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Members of several folders may have one file name.
    file = f"{folder.name}/{number}.{PurePosixPath(name).name}"
    path = scratch.create(file, wheel.archive.members[name].file_size)
    extract_member(wheel.archive, wheel.row(name), path)
    return path


def _is_pack(name: str) -> bool:
    return name.endswith((f"/{PACK_FILE}", f"/{LOADER_PACKAGE}/{TABLE_FILE}"))


def _is_elf(wheel: Wheel, name: str) -> bool:
    with wheel.open(name) as stream:
        return stream.read(len(ELF_MAGIC)) == ELF_MAGIC
