"""Handmade libraries and wheels with device code, which no driver has to understand.

The containers are real in all parts that readers see; the payloads are random bytes of a seed, so
that they don't compress and are all different. gcc, ``ar`` and zig's lld make real files around
them.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.apply import check_plan
from archsplit.devicecode.edits import CopiedBytes, NewBytes
from archsplit.devicecode.file_plan import EditMode, FileEdit, FilePlan, plan_rewrite
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
PTX, CUBIN, LTO_IR = 1, 2, 8
SUFFIX_FLAGS = {"": 0, "a": 0x10_0000, "f": 0x20_0000}
SOURCE = """
struct wrapper { unsigned magic, version; const unsigned char *data; void *more; };
extern struct wrapper wrappers[];
const unsigned char *container(int index) { return wrappers[index].data; }
const char constant[] = "a constant";
int variable = 42;
int *pointer = &variable;
"""
PROBE = """
import ctypes, hashlib, json, os, sys
library = ctypes.CDLL(sys.argv[1])
library.container.restype = ctypes.c_void_p
found = []
for index in range(int(sys.argv[2])):
    start = library.container(index)
    size = 16 + int.from_bytes(ctypes.string_at(start + 8, 8), "little")
    found.append(hashlib.sha256(ctypes.string_at(start, size)).hexdigest())
constant = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "constant")))
pointer = ctypes.POINTER(ctypes.c_int).in_dll(library, "pointer").contents.value
print(json.dumps([found, constant.decode(), pointer]), flush=True)
os._exit(0)
"""


def image(name: str, size: int = 0x2000, *, kind: int | None = None, flags: int = 0x11) -> bytes:
    """Return an uncompressed entry for a target, such as ``sm_90a``."""
    target = Target.parse(name)
    number = kind or (PTX if target.kind is CodeKind.PTX else CUBIN)
    payload = random.Random(f"{name} {size} {kind}").randbytes(size)
    arch = target.capability.sm_number
    all_flags = flags | SUFFIX_FLAGS[target.suffix]
    header = ENTRY.pack(number, 0x0101, 64, size, 0, 0, 7, 1, arch, 0, 0, all_flags, 0, 0)
    return header + payload


def lz4_image(target: str = "sm_90", kind: int = CUBIN) -> bytes:
    """An image of repeated bytes, as nvcc of CUDA 12 stores it."""
    raw = bytes(range(256)) * 64
    block = lz4.block.compress(raw, store_size=False)
    padded = block + bytes(-len(block) % 8)
    packed = bytearray(image(target, len(padded), kind=kind, flags=0x11 | 0x2000))
    packed[64:] = padded
    struct.pack_into("<I", packed, 16, len(block))
    struct.pack_into("<Q", packed, 56, len(raw))
    return bytes(packed)


def container(*images: bytes) -> bytes:
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


THREE = (
    container(image("sm_80"), image("sm_90", 0x5000), image("compute_90")),
    container(image("sm_80", 0x3000), image("sm_86", 0x4000), image("compute_80", 0x1000)),
    container(image("sm_90a", 0x6000), image("sm_90", 0x800), image("compute_90", 0x2800)),
)


def assembly(containers: tuple[bytes, ...], folder: Path, *, more: str = "") -> str:
    """Return the assembly of containers in a row, and of their wrappers."""
    lines = ['.section .nv_fatbin,"a"', ".balign 8"]
    for number, content in enumerate(containers):
        path = folder / f"{hashlib.sha256(content).hexdigest()[:8]}.fatbin"
        path.write_bytes(content)
        lines += [f"fatbin{number}:", f'.incbin "{path}"']
    lines += ['.section .nvFatBinSegment,"aw"', ".balign 8", ".globl wrappers"]
    lines += [".hidden wrappers", "wrappers:"]
    for number in range(len(containers)):
        lines += [".4byte 0x466243b1, 1", f".8byte fatbin{number}, 0"]
    return "\n".join([*lines, more, '.section .note.GNU-stack,"",%progbits', ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A maker of files in a folder."""

    folder: Path
    compiler: tuple[str, ...] = ("gcc",)
    flags: tuple[str, ...] = field(default=())

    def objects(self, name: str, containers: tuple[bytes, ...], *, more: str = "") -> list[Path]:
        wrapped, source = self.folder / f"{name}.S", self.folder / "host.c"
        wrapped.write_text(assembly(containers, self.folder, more=more))
        source.write_text(SOURCE)
        made = [self.folder / f"{name}-{part}.o" for part in ("wrapped", "host")]
        for path, text in zip(made, (wrapped, source), strict=True):
            self.run(*self.compiler, "-fPIC", "-c", str(text), "-o", str(path))
        return made

    def library(self, containers: tuple[bytes, ...] = THREE, *, more: str = "") -> Path:
        path = self.folder / "libsample.so"
        objects = map(str, self.objects("sample", containers, more=more))
        self.run(*self.compiler, "-shared", *objects, *self.flags, "-o", str(path))
        return path

    def linked_library(self, linked: bytes, *link_input: bytes) -> Path:
        """Make a library whose device link has written a container from its input."""
        sections = {f"input{n}": one for n, one in enumerate(link_input)} | {"linked": linked}
        lines, wrappers = [], ['.section .nvFatBinSegment,"aw"']
        for name, content in sections.items():
            path = self.folder / f"{name}.fatbin"
            path.write_bytes(content)
            section, version = (".nv_fatbin", 2) if name == "linked" else ("__nv_relfatbin", 1)
            lines += [f'.section {section},"a"', ".balign 8", f'{name}: .incbin "{path}"']
            wrappers += [f".4byte 0x466243b1, {version}", f".8byte {name}, 0"]
        return self.library((container(image("sm_80")),), more="\n".join((*lines, *wrappers, "")))

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
        return done.stdout


def for_devices(*devices: str, ptx: PtxPolicy = PtxPolicy.NONE) -> Selection:
    return Selection(devices=frozenset(map(Capability.parse, devices)), ptx=ptx)


def slimmed(
    source: Path, selection: Selection, mode: EditMode = EditMode.SHRINK
) -> tuple[Path, FilePlan]:
    """Plan, write and check; the new file lies beside the old one."""
    plan = plan_rewrite(open_file(source), FileEdit(selection=selection, mode=mode))
    target = source.with_name(f"slim-{source.name}")
    target.write_bytes(content_of(plan, source.read_bytes()))
    check_plan(plan, open_file(target))
    return target, plan


def content_of(plan: FilePlan, old: bytes) -> bytes:
    new = b""
    for piece in plan.pieces:
        if isinstance(piece, CopiedBytes):
            new += old[piece.offset : piece.offset + piece.size]
        else:
            new += piece.content if isinstance(piece, NewBytes) else bytes(piece.size)
    return new


def held(path: Path) -> list[list[str]]:
    """Return the targets of a library's containers, by the project's own readers."""
    return [
        [str(entry.target) for entry in one.entries()]
        for _, one in host_containers(Elf(open_file(path)))
    ]


def in_memory(library: Path, count: int) -> list[str]:
    """Load a library in a child process, and hash the containers that its wrappers point at."""
    argv = [sys.executable, "-c", PROBE, str(library), str(count)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hashes, constant, pointer = json.loads(done.stdout)
    assert (constant, pointer) == ("a constant", 42)
    return [str(each) for each in hashes]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
