"""The wheels of a split without device code: its core, and the meta wheel.

In: a fat wheel and its libraries, stripped of the images that moved. Out: the core, which is the
fat wheel member by member, with changed METADATA and the files of the loader added. The meta wheel
has no files and requires the core with all of its packs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.formats.device_pack import TABLE_FILE
from archsplit.release.core_files import CoreFiles
from archsplit.release.requirements import meta_metadata, meta_name, pinned_extras, plugin_extras
from archsplit.split.model import InstallDefaults
from archsplit.split.provenance import SBOM_MEMBER, core_bill
from archsplit.split.restore import RESTORE
from archsplit.split.stub import rename_stub
from archsplit.wheels.filename import ALL_EXTRA
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
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.split.model import Core


def write_core(file: BinaryIO, core: Core, *, loader: Path, stub: Path) -> None:
    """Write the wheel of a core.

    Args:
        loader: the compiled loader.
        stub: the library that each stub is a renamed copy of.
    """
    fat = core.wheel
    info, metadata, entry_points = (
        f"{fat.dist_info}/{name}" for name in ("WHEEL", "METADATA", "entry_points.txt")
    )
    changed = {
        **{library.member: library.packed for library in core.libraries},
        metadata: pack(_metadata(core, fat.read(metadata))),
        info: pack(edit_wheel_info(fat.read(info), tags=core.name.tags, build=core.name.build)),
    }
    dist_info = new_dist_info(fat, core.name)
    loader_files = dict(_loader_files(core, stub.read_bytes()))
    files = CoreFiles(identity=core.identity, more=loader_files, existing=frozenset(fat.names))
    added = {name: pack(content) for name, content in files.members().items()}
    has_entry_points = entry_points in fat.names
    # One entry point announces the hook for PyInstaller; the project may have others of its own.
    content = files.entry_points(fat.read(entry_points) if has_entry_points else b"")
    if content is not None:
        if has_entry_points:
            changed[entry_points] = pack(content)
        else:
            added[f"{dist_info}/entry_points.txt"] = pack(content)
        added.update((name, pack(text)) for name, text in files.hook_members().items())
    # From the file, in blocks: only Python files are small enough for memory.
    added[files.library] = pack_file(loader)
    # A wheel that was split before has a bill with more of its origin than this split knows.
    if f"{fat.dist_info}/{SBOM_MEMBER}" not in fat.names:
        added[f"{dist_info}/{SBOM_MEMBER}"] = pack(core_bill(core, loader))
    WheelRewrite(wheel=fat, name=core.name, changed=changed, added=added).write(file)


def _loader_files(core: Core, stub: bytes) -> Iterator[tuple[str, bytes]]:
    for library in core.libraries:
        name = library.table.stub
        # One for each library: ld.so runs a library's constructor once per name.
        yield name, rename_stub(stub, name)
        yield f"{name}.{RESTORE}", library.restore.encode()
    yield TABLE_FILE, core.table


def _metadata(core: Core, text: bytes) -> bytes:
    """Return the fat wheel's METADATA with the core's name and the extras of its packs.

    Everything else stays byte for byte, whatever version of the format it is in.
    """
    present = read_extras(text)
    identity = core.identity
    extras = pinned_extras(plugin_extras(identity), identity.plugins, identity.version)
    lines = []
    for extra, pins in sorted(extras.items()):
        # An extra of the fat wheel may have the same name; declared twice, METADATA is invalid.
        lines += [] if extra in present else [f"Provides-Extra: {extra}"]
        lines += [f'Requires-Dist: {pin}; extra == "{extra}"' for pin in pins]
    # Requirements without a marker: whoever installs the core gets every pack.
    if core.install is InstallDefaults.ALL:
        lines += [f"Requires-Dist: {pin}" for pin in extras[ALL_EXTRA]]
    old, new = core.wheel.name, core.name
    return edit_metadata(
        # Edited as text: parsing and writing again would change the description's bytes.
        text,
        name="" if new.project == old.project else new.project,
        version="" if new.version == old.version else new.version,
        fields=lines,
    )


def write_meta(file: BinaryIO, core: Core, generator: str) -> None:
    """Write the wheel that requires a core and all of its packs."""
    name, raw, project = meta_name(core.name), core.raw_metadata, core.name.project
    common = CoreMetadata(
        name=project,
        version=name.version,
        # `twine check --strict` refuses a page without a text.
        description=f"Requires {project} and the device code for every GPU that it supports.\n",
        description_content_type="text/plain",
        license_expression=raw.get("license_expression", ""),
        requires_python=raw.get("requires_python", ""),
    )
    info = WheelInfo(generator=generator, tags=name.tags, purelib=True, build=name.build)
    dist_info = {"METADATA": encode_metadata(meta_metadata(common)), "WHEEL": info.encode()}
    members = {f"{name.dist_info}/{each}": pack(text) for each, text in dist_info.items()}
    write_members(file, name, members)
