"""Records of a split: the request, and the core that is made of a fat wheel."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.devicecode.partition import PackBy
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.device_pack import PACK_FILE
from archsplit.release.identity import Identity, PackIdentity
from archsplit.release.requirements import pack_extras
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from packaging.metadata import RawMetadata

    from archsplit.arch.target import Target
    from archsplit.devicecode.partition import PackPlan
    from archsplit.formats.elf import ElfMachine
    from archsplit.release.manifest import SourceFile
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel


# A plain `pip install foo` can't know the GPU, so the project chooses what it brings.
class InstallDefaults(enum.Enum):
    """The plugins that come with a core installed by its name, and the meta wheel."""

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
        ignore_record: take the members as they are where RECORD is wrong; the core's is right.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A core that a split makes, before its wheel is written.

    Attributes:
        wheel: the fat wheel.
        name: the core's file name.
        package: the import package with the loader's folder.
        machine: of its libraries.
        source: the file that was split: the wheel, or the library that a wheel was made around.
        pack_plan: all packs of the release.
        libraries: the libraries without their images.
        table: the content of the core's own pack.
        install: see `SplitRequest`.
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
    table: bytes = field(repr=False)
    install: InstallDefaults = InstallDefaults.CORE

    @property
    def identity(self) -> Identity:
        """The core's identity."""
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
    def raw_metadata(self) -> RawMetadata:
        """The fat wheel's METADATA, unchecked."""
        # Unchecked, because the fat wheel was published with it: only what is added has to be
        # valid.
        return parse_email(self.wheel.read(f"{self.wheel.dist_info}/METADATA"))[0]

    def distribution(self, pack: str) -> str:
        """Return the distribution of a pack's wheel."""
        # `sm_90a` becomes `foo-sm90a`: the index treats `-`, `_` and `.` alike, and people don't.
        return distribution_name(f"{self.name.project}-{pack.replace('_', '')}")

    def descriptor(self, targets: Iterable[Target], *, cuda: int) -> Descriptor:
        """Return the descriptor of a pack, or of the table."""
        return Descriptor(
            package=self.name.project,
            version=self.name.version,
            build_id=bytes.fromhex(self.build_id),
            interface_hash=bytes.fromhex(self.interface_hash),
            cuda_version=cuda,
            shape=Shape.DEVICE,
            targets=tuple(sorted(targets)),
        )


def planned_extras(plan: PackPlan) -> dict[str, tuple[str, ...]]:
    """Return the extras of a core, each with the packs that it brings."""
    needs = {str(one): names for one, names in plan.needs.items()}
    return pack_extras((pack.name for pack in plan.packs), needs)
