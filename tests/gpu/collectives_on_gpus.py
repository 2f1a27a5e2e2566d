"""Compare NCCL's collectives on several GPUs before and after ``slim --unregistered zero``.

``python tests/gpu/collectives_on_gpus.py`` works on a copy of links to this Python's environment;
``--rank`` is for the processes that it starts, one for each GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_operation import digest_arrays

SIZES = (1, 1000, 1 << 20, (1 << 22) + 3)
SECONDS = 60


def collectives(rank: int, count: int, store: str) -> dict[str, str]:
    """Return the digest of each collective's result on one GPU."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=count)
    results = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32):
        for size in SIZES:
            generator = torch.Generator().manual_seed(size + rank)
            values = (torch.randn(size, generator=generator) * 9).to(dtype).cuda()
            for how in ("SUM", "PRODUCT", "MIN", "MAX"):
                own = values.clone()
                distributed.all_reduce(own, op=getattr(distributed.ReduceOp, how))
                results[f"all_reduce {how} {dtype} {size}"] = digest(torch, [own])
            parts = [torch.empty_like(values) for _ in range(count)]
            distributed.all_gather(parts, values)
            results[f"all_gather {dtype} {size}"] = digest(torch, parts)
            own = values.clone()
            distributed.broadcast(own, 1)
            results[f"broadcast {dtype} {size}"] = digest(torch, [own])
            part = torch.empty_like(values)
            distributed.reduce_scatter(part, [values] * count)
            results[f"reduce_scatter {dtype} {size}"] = digest(torch, [part])
    distributed.destroy_process_group()
    return results


def digest(torch: Any, tensors: list[Any]) -> str:  # noqa: ANN401 (a module)
    return digest_arrays([one.cpu().view(torch.uint8).numpy() for one in tensors])


def run_ranks(environment: Any, count: int, folder: Path) -> dict[str, str]:  # noqa: ANN401
    """Run all collectives in one process for each GPU."""
    store = f"file://{tempfile.mktemp(dir=folder)}"
    words = [str(environment.python), __file__, "--count", str(count), "--store", store]
    processes = [
        subprocess.Popen(
            [*words, "--rank", str(rank)],
            env=environment.variables(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    results: dict[str, str] = {}
    for rank, process in enumerate(processes):
        try:
            output = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = ""
        rows = [line for line in output.splitlines() if line.startswith("{")]
        found = json.loads(rows[-1]) if rows else {}
        results |= {f"{name} on {rank}": value for name, value in found.items()}
    return results


def compare() -> int:
    """Slim a copy of the environment, and print what differs."""
    # Only this process has archsplit.
    environments: Any = importlib.import_module("gpu_environment")
    torch: Any = importlib.import_module("torch")
    count = torch.cuda.device_count()
    place = Path(sys.prefix).parent
    with tempfile.TemporaryDirectory(prefix="archsplit-proof-", dir=place) as name:
        environment = environments.copy_environment(Path(name) / "environment")
        before = run_ranks(environment, count, Path(name))
        slimmed = environments.run_archsplit(
            *("slim", "--site-packages", str(environment.site), "--device", "native"),
            *("--unregistered", "zero", "--ignore-record"),
        )
        after = run_ranks(environment, count, Path(name))
    different = sorted(one for one in before if after.get(one) != before[one])
    print(f"slim: {slimmed.seconds:.1f} s, exit {slimmed.code}")  # noqa: T201
    print(f"{count} GPUs, {len(before)} results, different: {different}")  # noqa: T201
    return 0 if before and not different else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rank", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--store")
    arguments = parser.parse_args()
    if arguments.rank is None:
        return compare()
    results = collectives(arguments.rank, arguments.count, arguments.store)
    print(json.dumps(results), flush=True)  # noqa: T201 - the output of this program
    return 0


if __name__ == "__main__":
    sys.exit(main())
