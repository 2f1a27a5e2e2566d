"""The core's wheel: the fat one without device code, with the loader and what it has to know.

The wheel without files whose only use is to require a core and all of its packs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.devicecode.partition import PTX_PACK, REST_PACK, capability_extra
from archsplit.formats.device_pack import PACK_FILE, TABLE_FILE
from archsplit.release.identity import (
    HOOK_GROUP,
    IDENTITY_FILE,
    LOADER_LIBRARY,
    LOADER_PACKAGE,
    hook_entry_point,
    hook_files,
)
from archsplit.release.report import InstallDefaults
from archsplit.split.provenance import SBOM_MEMBER, core_bill
from archsplit.split.stub import renamed_stub
from archsplit.wheels.filename import ALL_EXTRA, WheelName, distribution_name
from archsplit.wheels.metadata import (
    CoreMetadata,
    WheelInfo,
    edit_metadata,
    edit_wheel_info,
    encode_metadata,
    read_extras,
)
from archsplit.wheels.rewrite import WheelRewrite, new_dist_info, write_members
from archsplit.wheels.zip_writer import pack, pack_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.devicecode.partition import PackPlan
    from archsplit.release.manifest import SourceFile
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import PackedContent

RESTORE = "restore"
"""The ending of the records by which libraries become fat again, beside the table."""

DOCTOR = '''"""Say which pack serves which GPU, and why: ``python -m {package}.doctor``."""

from .{face}.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the core's wheel is made of.

    Attributes:
        name: of the wheel.
        package: the import package that the loader's folder lies in.
        source: what was split: the wheel, or the library that it was made around.
        shares: all packs.
        table: the core's own pack.
        install: see `archsplit.release.report.SplitRequest`.
    """

    wheel: Wheel = field(repr=False)
    name: WheelName
    package: str
    source: SourceFile
    build_id: str
    interface_hash: str
    shares: PackPlan = field(repr=False)
    parts: tuple[StrippedLibrary, ...] = field(repr=False)
    table: bytes = field(repr=False)
    install: InstallDefaults = InstallDefaults.CORE

    @property
    def face(self) -> str:
        """The loader's folder."""
        return f"{self.package}/{LOADER_PACKAGE}"

    def write(
        self, file: BinaryIO, libraries: Mapping[str, PackedContent], *, loader: Path, stub: Path
    ) -> None:
        """Write the wheel.

        Args:
            libraries: those that were taken apart, by their names in the wheel.
            stub: what all stubs are made from.
        """
        metadata = f"{self.wheel.dist_info}/METADATA"
        changed = dict(libraries)
        changed[metadata] = pack(self._metadata(self.wheel.read(metadata)))
        info = f"{self.wheel.dist_info}/WHEEL"
        text = edit_wheel_info(self.wheel.read(info), tags=self.name.tags, build=self.name.build)
        changed[info] = pack(text)
        added = {name: pack(text) for name, text in self._added(stub.read_bytes())}
        self._add_hook(changed, added)
        added[f"{self.face}/{LOADER_LIBRARY}"] = pack_file(loader)
        own = new_dist_info(self.wheel, self.name)
        # A wheel that was split before has one already, and says more of its origin than we know.
        if f"{self.wheel.dist_info}/{SBOM_MEMBER}" not in self.wheel.names:
            added[f"{own}/{SBOM_MEMBER}"] = pack(core_bill(self, loader))
        rewrite = WheelRewrite(wheel=self.wheel, name=self.name, changed=changed, added=added)
        rewrite.write(file)

    def distribution(self, pack: str) -> str:
        """The distribution of a pack's wheel."""
        return distribution_name(f"{self.name.project}-{pack.replace('_', '')}")

    def _added(self, stub: bytes) -> Iterator[tuple[str, bytes]]:
        files = resources.files("archsplit_loader").iterdir()
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith(".py") or file.name == "py.typed":
                yield f"{self.face}/{file.name}", file.read_bytes()
        for part in self.parts:
            name = part.table.stub
            yield f"{self.face}/{name}", renamed_stub(stub, name)
            yield f"{self.face}/{name}.{RESTORE}", part.restore.encode()
        yield f"{self.face}/{TABLE_FILE}", self.table
        yield f"{self.face}/{IDENTITY_FILE}", self._identity().encode()
        doctor = f"{self.package}/doctor.py"
        if doctor not in self.wheel.names:
            yield doctor, DOCTOR.format(package=self.package, face=LOADER_PACKAGE).encode()

    def _add_hook(self, changed: dict[str, PackedContent], added: dict[str, PackedContent]) -> None:
        """Add the hook for PyInstaller, unless the project has a way of its own to give hooks."""
        old = f"{self.wheel.dist_info}/entry_points.txt"
        there = self.wheel.read(old) if old in self.wheel.names else b""
        if f"[{HOOK_GROUP}]".encode() in there:
            return
        text = there.rstrip() + b"\n\n" if there.strip() else b""
        text += hook_entry_point(self.package).encode()
        if old in self.wheel.names:
            changed[old] = pack(text)
        else:
            added[f"{new_dist_info(self.wheel, self.name)}/entry_points.txt"] = pack(text)
        files = hook_files(self.package).items()
        added.update((name, pack(each)) for name, each in files if name not in self.wheel.names)

    def _identity(self) -> str:
        packs = {
            pack.name: {
                "distribution": self.distribution(pack.name),
                "serves": list(map(str, pack.serves)),
            }
            for pack in self.shares.packs
        }
        content = {
            "schema": 1,
            "package": self.name.project,
            "version": self.name.version,
            "build_id": self.build_id,
            "interface_hash": self.interface_hash,
            "library": PACK_FILE,
            "plugins_package": f"{self.package}_plugins",
            "distribution": self.name.project,
            "targets": {},
            "packs": packs,
            "needs": {str(one): list(names) for one, names in self.shares.needs.items()},
            "source": self.source.sha256,
        }
        return json.dumps(content, indent=2) + "\n"

    def _metadata(self, text: bytes) -> bytes:
        """METADATA as it was, with the core's name and its packs' extras."""
        there = read_extras(text)
        lines = []
        for extra, packs in sorted(extras_of(self.shares).items()):
            lines += [] if extra in there else [f"Provides-Extra: {extra}"]
            lines += [f'Requires-Dist: {self.pin(pack)}; extra == "{extra}"' for pack in packs]
        if self.install is InstallDefaults.ALL:
            lines += [
                f"Requires-Dist: {self.pin(pack)}" for pack in extras_of(self.shares)[ALL_EXTRA]
            ]
        is_renamed = self.name.project != self.wheel.name.project
        return edit_metadata(text, name=self.name.project if is_renamed else "", fields=lines)

    def pin(self, pack: str) -> str:
        """Return the requirement of a pack's wheel."""
        return f"{self.distribution(pack)}=={self.name.version}"


def extras_of(shares: PackPlan) -> dict[str, tuple[str, ...]]:
    """The core's extras, each with the packs that it brings."""
    needed = tuple(pack.name for pack in shares.packs if pack.name != REST_PACK)
    extras = {capability_extra(one): names for one, names in shares.needs.items()}
    if PTX_PACK in needed:
        extras[PTX_PACK] = (PTX_PACK,)
    return {**extras, ALL_EXTRA: needed}


def meta_name(core: WheelName) -> WheelName:
    """What it is called: ``<core>-all``, for any machine."""
    project = distribution_name(f"{core.project}-{ALL_EXTRA}")
    return WheelName(project=project, version=core.version, platforms=("any",), build=core.build)


def write_meta(file: BinaryIO, core: Core, generator: str) -> None:
    """Write it."""
    name = meta_name(core.name)
    raw, _ = parse_email(core.wheel.read(f"{core.wheel.dist_info}/METADATA"))
    project = core.name.project
    metadata = CoreMetadata(
        name=name.project,
        version=name.version,
        summary=f"{project} with the device code for every GPU that it supports.",
        # See the packs': `twine check --strict` wants a text.
        description=f"Requires {project} and the device code for every GPU that it supports.\n",
        description_content_type="text/plain",
        license_expression=raw.get("license_expression", ""),
        requires_python=raw.get("requires_python", ""),
        requires=(f"{project}[{ALL_EXTRA}]=={name.version}",),
    )
    info = WheelInfo(generator=generator, tags=name.tags, purelib=True, build=name.build)
    own = {"METADATA": encode_metadata(metadata), "WHEEL": info.encode()}
    members = {f"{name.dist_info}/{each}": pack(text) for each, text in own.items()}
    write_members(file, name, members)
