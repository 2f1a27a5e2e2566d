"""Use slimmed libraries and wheels, made elsewhere, on a machine with a GPU of capability 9.0.

``python tests/gpu/slim_on_gpu.py FOLDER`` checks all that is in FOLDER, and exits with 1 if
something is wrong: the libraries of `slim_samples_for_gpu.py`, and slimmed wheels of the projects
that `slim_programs_for_gpu.py` knows. A wheel that was slimmed for capability 9.0 has to come out
right; any other has to fail with CUDA's own error. A folder ``more`` in it comes before all others
on the module path, and ``lib`` on the library path: it has the CUDA libraries of another major
version that a wheel needs. It needs Python with pip, NumPy, SciPy and PyTorch; no network.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from slim_programs_for_gpu import PROGRAMS

CLEAN = (
    "no kernel image is available",
    "cudaErrorNoKernelImageForDevice",
    "device kernel image",
    "named symbol not found",  # what CUDA says of relocatable device code without an image
    "not compiled for SM",  # what thrust makes of it
)

RUN_LIBRARY = """
import ctypes, json, sys
import torch
library = ctypes.CDLL(sys.argv[1])
library.words.restype = ctypes.c_char_p
x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
before = x.clone()
error = library.run(ctypes.c_void_p(x.data_ptr()), (1 << 20) // 256)
torch.cuda.synchronize()
right = bool(torch.equal(x, before * 3))
print(json.dumps({"error": error, "words": library.words(error).decode(), "right": right}))
"""


def child(program: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def library_fault(path: Path) -> str | None:
    code, said, complaints = child(RUN_LIBRARY, str(path))
    if code:
        return f"exit status {code}: {complaints.strip()}"
    found = json.loads(said)
    say(f"  {path.name}: {found}")
    if path.name.startswith("runs-"):
        return None if found["error"] == 0 and found["right"] else f"it must run: {found}"
    clean = any(words in found["words"] for words in CLEAN)
    return None if clean else f"it must fail with CUDA's clean error: {found}"


def wheel_fault(path: Path) -> str | None:
    program = PROGRAMS[path.name.partition("-")[0]]
    more, libraries = path.parent / "more", path.parent / "lib"
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--target", folder, str(path)], check=True)
        found_there = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        places = {"PYTHONPATH": f"{more}:{folder}", "LD_LIBRARY_PATH": found_there}
        code, said, complaints = child(program, **places)
    if "cc90" not in path.name.rpartition("slim.")[2]:
        tail = complaints.strip().splitlines()[-12:]
        say(f"  {path.name}: exit status {code}: {tail}")
        # Some report the error by abort(), which is their own; a crash is not.
        clean = code not in {0, -signal.SIGSEGV} and any(words in complaints for words in CLEAN)
        return None if clean else "it must fail with CUDA's clean error"
    if code:
        return f"exit status {code}: {complaints.strip()}"
    found = json.loads(said.splitlines()[-1])
    say(f"  {path.name}: {found}")
    return None if found["right"] else f"it must come out right: {found}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(folder: Path) -> int:
    checks = [(path, library_fault) for path in sorted(folder.glob("*.so"))]
    checks += [(path, wheel_fault) for path in sorted(folder.glob("*-*.whl"))]
    wrong = 0
    for path, fault_of in checks:
        fault = fault_of(path)
        wrong += fault is not None
        say(f"{'ok   ' if fault is None else 'WRONG'} {path.name} {fault or ''}")
    say(f"{len(checks)} checks, {wrong} wrong")
    return 1 if wrong or not checks else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
