"""Check plugins with relocatable device code, built elsewhere, on a machine with a GPU.

``python tests/gpu/tinyrdc_on_gpu.py WHEELS`` opens the library of every tinyrdc plugin in a folder,
each in a process of its own, and exits with 1 if one that runs on the first GPU computes something
else than it should. It needs only Python: no network, no compiler, no installed archsplit.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import tempfile
import zipfile
from pathlib import Path

COUNT = 1000
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and its fellow."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def first_capability() -> tuple[int, int]:
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) != 0:
        raise SystemExit("no GPU found")
    numbers = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        numbers.append(value.value)
    return numbers[0], numbers[1]


def runs(target: str, capability: tuple[int, int]) -> bool:
    kind, _, number = target.partition("_")
    wanted = divmod(int(number), 10)
    return wanted <= capability and (kind == "compute" or wanted[0] == capability[0])


def fault(path: str) -> str:
    """Return the fault in the results of a library, or ""."""
    library = ctypes.CDLL(path)
    items = (ctypes.c_int * COUNT)(*range(COUNT))
    results = (ctypes.c_int * COUNT)()
    # The offset is 7 to begin with; each setting adds how often there was one before.
    for expected, offset in ((7, None), (100, 100), (201, 200)):
        if offset is not None and (status := library.tinyrdc_set(offset)) != 0:
            return f"tinyrdc_set returns {status}"
        if (status := library.tinyrdc_apply(items, results, COUNT)) != 0:
            return f"tinyrdc_apply returns {status}"
        wanted = [2 * item + expected + 1000 for item in range(COUNT)]
        if list(results) != wanted:
            return f"results begin with {results[:4]}, not with {wanted[:4]}"
    return ""


def checked(wheel: Path, capability: tuple[int, int], folder: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".so"))
        path = archive.extract(member, folder)
    target = Path(member).parent.name
    if not runs(target, capability):
        say(f"{target}: not for this GPU")
        return True
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(fault, (path,))
    say(f"{target}: {found or 'as it should be'}")
    return not found


def main() -> int:
    """Return 0 if all is right."""
    wheels = sorted(Path(sys.argv[1]).glob("tinyrdc_*.whl")) if len(sys.argv) == 2 else []
    if not wheels:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    capability = first_capability()
    with tempfile.TemporaryDirectory() as folder:
        results = [checked(wheel, capability, Path(folder)) for wheel in wheels]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
