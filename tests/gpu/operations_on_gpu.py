"""Run many operations of PyTorch, CuPy or JAX, and print the SHA-256 of each result.

``python tests/gpu/operations_on_gpu.py --framework torch`` runs each operation with fixed operands
on the GPU. Each result is one line of JSON as soon as it is there, so that nothing is lost when a
library ends the process; the last line has the files that were mapped, times and memory.
``--device cpu`` tries the program without a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_operation import Operation

_LONGEST_ERROR = 160


def result_of(module: Any, operation: Operation) -> str:  # noqa: ANN401 (a module)
    """Return the digest of an operation's result, or its error."""
    try:
        return str(module.digest(operation.run()))
    # What a library without its code raises is the result that is looked for.
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"error {text[:_LONGEST_ERROR]}"


def mapped_files() -> list[str]:
    """Return the paths of the shared libraries in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if ".so" in path)


def say(**content: object) -> None:
    print(json.dumps(content), flush=True)  # noqa: T201 - the output of this program


def main() -> None:
    """Run the operations that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--framework", choices=["torch", "cupy", "jax"], default="torch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--libraries", help="only operations for these: cublas,cudnn")
    parser.add_argument("--limit", type=int, help="at most so many operations")
    arguments = parser.parse_args()
    wanted = set(filter(None, (arguments.libraries or "").split(",")))
    start = time.monotonic()
    module = importlib.import_module(f"{arguments.framework}_operations")
    importlib.import_module(arguments.framework)
    imported = time.monotonic() - start
    first = None
    count = 0
    for operation in module.operations(arguments.device):
        if wanted and not wanted & set(operation.libraries):
            continue
        if arguments.limit is not None and count >= arguments.limit:
            break
        count += 1
        began = time.monotonic()
        result = result_of(module, operation)
        first = first or time.monotonic() - began
        say(name=operation.name, libraries=operation.libraries, result=result)
    say(
        mapped=mapped_files(),
        import_seconds=round(imported, 3),
        first_seconds=round(first or 0.0, 3),
        seconds=round(time.monotonic() - start, 1),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


if __name__ == "__main__":
    main()
