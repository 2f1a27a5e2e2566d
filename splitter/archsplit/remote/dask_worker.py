"""The work of dask's workers: one action in a folder of its own.

In: an action as plain data, and the results of the actions that made some of its inputs. Out: exit
status, output and files, as plain data. dask moves results between workers when a later action
needs them. No object of a client is called here, and nothing of the network is read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from archsplit.cache.file_digests import FileDigests
from archsplit.remote.action import OTHER_TOOLS_STATUS
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.system.process import Runner

_TOOL_GROUP = "tools"
"""Group of the tools' digests, see `FileDigests`."""


class DaskAction(TypedDict):
    """An action.

    Attributes:
        argv: the program and its arguments.
        environment: the whole environment.
        files: the content of inputs that no other action makes, by name.
        inputs: names of the inputs that other actions make.
        outputs: names of the files to return.
        tools: digests of the files of the tools that the worker must have, by their paths.
    """

    argv: list[str]
    environment: dict[str, str]
    files: dict[str, bytes]
    inputs: list[str]
    outputs: list[str]
    tools: dict[str, str]


class DaskResult(TypedDict):
    """A result.

    Attributes:
        sizes: bytes of the outputs that exist, by name.
        files: the content of these outputs, or of some of them.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    sizes: dict[str, int]
    files: dict[str, bytes]


def run_action(
    action: DaskAction,
    made: list[DaskResult],
    runner: Runner | None = None,
    *,
    digests: FileDigests | None = None,
) -> DaskResult:
    """Run an action in an empty folder.

    Args:
        action: the action.
        made: results of the actions that make its other inputs.
        runner: starts the program; None for one that can't be canceled.
        digests: the known digests of the worker's files; None without any.

    Raises:
        InterruptedByUserError: the runner was canceled.
    """
    if others := find_other_tools(action["tools"], digests or FileDigests(None)):
        return _refused(others)
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
        command = Command(argv=tuple(action["argv"]), cwd=folder, env=action["environment"])
        done = (runner or SubprocessRunner()).run(command)
        paths = {name: folder / name for name in action["outputs"]}
        # A failed tool leaves no outputs, or some: its exit status decides, at the client.
        outputs = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    return {
        "returncode": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "seconds": done.seconds,
        "sizes": {name: len(content) for name, content in outputs.items()},
        "files": outputs,
    }


def _refused(others: Iterable[str]) -> DaskResult:
    """Return the result of an action if this worker has other tools."""
    return {
        "returncode": OTHER_TOOLS_STATUS,
        "stdout": "".join(f"{path}: FAILED\n" for path in others),
        "stderr": "",
        "seconds": 0.0,
        "sizes": {},
        "files": {},
    }


def select_files(result: DaskResult, names: Iterable[str]) -> DaskResult:
    """Return a result with some of its files."""
    files = {name: result["files"][name] for name in names if name in result["files"]}
    return {**result, "files": files}


def find_other_tools(tools: Mapping[str, str], digests: FileDigests) -> list[str]:
    """Return the files of the tools that are gone, or have another digest."""
    # A file may have changed since the last action; its times are read again, not its bytes.
    digests.recheck()
    return [
        path for path, known in tools.items() if digests.digest(path, group=_TOOL_GROUP) != known
    ]
