"""The function that dask's workers run: one action in a folder of its own.

In: an action as plain data, and the results of the actions that made some of its inputs. Out: exit
status, output and files, as plain data. dask moves results between workers when a later action
needs them. No object of a client is called here, and nothing of the network is read.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from archsplit.remote.action import TOOLKIT_FOLDER
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from archsplit.system.process import Runner


class DaskAction(TypedDict):
    """An action.

    Attributes:
        argv: the program and its arguments.
        environment: the whole environment.
        files: the content of inputs that no other action makes, by name.
        inputs: names of the inputs that other actions make.
        outputs: names of the files to return.
        toolkit: name of the shipped toolkit; "" for tools that the worker has.
    """

    argv: list[str]
    environment: dict[str, str]
    files: dict[str, bytes]
    inputs: list[str]
    outputs: list[str]
    toolkit: str


class DaskSummary(TypedDict):
    """A result without its files, for the client.

    Attributes:
        worker: address of the worker.
        stages: names, begins and ends, by a clock of the worker's.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    sizes: dict[str, int]
    worker: str
    stages: list[tuple[str, float, float]]


class DaskResult(DaskSummary):
    """A result.

    Attributes:
        files: the content of the outputs that exist, by name.
    """

    files: dict[str, bytes]


def run_action(
    action: DaskAction,
    made: list[DaskResult],
    runner: Runner | None = None,
    *,
    toolkits: Path | None = None,
) -> DaskResult:
    """Run an action in an empty folder.

    Args:
        action: the action.
        made: results of the actions that make its other inputs.
        runner: starts the program; None for one that nobody cancels.
        toolkits: the folder of the shipped toolkits that the worker has; None for none.

    Raises:
        InterruptedByUserError: the runner was canceled.
    """
    began = time.monotonic()
    files = dict(action["files"])
    for result in made:
        # Each result has only some of the inputs.
        files |= {
            name: result["files"][name] for name in action["inputs"] if name in result["files"]
        }
    with tempfile.TemporaryDirectory(prefix="archsplit-") as place:
        folder = Path(place)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # Compilers don't make the folders of their outputs.
        for name in action["outputs"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if toolkits is not None and action["toolkit"]:
            link = folder / TOOLKIT_FOLDER
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(toolkits / action["toolkit"])
        command = Command(argv=tuple(action["argv"]), cwd=folder, env=action["environment"])
        started = time.monotonic()
        done = (runner or SubprocessRunner()).run(command)
        ended = time.monotonic()
        paths = {name: folder / name for name in action["outputs"]}
        # A failed tool leaves no outputs, or some: its exit status decides, at the client.
        outputs = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    return {
        "returncode": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "seconds": done.seconds,
        "sizes": {name: len(content) for name, content in outputs.items()},
        "worker": "",
        "stages": [
            ("input fetch", began, started),
            ("execution", started, ended),
            ("output upload", ended, time.monotonic()),
        ],
        "files": outputs,
    }


def drop_files(result: DaskResult) -> DaskSummary:
    """Return a result without its files."""
    # Key by key, because a copy without one key would lose the types.
    return {
        "returncode": result["returncode"],
        "stdout": result["stdout"],
        "stderr": result["stderr"],
        "seconds": result["seconds"],
        "sizes": result["sizes"],
        "worker": result["worker"],
        "stages": result["stages"],
    }


def take_file(result: DaskResult, name: str) -> bytes:
    """Return one file of a result."""
    return result["files"][name]
