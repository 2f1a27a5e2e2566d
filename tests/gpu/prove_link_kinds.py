"""Prove on a GPU that each kind of device link computes the same after ``slim`` and ``split``.

Made on a machine with nvcc and archsplit, for GPUs of capability 9.0:

    python tests/gpu/prove_link_kinds.py make FOLDER

Then on the machine with the GPU: ``python tests/gpu/prove_link_kinds.py run FOLDER``. It needs the
driver and Python, and nothing else. FOLDER has a package with one library of each kind, five times:
fat, slimmed for 9.0, split with the pack of 9.0, and, as a check of the check, split without a pack
and slimmed for 8.0, whose libraries have to fail. ``-dlto`` needs libnvvm.so in the toolkit.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

COUNT = 4096
KERNEL = """
#include <cstdio>
extern __device__ int mixed(int value, int index);
__global__ void step(int *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = mixed(values[i], i);
}
#ifdef NESTED
__global__ void parent(int *values, int count) {
    step<<<(count + 255) / 256, 256>>>(values, count);
}
#define LAUNCH parent<<<1, 1>>>(device, count)
#else
#define LAUNCH step<<<(count + 255) / 256, 256>>>(device, count)
#endif
extern "C" int run(int *values, int count) {
    int *device = nullptr;
    cudaError_t error = cudaMalloc(&device, count * sizeof(int));
    if (!error) error = cudaMemcpy(device, values, count * sizeof(int), cudaMemcpyHostToDevice);
    if (!error) { LAUNCH; error = cudaGetLastError(); }
    if (!error) error = cudaDeviceSynchronize();
    if (!error) error = cudaMemcpy(values, device, count * sizeof(int), cudaMemcpyDeviceToHost);
    cudaFree(device);
    return error;
}
"""
FUNCTION = """
__device__ int table[4] = {3, 5, 7, 11};
__device__ int mixed(int value, int index) { return value * table[index & 3] + index; }
"""
SASS = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
PTX = "-gencode=arch=compute_80,code=compute_80"
LTO = ("-gencode=arch=compute_80,code=lto_80", "-gencode=arch=compute_90,code=lto_90")
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (*SASS, PTX),
    "rdc": (*SASS, "-rdc=true"),
    "rdc_ptx": (*SASS, PTX, "-rdc=true"),
    "dlto": (*LTO, "-rdc=true"),
    "separate": (*SASS, "-rdc=true"),
    "nested": (*SASS, "-rdc=true", "-DNESTED"),
    "ptx_only": (PTX,),
    "rdc_ptx_only": (PTX, "-rdc=true"),
    "rdc_old": ("-gencode=arch=compute_80,code=[sm_80,compute_80]", "-rdc=true"),
}
"""Options of the compiler for each library; the last three make the driver compile or link."""
LINK = {"dlto": ("-dlto", *SASS)}
"""Options of the device link where they are others."""
SITES = ("fat", "slim", "split", "core", "slim80")
ONLY_PTX = {"ptx_only", "rdc_ptx_only"}
"""Libraries that run after slimming for 8.0 too: PTX is all that they have."""


def has_to_run(site: str, name: str) -> bool:
    """Return False for libraries without code for 9.0."""
    return site in {"fat", "slim", "split"} or (site == "slim80" and name in ONLY_PTX)


def call(*words: object, cwd: Path | None = None) -> None:
    subprocess.run([str(word) for word in words], cwd=cwd, check=True)


def compile_kind(folder: Path, name: str, options: tuple[str, ...]) -> Path:
    """Compile one library; a whole program is one source, any other has two."""
    output = folder / f"lib{name}.so"
    sources = {"kernel.cu": KERNEL, "function.cu": FUNCTION}
    if "-rdc=true" not in options:
        whole = KERNEL.replace("extern __device__ int mixed(int value, int index);", FUNCTION)
        sources = {"kernel.cu": whole}
    for source, text in sources.items():
        (folder / source).write_text(text)
    call("nvcc", "-c", "-Xcompiler=-fPIC", *options, *sources, cwd=folder)
    objects = [source.replace(".cu", ".o") for source in sources]
    link = LINK.get(name, tuple(one for one in options if not one.startswith("-D")))
    if name != "separate":
        call("nvcc", "-shared", *link, *objects, "-o", output, cwd=folder)
        return output
    call("nvcc", "-dlink", "-Xcompiler=-fPIC", *link, *objects, "-o", "linked.o", cwd=folder)
    command = ["nvcc", "--dryrun", "-o", "x", "kernel.cu"]
    dry = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (line,) = (one for one in dry.stderr.splitlines() if one.startswith("#$ LIBRARIES="))
    places = [word.strip('"') for word in line.partition("=")[2].split()]
    ends = ("-lcudadevrt", "-lcudart_static", "-lpthread", "-ldl", "-lrt")
    call("g++", "-shared", *objects, "linked.o", *places, *ends, "-o", output, cwd=folder)
    return output


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def fat_wheel(folder: Path, libraries: list[Path]) -> Path:
    path = folder / "linkkinds-1.0-py3-none-linux_x86_64.whl"
    info = "linkkinds-1.0.dist-info"
    texts = {
        "linkkinds/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: linkkinds\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a proof\nRoot-Is-Purelib: false\n"
        "Tag: py3-none-linux_x86_64\n",
    }
    members = {name: text.encode() for name, text in texts.items()}
    members |= {f"linkkinds/{one.name}": one.read_bytes() for one in libraries}
    record = "".join(
        f"{name},sha256={digest(content)},{len(content)}\n" for name, content in members.items()
    )
    record += f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return path


def unpack(site: Path, *wheels: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def make(out: Path) -> None:
    work = out / "work"
    work.mkdir(parents=True)
    wheel = fat_wheel(work, [compile_kind(work, name, options) for name, options in KINDS.items()])
    unpack(out / "fat", wheel)
    for name, gpu in (("slim", "9.0"), ("slim80", "8.0")):
        call(
            "archsplit", "slim", wheel, "--device", gpu, "--keep-ptx", "none", "--out", work / name
        )
        unpack(out / name, *(work / name).glob("*.whl"))
    call("archsplit", "split", wheel, "--out", work / "split")
    (core,) = (work / "split").glob("linkkinds-*.whl")
    (pack,) = (work / "split").glob("linkkinds_cc90-*.whl")
    unpack(out / "core", core)
    unpack(out / "split", core, pack)
    call("rm", "-r", work)


def child(path: str) -> None:
    """Run a library, and print its error and a digest of its results."""
    values = (ctypes.c_int * COUNT)(*(7 * index % 1001 for index in range(COUNT)))
    error = ctypes.CDLL(path).run(values, COUNT)
    print(error, hashlib.sha256(bytes(values)).hexdigest()[:16])  # noqa: T201


def outcome(site: Path, name: str) -> str:
    library = site / "linkkinds" / f"lib{name}.so"
    command = [sys.executable, __file__, "child", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or f"exit status {done.returncode}: {done.stderr.strip()[-200:]}"


def run(folder: Path) -> int:
    """Compare all libraries; return 1 if one runs otherwise than it has to."""
    factors = (3, 5, 7, 11)
    right = [7 * index % 1001 * factors[index & 3] + index for index in range(COUNT)]
    expected = f"0 {hashlib.sha256(bytes((ctypes.c_int * COUNT)(*right))).hexdigest()[:16]}"
    wrong = 0
    for name in KINDS:
        found = {site: outcome(folder / site, name) for site in SITES}
        wrong += sum((found[site] == expected) != has_to_run(site, name) for site in SITES)
        print(f"{name:14} {found}", flush=True)  # noqa: T201
    print(f"{len(KINDS) * len(SITES)} outcomes, {wrong} wrong")  # noqa: T201
    return 1 if wrong else 0


def main() -> int:
    """Make the libraries, or run them."""
    action, place = sys.argv[1], sys.argv[2]
    if action == "child":
        child(place)
    elif action == "make":
        make(Path(place).resolve())
    else:
        return run(Path(place).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
