"""The wheel without files whose only use is to require a core and all of its packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.wheels.archive import write_members
from archsplit.wheels.filename import ALL_EXTRA, WheelName, distribution_name
from archsplit.wheels.info import WheelInfo
from archsplit.wheels.metadata import CoreMetadata, encode_metadata
from archsplit.wheels.zip_writer import packed

if TYPE_CHECKING:
    from typing import BinaryIO

    from archsplit.split.core_wheel import Core


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
    members = {f"{name.dist_info}/{each}": packed(text) for each, text in own.items()}
    write_members(file, name, members)
