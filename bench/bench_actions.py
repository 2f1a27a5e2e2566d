# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""CPU time of an action on a farm beside its program: of the driver, and of the server.

    python bench/bench_actions.py grpc://127.0.0.1:8980 [--server PID] [--actions N] [--json FILE]
    python bench/bench_actions.py --slots 1024 --actions 4000

Each action copies a file of a few bytes with the shell. All run three times: on workers, with each
output written here, as by the wrapper; on workers, with outputs that stay on the farm, as most of a
recipe's do; and with results that are in the action cache. The last row is the floor: a call of
gRPC without content, and a pause, as between the actions of a real build; with many in flight it
costs less. With the process id of a server on this machine, its time and its workers' time are
measured, too; the shell's own time is a part of these.

Without an address, `farm_stub.py` is the server. It runs nothing, and so has no third row: a
thousand actions of two seconds are in flight, which no real server runs on one machine. The goal is
at most 2 ms of the driver for an action.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
from program_usage import process_cpu

from archsplit.remote.action import PathMap, ToolFile
from archsplit.remote.endpoint import parse_endpoint
from archsplit.remote.reapi_executor import ReapiExecutor
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHELL = Path("/bin/sh")
_CALL = "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs"
_STUB_SECONDS = 2.0


class Row(NamedTuple):
    """Milliseconds of CPU for each action."""

    run: str
    driver: float
    server: float


def copy_steps(folder: Path, count: int) -> tuple[Step, ...]:
    """Return steps whose results no farm has."""
    root, private = folder / "root", folder / "private"
    root.mkdir(parents=True)
    private.mkdir()
    found = []
    for number in range(count):
        source, target = root / f"source-{number}", private / f"copy-{number}"
        source.write_text(f"{uuid.uuid4()}\n")
        script = f"cat {source} > {target}"
        command = Command(argv=(str(_SHELL), "-c", script), cwd=root, env={})
        found.append(Step(name=source.name, command=command, reads=(source,), writes=(target,)))
    return tuple(found)


class Farm(NamedTuple):
    """A server: its address and process id, and the actions that are in flight."""

    address: str
    server: int
    slots: int


def server_cpu(farm: Farm) -> float:
    """Return the CPU seconds of a farm's server; 0 if the server is on another machine."""
    return process_cpu(farm.server) if farm.server else 0.0


def measure(
    farm: Farm, steps: tuple[Step, ...], folder: Path, run: str, *, takes_outputs: bool = True
) -> Row:
    """Run all steps, and return the CPU time of each."""
    tools = (ToolFile(path=str(_SHELL), sha256=hashlib.sha256(_SHELL.read_bytes()).hexdigest()),)
    executor = ReapiExecutor(
        parse_endpoint(farm.address),
        paths=PathMap(folder / "root", folder / "private"),
        tools=lambda _: tools,
        wanted=[path for step in steps for path in step.writes if takes_outputs],
        priorities={},
    )
    before, elsewhere = time.process_time(), server_cpu(farm)
    outcome = run_graph(
        Graph(steps=steps),
        RunOptions(
            pool=LocalPool(farm.slots),
            runner=SubprocessRunner(),
            progress=SilentProgress(),
            executor=executor,
        ),
    )
    assert outcome.failure is None
    each = 1000 / len(steps)
    driver = (time.process_time() - before) * each
    return Row(run, round(driver, 2), round((server_cpu(farm) - elsewhere) * each, 2))


def measure_calls(address: str, count: int = 100) -> Row:
    """Return the CPU time of a call without content."""

    async def run() -> float:
        async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
            call = channel.unary_unary(_CALL)
            await call(b"")
            before = time.process_time()
            for _ in range(count):
                await call(b"")
                await asyncio.sleep(0.02)
            return time.process_time() - before

    return Row("an empty call", round(1000 * asyncio.run(run()) / count, 2), 0.0)


@contextlib.contextmanager
def run_stub(slots: int) -> Iterator[Farm]:
    """Start the server that runs nothing."""
    script = Path(__file__).with_name("farm_stub.py")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "port"
        command = Command(
            argv=(sys.executable, str(script), str(_STUB_SECONDS), str(place)),
            cwd=Path(name),
            env=dict(os.environ),
        )
        runner = SubprocessRunner()
        runner.start(command)
        try:
            while not place.exists():
                time.sleep(0.05)
            yield Farm(f"grpc://127.0.0.1:{place.read_text()}", 0, slots)
        finally:
            runner.kill_unawaited()


def measure_farm(farm: Farm, count: int, folder: Path, *, has_cache: bool) -> list[Row]:
    """Return the rows of a server."""
    steps = copy_steps(folder / "here", count)
    rows = [measure(farm, steps, folder / "here", "executed, outputs here")]
    cached = [measure(farm, steps, folder / "here", "cached")] if has_cache else []
    steps = copy_steps(folder / "there", count)
    run = "executed, outputs there"
    rows.append(measure(farm, steps, folder / "there", run, takes_outputs=False))
    return [*rows, *cached, measure_calls(farm.address)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", help="of a farm; default: farm_stub.py")
    parser.add_argument("--server", type=int, default=0, metavar="PID")
    parser.add_argument("--actions", type=int, default=200, metavar="N")
    parser.add_argument("--slots", type=int, default=64, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        farm = (
            Farm(arguments.address, arguments.server, arguments.slots)
            if arguments.address
            else stack.enter_context(run_stub(arguments.slots))
        )
        rows = measure_farm(farm, arguments.actions, Path(name), has_cache=bool(arguments.address))
    print("ms of CPU per action     driver   server")
    for row in rows:
        print(f"{row.run:<23}{row.driver:8.2f}{row.server:9.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
