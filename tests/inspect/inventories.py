"""Made-up inventories and users, as small as possible."""

from __future__ import annotations

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.model import File, Image, Inventory, Place, Unit
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.inspect.gpu_table import GpuTable
from archsplit.release.report import BuildDetails, Plugin, Release, ReleaseWheel

KINDS = {CodeKind.SASS: EntryKind.CUBIN, CodeKind.PTX: EntryKind.PTX}


def image(name: str, size: int, *, kind: EntryKind | None = None, packed: bool = True) -> Image:
    target = Target.parse(name)
    found = kind or KINDS[target.kind]
    return Image(
        kind=found,
        kind_number=found.value,
        target=target,
        arch=target.capability.sm_number,
        suffix=target.suffix,
        compression=Compression.NONE,
        offset=0,
        file_bytes=size * 2 if packed else size,
        wheel_bytes=size if packed else None,
    )


def unit(
    *images: Image,
    place: Place = Place.EXECUTABLE,
    linked: bool = False,
    section: str | None = ".nv_fatbin",
) -> Unit:
    return Unit(
        section=section,
        place=place,
        images=images,
        is_device_linked=linked,
        is_registered=section is not None and place is not Place.OUTSIDE,
    )


def inventory(*units: Unit, rest: int = 1000, packed: bool = True) -> Inventory:
    images = [one for each in units for one in each.images]
    size = rest + sum((one.wheel_bytes if packed else one.file_bytes) or 0 for one in images)
    wheel_bytes = size if packed else None
    file = File(path="lib.so", size=size, wheel_bytes=wheel_bytes, units=units, zstd={})
    return Inventory(path="fat.whl", sha256=None, size=size, is_wheel=packed, files=(file,))


def users(**shares: float) -> GpuTable:
    """Return a table of GPUs: ``users(cc90=0.5, cc120=0.5)``."""
    return GpuTable(
        shares={
            Capability.from_sm_number(int(name.removeprefix("cc"))): share
            for name, share in shares.items()
        }
    )


def release(core: int, **plugins: int) -> Release:
    """Return a release of a build, by the sizes of its wheels: ``release(1000, sm_80=5000)``."""
    sizes = {"core": core, **plugins}
    return Release(
        project="p",
        version="1",
        build_id="0" * 64,
        interface_hash="0" * 64,
        build=BuildDetails(epoch=0, targets=tuple(plugins)),
        wheels=tuple(
            ReleaseWheel(
                file=f"{name}.whl",
                role="plugin" if name in plugins else "core",
                distribution=name,
                plugin=Plugin(kind="library", name=name, targets=(name,))
                if name in plugins
                else None,
                size=size,
                sha256="0" * 64,
            )
            for name, size in sizes.items()
        ),
    )
