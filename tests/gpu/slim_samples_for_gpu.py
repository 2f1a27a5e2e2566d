"""Make fat libraries and slim them, for `slim_on_gpu.py`; needs nvcc and archsplit, but no GPU.

``python tests/gpu/slim_samples_for_gpu.py OUT`` writes libraries of some kilobytes into OUT, each
named for what a GPU of capability 9.0 has to make of it: ``runs-*.so`` or ``fails-*.so``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = """
__global__ void scale(float *x, float a) { x[blockIdx.x * 256 + threadIdx.x] *= a; }
extern "C" int run(float *x, int blocks) {
  scale<<<blocks, 256>>>(x, 3.f);
  int error = cudaGetLastError();
  return error ? error : cudaDeviceSynchronize();
}
extern "C" const char *words(int error) { return cudaGetErrorString((cudaError_t)error); }
"""
CALLED = "__device__ float times(float x, float a) { return x * a; }\n"
CALLER = SOURCE.replace("__global__", "__device__ float times(float, float);\n__global__").replace(
    "x[blockIdx.x * 256 + threadIdx.x] *= a",
    "float *y = x + blockIdx.x * 256 + threadIdx.x; *y = times(*y, a)",
)
SASS = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
WITH_PTX = (*SASS, "-gencode=arch=compute_80,code=compute_80")
OLD = ("-gencode=arch=compute_80,code=[sm_80,compute_80]",)

SAMPLES = {
    # name: (library, slim's arguments)
    "runs-original": ("plain", None),
    "runs-shrunk": ("plain", ["--device", "9.0", "--keep-ptx", "none"]),
    "runs-in-place": ("plain", ["--device", "9.0", "--keep-ptx", "none", "--mode", "in-place"]),
    "runs-by-ptx": ("plain", ["--drop", "sm_80,sm_90"]),
    "runs-by-kept-ptx": ("plain", ["--keep", "compute_80"]),
    "runs-zstd": ("plain", ["--device", "9.0", "--recompress", "9"]),
    "fails-shrunk": ("plain", ["--keep", "sm_80", "--keep-ptx", "none"]),
    "fails-in-place": ("plain", ["--keep", "sm_80", "--keep-ptx", "none", "--mode", "in-place"]),
    "runs-rdc-original": ("rdc", None),
    "runs-rdc-shrunk": ("rdc", ["--device", "9.0", "--keep-ptx", "none"]),
    "fails-rdc": ("rdc", ["--keep", "sm_80", "--keep-ptx", "none"]),
    "runs-rdc-linked-by-the-driver-original": ("rdc-old", None),
    "runs-rdc-linked-by-the-driver": ("rdc-old", ["--device", "9.0", "--keep-ptx", "none"]),
}


def run(*argv: str, cwd: Path) -> None:
    subprocess.run(argv, cwd=cwd, check=True)


def libraries(folder: Path) -> dict[str, Path]:
    nvcc = shutil.which("nvcc") or "nvcc"
    # Tens of kilobytes in each target, so that whole pages get free.
    bulk = "".join(
        f"__global__ void more{n}(float *x) {{ for (int i = 0; i < {n}; i++) "
        f"x[i] = sinf(x[i]) * cosf(x[i + {n}]) + powf(x[i], {n}.5f); }}\n"
        for n in range(1, 13)
    )
    (folder / "plain.cu").write_text(SOURCE + bulk)
    (folder / "called.cu").write_text(CALLED + bulk)
    (folder / "caller.cu").write_text(CALLER)
    shared = ("-shared", "-Xcompiler=-fPIC", "--no-compress")
    run(nvcc, *WITH_PTX, *shared, "plain.cu", "-o", "plain.so", cwd=folder)
    for name, targets in (("rdc", WITH_PTX), ("rdc-old", OLD)):
        sources = ("caller.cu", "called.cu")
        run(nvcc, *targets, *shared, "-rdc=true", *sources, "-o", f"{name}.so", cwd=folder)
    return {path.stem: path for path in folder.glob("*.so")}


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    work = out / "work"
    work.mkdir(exist_ok=True)
    made = libraries(work)
    for name, (library, arguments) in SAMPLES.items():
        if arguments is None:
            shutil.copy(made[library], out / f"{name}.so")
            continue
        folder = work / name
        argv = ["archsplit", "slim", str(made[library]), *arguments, "--out", str(folder)]
        run(*argv, cwd=out)
        (slim,) = folder.glob("*.so")
        slim.rename(out / f"{name}.so")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
