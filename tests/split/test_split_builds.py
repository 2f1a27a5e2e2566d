"""Libraries as compilers make them, split and loaded: what each wrapper leads to at the end."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, compiled, fat_wheel, python, split

from archsplit.formats.device_pack import PACK_FILE, TABLE_FILE, PackContainer, read_pack
from archsplit.formats.reader import open_file
from archsplit.split.restore import join_split
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects

HERE = Path(__file__).parent
FATBINARY = """#!/bin/sh
# clang speaks to fatbinary as CUDA 12's wants it.
for word; do
    case $word in
    --image=profile=sm_*) word="--image3=kind=elf,sm=${word#--image=profile=sm_}" ;;
    esac
    set -- "$@" "$word"
    shift
done
exec FATBINARY "$@"
"""
LOOK = """
import ctypes, hashlib, json, sys
path, how, wrappers = sys.argv[1], sys.argv[2], map(int, sys.argv[3:])
if how == "import":
    import importlib.util
    spec = importlib.util.spec_from_file_location("extension", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
else:
    ctypes.CDLL(path)
maps = [line.split() for line in open("/proc/self/maps")]
base = min(int(line[0].partition("-")[0], 16) for line in maps if line[-1] == path)
found = []
for wrapper in wrappers:
    data = int.from_bytes(ctypes.string_at(base + wrapper + 8, 8), "little")
    size = 16 + int.from_bytes(ctypes.string_at(data + 8, 8), "little")
    found.append(hashlib.sha256(ctypes.string_at(data, size)).hexdigest())
print(json.dumps(found))
"""
GENCODE = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90")

pytestmark = pytest.mark.nvcc


def by_nvcc(folder: Path, toolkit: Toolkit, source: Path, *words: str) -> Path:
    output = folder / f"lib{source.stem}.so"
    argv = (str(toolkit.nvcc), *GENCODE, "-shared", "-Xcompiler", "-fPIC")
    place = f"-L{toolkit.library_folder}"
    subprocess.run(
        (*argv, place, *words, "-o", str(output), str(source)), check=True, capture_output=True
    )
    return output


def static_runtime(folder: Path, toolkit: Toolkit) -> Path:
    return by_nvcc(folder, toolkit, HERE / "toyfat" / "whole.cu")


def shared_runtime(folder: Path, toolkit: Toolkit) -> Path:
    (runtime,) = toolkit.library_folder.glob("libcudart.so.*")
    words = ("-cudart", "none", "-Xlinker", f"-l:{runtime.name}")
    return by_nvcc(folder, toolkit, HERE / "toyfat" / "whole.cu", *words)


def relocatable(folder: Path, toolkit: Toolkit) -> Path:
    (path,) = (made for name, made in compiled(folder, toolkit).items() if "linked" in name)
    assert isinstance(path, Path)
    return path


def python_extension(folder: Path, toolkit: Toolkit) -> Path:
    include = f"-I{sysconfig.get_paths()['include']}"
    return by_nvcc(folder, toolkit, HERE / "extension.cu", include)


def by_clang(folder: Path, toolkit: Toolkit) -> Path:
    """By the clang that the ziglang wheel has in it, with nvcc's ptxas."""
    cuda = folder / "cuda"
    for each in ("bin", "include", "nvvm/libdevice", "lib64"):
        (cuda / each).mkdir(parents=True)
    (cuda / "bin" / "ptxas").symlink_to(toolkit.nvcc.with_name("ptxas"))
    fatbinary = cuda / "bin" / "fatbinary"
    fatbinary.write_text(
        FATBINARY.replace("FATBINARY", shlex.quote(str(toolkit.nvcc.with_name("fatbinary"))))
    )
    fatbinary.chmod(0o755)
    (cuda / "include" / "cuda.h").write_text("#define CUDA_VERSION 12060\n")
    clang = (sys.executable, "-m", "ziglang", "clang", "-target", "x86_64-linux-gnu")
    cuda_words = (f"--cuda-path={cuda}", "-nocudainc", "-nocudalib", "-Xclang")
    words = ("-target-sdk-version=12.6", "--cuda-gpu-arch=sm_80", "--cuda-gpu-arch=sm_90")
    files = ("-x", "cuda", str(HERE / "clanged.cu"), "-o", str(folder / "clanged.o"))
    argv = (*clang, *cuda_words, *words, "-w", "-fPIC", "-O1", "-c", *files)
    subprocess.run(argv, check=True, capture_output=True)
    path = folder / "libclanged.so"
    runtime = (f"-L{toolkit.library_folder}", "-lcudart_static", "-lpthread", "-ldl", "-lrt")
    link = ("gcc", "-shared", "-o", str(path), str(folder / "clanged.o"), *runtime)
    subprocess.run(link, check=True)
    return path


BUILDS = (static_runtime, shared_runtime, relocatable, python_extension, by_clang)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_wrappers_lead_to_the_code_of_this_gpu(
    build: Callable[[Path, Toolkit], Path],
    tmp_path: Path,
    toolkit: Toolkit,
    small_toolkit: Toolkit,
    effects: Effects,
) -> None:
    # clang has headers of its own around CUDA's.
    path = build(tmp_path, toolkit if build is by_clang else small_toolkit)
    members: dict[str, Path | bytes] = {"toyfat/__init__.py": b"", f"toyfat/{path.name}": path}
    fat = fat_wheel(tmp_path / "fat", members)
    sample = Sample(folder=tmp_path, fat=fat, out=split(fat, tmp_path / "out", effects))
    (joined,) = join_split(sample.out, tmp_path / "joined")
    assert joined.sha256 == sha256(path)
    site = sample.site(tmp_path / "site", "cc80", "cc90")
    library = str(site / "toyfat" / path.name)
    table = read_pack(open_file(site / "toyfat" / "_archsplit" / TABLE_FILE), is_table=True)
    wrappers = [str(one.wrapper) for each in table.libraries for one in each.containers]
    how = "import" if build is python_extension else "open"
    runtime = {"LD_LIBRARY_PATH": f"{tmp_path / 'nvml'}:{toolkit.library_folder}"}
    for gpu, pack in (("8.6", "cc80"), ("9.0", "cc90")):
        served = containers(site / "toyfat_plugins" / "cuda" / pack / PACK_FILE)
        done = python(tmp_path, gpu, "-c", LOOK, library, how, *wrappers, **runtime)
        assert (done.returncode, done.stderr) == (0, "")
        found, own = json.loads(done.stdout), [hashlib.sha256(each).hexdigest() for each in served]
        assert [one for one in found if one in own] == own
        # The input of a device link is in the pack `rest`: its wrappers keep empty containers.
        others = {one for one in found if one not in own}
        assert len(others) == (build is relocatable)


def containers(path: Path) -> list[bytes]:
    """The containers of a pack."""
    pack = read_pack(open_file(path))
    rows: list[PackContainer] = [
        container for library in pack.libraries for container in library.containers
    ]
    assert all(row.images for row in rows)
    return [pack.window.part(row.offset, row.size, "container").to_bytes() for row in rows]
