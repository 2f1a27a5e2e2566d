"""Use slimmed libraries and wheels, made elsewhere, on a machine with a GPU of capability 9.0.

``python tests/gpu/slim_on_gpu.py FOLDER`` checks all that is in FOLDER, and exits with 1 if
something is wrong: the libraries of `slim_samples_for_gpu.py`, and slimmed wheels of xgboost. A
wheel whose build tag has ``cc90`` has to train as well as the CPU does; any other has to fail with
CUDA's own error. It needs Python with pip, NumPy, SciPy and PyTorch; no network and no compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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

TRAIN = """
import json
import numpy as np
import xgboost
random = np.random.default_rng(7)
x = random.standard_normal((200_000, 40), dtype=np.float32)
y = (x[:, 0] * x[:, 1] + np.sin(x[:, 2]) + 0.1 * random.standard_normal(len(x)) > 0).astype(int)
train, test = slice(0, 160_000), slice(160_000, None)

def accuracy(device):
    model = {"objective": "binary:logistic", "device": device, "tree_method": "hist", "seed": 1}
    data = xgboost.QuantileDMatrix(x[train], y[train])
    booster = xgboost.train({**model, "max_depth": 6}, data, num_boost_round=100)
    found = booster.predict(xgboost.DMatrix(x[test])) > 0.5
    return float((found == y[test]).mean())

print(json.dumps({"cuda": accuracy("cuda"), "cpu": accuracy("cpu")}))
"""


def child(program: str, *arguments: str, path: Path | None = None) -> tuple[int, str, str]:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
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
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--target", folder, str(path)], check=True)
        code, said, complaints = child(TRAIN, path=Path(folder))
    if "cc90" not in path.name:
        say(f"  {path.name}: exit status {code}: {complaints.strip().splitlines()[-12:]}")
        clean = code > 0 and any(words in complaints for words in CLEAN)
        return None if clean else "it must fail with CUDA's clean error"
    if code:
        return f"exit status {code}: {complaints.strip()}"
    found = json.loads(said.splitlines()[-1])
    say(f"  {path.name}: accuracy {found}")
    close = abs(found["cuda"] - found["cpu"]) < 0.01
    return None if close and found["cuda"] > 0.85 else f"it must learn: {found}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(folder: Path) -> int:
    checks = [(path, library_fault) for path in sorted(folder.glob("*.so"))]
    checks += [(path, wheel_fault) for path in sorted(folder.glob("xgboost-*.whl"))]
    wrong = 0
    for path, fault_of in checks:
        fault = fault_of(path)
        wrong += fault is not None
        say(f"{'ok   ' if fault is None else 'WRONG'} {path.name} {fault or ''}")
    say(f"{len(checks)} checks, {wrong} wrong")
    return 1 if wrong or not checks else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
