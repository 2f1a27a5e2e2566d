"""Inputs of releases: sources, and a fat wheel made by hand."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from archsplit.arch.target import Target
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, WheelInfo, encode_metadata
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack

OLD_BILL = b'{"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1}\n'
"""Such as auditwheel writes."""

TINYVEC = Path(__file__).parents[1] / "tinyvec"

_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _CUBIN = 1, 2
_LIBRARY = """
.section .nv_fatbin,"a"
.balign 8
fatbin: .incbin "{fatbin}"
.section .nvFatBinSegment,"aw"
.balign 8
.4byte 0x466243b1, 1
.8byte fatbin, 0
.section .note.GNU-stack,"",%progbits
"""


def ptx(target: str, *kernels: str) -> bytes:
    """An image of PTX, not compressed, whose kernels do nothing."""
    text = "".join(f".visible .entry {name}()\n{{ ret; }}\n" for name in kernels).encode()
    return sass(target, text + bytes(-len(text) % 8), kind=_PTX)


def sass(target: str, payload: bytes, *, kind: int = _CUBIN) -> bytes:
    """An image that says it is machine code, or something else."""
    arch = Target.parse(target).capability.sm_number
    header = _ENTRY.pack(kind, 0x0101, 64, len(payload), 0, 0, 0, 9, arch, 0, 0, 0x11, 0, 0)
    return header + payload


def fat_wheel(folder: Path, *images: bytes, more: dict[str, bytes] | None = None) -> Path:
    """A wheel with one library that has one container of these images.

    Args:
        more: further files for the wheel's own folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    body = b"".join(images)
    fatbin, source, library = (folder / name for name in ("it.fatbin", "it.S", "it.so"))
    fatbin.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    source.write_text(_LIBRARY.format(fatbin=fatbin))
    # An object with a name of its own: the linker writes the name into the library.
    subprocess.run(["gcc", "-c", "-o", "it.o", str(source)], check=True, cwd=folder)
    command = ["gcc", "-shared", "-Wl,-soname,it.so", "-o", str(library), "it.o"]
    subprocess.run(command, check=True, cwd=folder)
    project = distribution_name("toy")
    name = WheelName(project=project, version="2.0", platforms=("linux_x86_64",))
    metadata = CoreMetadata(
        name=project,
        version="2.0",
        summary="A fat library.",
        description="It has device code.",
        description_content_type="text/plain",
        license_expression="Apache-2.0",
        license_files=("LICENSE",),
    )
    own = {
        "METADATA": encode_metadata(metadata),
        "WHEEL": WheelInfo(generator="a test", tags=name.tags).encode(),
        "licenses/LICENSE": b"Do what you like.\n",
        **(more or {}),
    }
    members = {"toy/__init__.py": b"", "toy/it.so": library.read_bytes()}
    members |= {f"{name.dist_info}/{each}": text for each, text in own.items()}
    path = folder / str(name)
    with path.open("wb") as file:
        write_members(file, name, {each: pack(text) for each, text in members.items()})
    return path
