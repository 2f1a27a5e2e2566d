"""Prove on a GPU that a fork while a library is being loaded is as safe as with the fat library.

    prove_fork.py make FOLDER    needs nvcc and archsplit: a wheel of small libraries, and its split
    prove_fork.py FOLDER [N]     needs the driver and Python: N rounds of each (20)

In a round a thread loads one library after another, and the main thread forks 150 times. Each child
loads a library that the parent has not, and every eighth one runs its kernel. What counts is the
children that hang or fail; glibc promises nothing here, so the fat libraries have some too.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

LIBRARIES = 24
CHILDREN = 150
SECONDS = 20
"""A child that has taken longer hangs."""
SOURCE = """
static __global__ void add(int *sum) { atomicAdd(sum, NUMBER); }
extern "C" int run(int launch) {
  if (!launch) return NUMBER + 32;
  int *sum, found = -1;
  if (cudaMalloc(&sum, 4) || cudaMemset(sum, 0, 4)) return -1;
  add<<<1, 32>>>(sum);
  return cudaMemcpy(&found, sum, 4, cudaMemcpyDeviceToHost) ? -1 : found == 32 * NUMBER;
}
"""


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the report


def make(folder: Path) -> None:
    """Compile the libraries, and make a wheel of them and its split."""
    libraries = folder / "wheel" / "forks"
    libraries.mkdir(parents=True)
    (libraries / "__init__.py").touch()
    source = folder / "add.cu"
    source.write_text(SOURCE)
    for number in range(1, LIBRARIES + 1):
        code = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in (80, 90)]
        out = str(libraries / f"add{number}.so")
        words = [f"-DNUMBER={number}", "-shared", "-Xcompiler=-fPIC", "-o", out, str(source)]
        subprocess.run(["nvcc", *code, *words], check=True)
    info = folder / "wheel" / "forks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forks\nVersion: 1.0\n")
    tags = "Root-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: prove_fork\n{tags}")
    fat = folder / "fat"
    wheel = [sys.executable, "-m", "wheel", "pack", str(folder / "wheel"), "-d"]
    fat.mkdir()
    subprocess.run([*wheel, str(fat)], check=True)
    split = [sys.executable, "-m", "archsplit", "split", *map(str, fat.glob("*.whl"))]
    subprocess.run([*split, "--out", str(folder / "split")], check=True)


def child(site: Path, number: int) -> None:
    """Load a library that the parent has not, and leave with 0 if it works."""
    signal.alarm(SECONDS)
    try:
        library = ctypes.CDLL(str(site / "forks" / f"add{LIBRARIES}.so"))
    except OSError:
        os._exit(4)
    launch = number % 8 == 0
    os._exit(0 if library.run(int(launch)) == (1 if launch else LIBRARIES + 32) else 3)


def work(site: Path, seed: int) -> None:
    """Run one round, and print how its children ended."""
    chosen = random.Random(seed)
    stopped = threading.Event()

    def load() -> None:
        for number in range(1, LIBRARIES):
            if not stopped.is_set():
                ctypes.CDLL(str(site / "forks" / f"add{number}.so"))
                time.sleep(0.005)

    thread = threading.Thread(target=load)
    thread.start()
    children = []
    loading = 0
    for number in range(CHILDREN):
        time.sleep(chosen.random() / 500)
        loading += thread.is_alive()
        pid = os.fork()
        if pid == 0:
            child(site, number)
        children.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    stopped.set()
    thread.join()
    hung = sum(end == -signal.SIGALRM for end in ends)
    failed = sum(end != 0 for end in ends) - hung
    print(json.dumps({"hung": hung, "failed": failed, "loading": loading}))  # noqa: T201


def main() -> int:
    """Compare both, and exit with 1 if the split libraries' children fare worse."""
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
        return 0
    if sys.argv[1] == "--round":
        work(Path(sys.argv[2]), int(sys.argv[3]))
        return 0
    folder, rounds = Path(sys.argv[1]), int((sys.argv[2:] or ["20"])[0])
    totals = {"fat": [0, 0, 0], "split": [0, 0, 0]}
    with tempfile.TemporaryDirectory() as name:
        for how in totals:
            for wheel in (folder / how).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(Path(name, how))
        for seed in range(rounds):
            for how, total in totals.items():
                words = [sys.executable, __file__, "--round", str(Path(name, how)), str(seed)]
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout)
                for at, key in enumerate(("hung", "failed", "loading")):
                    total[at] += found[key]
    for how, (hung, failed, loading) in totals.items():
        say(f"{how}: of {rounds * CHILDREN} children {hung} hung and {failed} failed;")
        say(f"  {loading} were forked while the thread was loading")
    return int(sum(totals["split"][:2]) > sum(totals["fat"][:2]))


if __name__ == "__main__":
    sys.exit(main())
