"""Fat wheels to split: with libraries made by hand, or by the real nvcc."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.split.model import SplitRequest
from archsplit.split.split import split_wheel
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import CoreMetadata, WheelInfo, encode_metadata
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from compiled_once import compile_once

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects

TOY = Path(__file__).parent / "toyfat"
STAND_IN = Path(__file__).parents[1] / "loader" / "stand_in_nvml.c"
TARGETS = ("sm_80", "sm_90")
VERSION = "1.0"
TAGS = "py3-none-linux_x86_64"

_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_SUFFIX_FLAGS = {"": 0, "a": 0x10_0000, "f": 0x20_0000}
_SOURCE = """
struct wrapper { unsigned magic, version; const unsigned char *data; void *more; };
extern struct wrapper wrappers[];
const unsigned char *at_start[8];
const unsigned char *container(int index) { return at_start[index]; }
__attribute__((constructor)) static void register_all(void) {
    for (int i = 0; i < COUNT; i++) at_start[i] = wrappers[i].data;
}
"""
LOAD = """
import ctypes, hashlib, json, os, sys
found = {}
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    library.container.restype = ctypes.c_void_p
    found[os.path.basename(path)] = []
    for index in range(3):
        start = library.container(index)
        size = 16 + int.from_bytes(ctypes.string_at(start + 8, 8), "little")
        digest = hashlib.sha256(ctypes.string_at(start, size)).hexdigest()
        found[os.path.basename(path)].append(digest)
maps = {line.split("/")[-2] for line in open("/proc/self/maps") if "device.pack" in line}
print(json.dumps([found, sorted(maps)]), flush=True)
"""
PACKAGE = b"""
import ctypes, os
_library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "liba.so"))
_library.container.restype = ctypes.c_void_p
def sizes():
    starts = map(_library.container, range(3))
    return [int.from_bytes(ctypes.string_at(start + 8, 8), "little") for start in starts]
"""
"""The package of a fat wheel with one library: `sizes` reads its three containers."""


def image(name: str, size: int = 0x2000, seed: int = 0, *, lto: bool = False) -> bytes:
    """Return an uncompressed entry for a target such as ``sm_90a``."""
    target = Target.parse(name)
    kind = 8 if lto else 1 if target.kind is CodeKind.PTX else 2
    payload = random.Random(f"{name} {size} {seed}").randbytes(size)
    arch, flags = target.capability.sm_number, 0x11 | _SUFFIX_FLAGS[target.suffix]
    return _ENTRY.pack(kind, 0x0101, 64, size, 0, 0, 0, 9, arch, 0, 0, flags, 0, 0) + payload


def container(*images: bytes) -> bytes:
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def containers(seed: int) -> list[list[str]]:
    """The targets of each container: what GPUs take differs from one to the next."""
    return [
        ["sm_80", "sm_90", "compute_90"],
        ["sm_80", "sm_86", "compute_80"],
        ["sm_90a", "sm_90", "compute_90", "sm_80"][: 4 - seed],
    ]


def content(seed: int, index: int, *targets: str) -> bytes:
    """A container of a sample library with only these targets."""
    listed = containers(seed)[index]
    return container(
        *(image(name, 0x2000 + 0x400 * index, seed) for name in listed if name in targets)
    )


def digest(seed: int, index: int, *targets: str) -> str:
    return hashlib.sha256(content(seed, index, *targets)).hexdigest()


def library(
    folder: Path, name: str, seed: int, *flags: str, others: tuple[tuple[bytes, int], ...] = ()
) -> Path:
    """A library with the containers above, and ``others``, each with a count of wrappers."""
    images = [(content(seed, index, *each), 1) for index, each in enumerate(containers(seed))]
    lines = ['.section .nv_fatbin,"a"', ".balign 8"]
    wrappers = ['.section .nvFatBinSegment,"aw"', ".balign 8", ".globl wrappers"]
    wrappers += [".hidden wrappers", "wrappers:"]
    for index, (text, count) in enumerate([*images, *others]):
        (folder / f"{name}{index}.fatbin").write_bytes(text)
        lines += [f"fatbin{index}:", f'.incbin "{folder}/{name}{index}.fatbin"']
        wrappers += [f".4byte 0x466243b1, 1\n.8byte fatbin{index}, 0"] * count
    end = ['.section .note.GNU-stack,"",%progbits', ""]
    (folder / f"{name}.S").write_text("\n".join([*lines, *wrappers, *end]))
    (folder / f"{name}.c").write_text(_SOURCE.replace("COUNT", "3"))
    path = folder / f"{name}.so"
    sources = [str(folder / f"{name}.S"), str(folder / f"{name}.c")]
    included = tuple(text for text, _ in (*images, *others))
    words = ("-shared", "-fPIC", f"-Wl,-soname,{name}.so", *flags)
    return compile_once(path, *words, *sources, inputs=included)


def compile_c(output: Path, *arguments: str) -> Path:
    subprocess.run(["gcc", "-o", str(output), *arguments], check=True)
    return output


def hand_made(folder: Path, version: str = VERSION) -> Path:
    """A wheel with two libraries, and with all that has to survive a split."""
    libraries = {
        f"toyfat/lib/{name}.so": library(folder, name, seed)
        for seed, name in enumerate(("liba", "libb"))
    }
    return fat_wheel(folder / "fat", {**libraries, "toyfat/__init__.py": b"ANSWER = 42\n"}, version)


def compiled(folder: Path, toolkit: Toolkit) -> dict[str, Path | bytes]:
    """The toy's two libraries, compiled for several targets and PTX."""
    options = ["-shared", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_90,code=compute_90"]
    # The index's wheels put libraries where nvcc's own profile doesn't look.
    options.append(f"-L{toolkit.library_folder}")
    for target in TARGETS:
        number = target.removeprefix("sm_")
        options += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
    whole, linked = folder / "libtoyfat_whole.so", folder / "libtoyfat_linked.so"
    sources = [str(TOY / "linked.cu"), str(TOY / "twice.cu")]
    for command in (
        [str(toolkit.nvcc), *options, "-o", str(whole), str(TOY / "whole.cu")],
        [str(toolkit.nvcc), *options, "-rdc=true", "-o", str(linked), *sources],
    ):
        subprocess.run(command, check=True, capture_output=True)
    own: dict[str, Path | bytes] = {"toyfat/__init__.py": TOY / "__init__.py"}
    return {**own, **{f"toyfat/lib/{path.name}": path for path in (whole, linked)}}


def fat_wheel(
    folder: Path, members: dict[str, Path | bytes], version: str = VERSION, tags: str = TAGS
) -> Path:
    name = WheelName.parse(f"toyfat-{version}-{tags}.whl")
    metadata = CoreMetadata(
        name="toyfat",
        version=version,
        summary="Two fat libraries.",
        license_expression="Apache-2.0",
        license_files=("LICENSE",),
        requires_python=">=3.10",
        requires=("packaging>=20",),
        extras={"more": ("packaging>=21",)},
    )
    own = {
        "METADATA": encode_metadata(metadata),
        "WHEEL": WheelInfo(generator="a test", tags=name.tags, build=name.build).encode(),
        "entry_points.txt": b"[console_scripts]\ntoyfat = toyfat:main\n",
        "licenses/LICENSE": b"Do what you like.\n",
    }
    everything = {**{f"{name.dist_info}/{each}": text for each, text in own.items()}, **members}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(name)
    with path.open("wb") as file:
        packed_members = {
            each: pack(text if isinstance(text, bytes) else text.read_bytes())
            for each, text in everything.items()
        }
        write_members(file, name, packed_members)
    return path


def split(fat: Path, out: Path, effects: Effects, **changes: object) -> Path:
    request = SplitRequest(source=fat, out=out)
    split_wheel(replace(request, **changes), effects)  # type: ignore[arg-type] # fields by name
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A fat wheel, and what it was split into."""

    folder: Path
    fat: Path
    out: Path

    def wheel(self, pack: str = "") -> Path:
        return next(self.out.glob(f"toyfat_{pack}-*.whl" if pack else "toyfat-*.whl"))

    def site(self, folder: Path, *packs: str) -> Path:
        """The core and some packs, unpacked as an installer would."""
        return unpacked(folder, self.wheel(), *(self.wheel(pack) for pack in packs))


def unpacked(folder: Path, *wheels: Path) -> Path:
    """Wheels, as an installer would unpack them."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The report of a child process that loaded the libraries."""

    libraries: dict[str, list[str]]
    mapped: list[str]
    talk: str


def environment(folder: Path, gpus: str | None, **more: str) -> dict[str, str]:
    """With a stand-in for NVML that shows these GPUs; None is for no driver."""
    nvml = folder / "nvml"
    if not nvml.exists():
        nvml.mkdir()
        compile_once(nvml / "libnvidia-ml.so.1", "-shared", "-fPIC", str(STAND_IN))
    place = "/nonexistent" if gpus is None else str(nvml)
    return {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": place,
        "STAND_IN_GPUS": gpus or "",
        **more,
    }


def loaded(site: Path, folder: Path, gpus: str | None, *names: str, **more: str) -> LoadReport:
    paths = [str(site / "toyfat" / "lib" / f"{name}.so") for name in names or ("liba", "libb")]
    done = python(folder, gpus, "-c", LOAD, *paths, **more)
    assert done.returncode == 0, done.stderr
    libraries, mapped = json.loads(done.stdout)
    return LoadReport(libraries=libraries, mapped=mapped, talk=done.stderr)


def python(
    folder: Path, gpus: str | None, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    child = environment(folder, gpus, **more)
    return subprocess.run(command, env=child, capture_output=True, text=True, check=False)
