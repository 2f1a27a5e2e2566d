"""Records of a split: the request, the cores of a release, and their device code.

A core is made of one fat wheel. `plan_contents` joins the device code of all cores: containers with
the same images are one, from any core, library or place. Its result is the packs
over all containers, divided into files, and the hashes that tie packs and cores together.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.devicecode.partition import (
    PackBy,
    ReleaseCores,
    divide_packs,
    image_sizes,
    plan_packs,
)
from archsplit.devicecode.recompress import DEFAULT_LEVEL, SLOW_LEVEL
from archsplit.devicecode.select import code_targets, runs_linked_code
from archsplit.formats.descriptor import Shape
from archsplit.formats.device_pack import PACK_FILE, encode_table
from archsplit.release.identity import Identity, PackIdentity
from archsplit.release.requirements import pack_extras
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.zip_writer import PACK_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.partition import PackFile, PackPlan
    from archsplit.devicecode.recompress import ImageResult
    from archsplit.devicecode.registered import RegisteredContainer
    from archsplit.formats.device_pack import PackContainer, PackImage, PackLibrary
    from archsplit.formats.elf import ElfMachine
    from archsplit.release.manifest import SourceFile
    from archsplit.release.report import Release
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel


OLDEST_CUDA = 11000
"""CUDA version of packs whose toolkit is not known, which no driver refuses."""


# A plain `pip install foo` can't know the GPU, so the project chooses what it brings.
class InstallDefaults(enum.Enum):
    """Plugins that come with a core installed by its name, and the meta wheel."""

    CORE = "core"
    ALL = "all"
    META = "meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """A request to split a wheel or a library.

    Attributes:
        source: a wheel or a library; never changed.
        others: more wheels of the same release, for other Pythons and platforms.
        out: the folder for all output.
        name: the core's distribution, if not the fat wheel's name.
        version: the version of all new wheels, if not the fat wheel's.
        by: the meaning of one pack: a capability or a target.
        targets: pack no more than the GPUs of these targets need; None for everything.
        install: ``ALL``: the core requires every pack, so that its users get the code of the fat
            wheel; else packs come with extras. ``META``: and one more wheel, ``<name>-all``,
            requires the core and every pack.
        release: the core gets the fat wheel's file name, to be published in its place. Otherwise a
            core of the fat wheel's name and version has a build tag, which installers prefer.
        ignore_record: take the members as they are if RECORD is wrong; the core's is right.
        recompress: the level of zstd frames for images; None keeps the vendor's bytes.
        dropped: extras of earlier releases whose packs this one lacks.
        check: raises an error for a release whose files must not be put in place.
    """

    source: Path
    out: Path
    others: tuple[Path, ...] = ()
    name: str | None = None
    version: str | None = None
    by: PackBy = PackBy.CAPABILITY
    targets: tuple[Target, ...] | None = None
    install: InstallDefaults = InstallDefaults.CORE
    release: bool = False
    ignore_record: bool = False
    recompress: int | None = DEFAULT_LEVEL
    dropped: tuple[str, ...] = ()
    check: Callable[[Release], None] | None = field(default=None, repr=False)

    @property
    def deflate_level(self) -> int:
        """Level of libdeflate for libraries: with slow frames, ten times the time counts less."""
        return {None: PACK_LEVEL, DEFAULT_LEVEL: 7, SLOW_LEVEL: 10}[self.recompress]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImages:
    """Images of a release as packs store them.

    Attributes:
        results: by the SHA-256 of the vendor's image; an image without one is the vendor's.
    """

    results: Mapping[bytes, ImageResult] = field(default_factory=dict, repr=False)

    def row(self, image: PackImage) -> PackImage:
        """Return the row of an image as it is stored, from the vendor's row."""
        result = self.results.get(image.digest)
        return image if result is None else result.row(image)

    def library(self, table: PackLibrary) -> PackLibrary:
        """Return the rows of a library with all images as they are stored."""
        containers = (
            replace(one, images=tuple(map(self.row, one.images))) for one in table.containers
        )
        return replace(table, containers=tuple(containers))

    def content(self, image: PackImage) -> bytes:
        """Return the bytes of a stored image; b"" if it is in the vendor's form."""
        result = self.results.get(image.original.digest)
        return b"" if result is None else result.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A core that a split makes, before its wheel is written.

    Attributes:
        wheel: the fat wheel.
        name: the parts of the core's file name.
        package: the import package with the loader's folder.
        machine: of its libraries.
        source: the file that was split: the wheel, or the library that a wheel was made around.
        pack_plan: all packs of the release.
        libraries: the libraries without their images.
        stored: the images that packs store in another form.
        install, dropped: see `SplitRequest`.
    """

    wheel: Wheel = field(repr=False)
    name: WheelName
    package: str
    machine: ElfMachine
    source: SourceFile
    build_id: str
    interface_hash: str
    pack_plan: PackPlan = field(repr=False)
    libraries: tuple[StrippedLibrary, ...] = field(repr=False)
    stored: StoredImages = field(repr=False)
    install: InstallDefaults = InstallDefaults.CORE
    dropped: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """Identity of the core."""
        return Identity(
            package=self.name.project,
            version=self.name.version,
            build_id=self.build_id,
            interface_hash=self.interface_hash,
            library=PACK_FILE,
            plugins_package=f"{self.package}_plugins",
            distribution=self.name.project,
            targets={},
            packs={
                pack.name: PackIdentity(
                    distribution=self.distribution(pack.name),
                    serves=tuple(map(str, pack.serves)),
                )
                for pack in self.pack_plan.packs
            },
            needs={str(one): tuple(names) for one, names in self.pack_plan.needs.items()},
            source=self.source.sha256,
        )

    @property
    def file(self) -> str:
        """File name of the core; in the fat wheel's place it is the fat wheel's."""
        # Byte for byte: tags and project may be spelled in several ways that are equal for an
        # installer, and an index would have two files of one wheel.
        return self.wheel.path.name if self.name == self.wheel.name else str(self.name)

    @property
    def table(self) -> bytes:
        """Content of the core's own pack; waits until all its libraries were read again."""
        targets = {
            # The table is not a plugin; its descriptor lists what all packs have together.
            image.target
            for library in self.libraries
            for row in library.rows
            for image in row.images
        }
        descriptor = self.identity.descriptor(sorted(targets), cuda=OLDEST_CUDA, shape=Shape.DEVICE)
        tables = (one.written.result().table for one in self.libraries)
        return encode_table(descriptor, map(self.stored.library, tables))

    def distribution(self, pack: str) -> str:
        """Return the distribution of a pack's wheel."""
        # `sm_90a` becomes `foo-sm90a`: the index treats `-`, `_` and `.` alike, and people don't.
        return distribution_name(f"{self.name.project}-{pack.replace('_', '')}")


def planned_extras(plan: PackPlan) -> dict[str, tuple[str, ...]]:
    """Return the extras of a core, each with the packs that it brings."""
    needs = {str(one): names for one, names in plan.needs.items()}
    return pack_extras((pack.name for pack in plan.packs), needs)


_ABI = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3|cp\d+[\w-]*)(?=\.so)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContainer:
    """A container of one or several cores.

    Attributes:
        library: the name of the first library that has it, without the tag of a Python.
        part: that library.
        place: the container there.
        row: its row, without addresses.
        unneeded: the capabilities that have linked code in place of it.
    """

    library: str
    part: StrippedLibrary = field(repr=False)
    place: RegisteredContainer = field(repr=False)
    row: PackContainer = field(repr=False)
    unneeded: frozenset[Capability] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContents:
    """Device code of all cores of a release.

    Attributes:
        containers: each once, in the order of the cores.
        plan: the packs; `PackContents.offsets` follow the order of the containers.
        files: the files of the packs.
        interface_hash: a hash over the keys of all containers, 64 hexadecimal digits.
    """

    containers: tuple[SharedContainer, ...] = field(repr=False)
    plan: PackPlan
    files: tuple[PackFile, ...]
    interface_hash: str


def plan_contents(
    cores: Sequence[tuple[str, tuple[StrippedLibrary, ...]]], request: SplitRequest, subject: str
) -> ReleaseContents:
    """Divide the device code of all cores into packs and files.

    Args:
        cores: the machine and the stripped libraries of each.
        subject: the names of the sources, for messages.

    Raises:
        TargetError: no image is for one of the request's targets.
    """
    by_key: dict[bytes, SharedContainer] = {}
    holders: dict[bytes, set[int]] = {}
    for number, (_, parts) in enumerate(cores):
        for part in parts:
            linked = [code_targets(one.entries) for one in part.moved if one.is_linked]
            gpus = frozenset(gpu for gpu in GPU_BY_CAPABILITY if runs_linked_code(linked, gpu))
            for place, row in zip(part.moved, part.rows, strict=True):
                one = SharedContainer(
                    library=library_name(part.name),
                    part=part,
                    place=place,
                    row=row,
                    unneeded=gpus if place.is_input else frozenset(),
                )
                # Another library may have the same input without its linked code.
                known = by_key.setdefault(row.key, one)
                by_key[row.key] = replace(known, unneeded=known.unneeded & one.unneeded)
                holders.setdefault(row.key, set()).add(number)
    entries = [one.place.entries for one in by_key.values()]
    unneeded = [one.unneeded for one in by_key.values()]
    plan, files = divide_packs(
        plan_packs(entries, request.by, request.targets, unneeded, subject),
        ReleaseCores(
            machines=tuple(machine for machine, _ in cores),
            holders=tuple(map(frozenset, holders.values())),
        ),
        image_sizes(entries),
    )
    return ReleaseContents(
        containers=tuple(by_key.values()),
        plan=plan,
        files=files,
        interface_hash=hashlib.sha256(b"".join(sorted(by_key))).hexdigest(),
    )


def contents_build_id(contents: ReleaseContents, request: SplitRequest, name: WheelName) -> str:
    """Return the build id of a release: a hash over its images, its name and the options."""
    targets = None if request.targets is None else sorted(map(str, request.targets))
    facts = [name.project, name.version, name.build, request.by.value, targets]
    # The keys know only the vendor's images, so the level has to be in the build id.
    level = request.recompress
    facts += [] if level is None else [f"zstd {level}"]
    return hashlib.sha256(json.dumps([*facts, contents.interface_hash]).encode()).hexdigest()


def library_name(place: str) -> str:
    """Return the path of a library without the tag of a Python.

    >>> library_name("foo/_core.cpython-311-x86_64-linux-gnu.so")
    'foo/_core.so'
    """
    return _ABI.sub("", place)
