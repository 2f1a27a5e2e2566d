"""The work of dask's workers: one action in a folder of its own, with a toolkit that they got once.

In: an action as plain data, and the results of the actions that made some of its inputs. Out: exit
status, output and files, as plain data. dask moves results between workers when a later action
needs them. No object of a client is called here, and nothing of the network is read.

A toolkit is one archive of the files of a build's tools that are in the shipped folders. Its name
is the digest of the list of these files. `unpack_toolkit` compares each file with that list, so
that a folder with this name has these bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from archsplit.cache.file_digests import FileDigests
from archsplit.errors import EngineRefusedError, UsageError
from archsplit.remote.action import OTHER_TOOLS_STATUS, TOOLKIT_FOLDER, ShippedFolders
from archsplit.system.fs import sha256
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.remote.action import ToolFile
    from archsplit.system.process import Runner


class DaskAction(TypedDict):
    """An action.

    Attributes:
        argv: the program and its arguments.
        environment: the whole environment.
        files: the content of inputs that no other action makes, by name.
        inputs: names of the inputs that other actions make.
        outputs: names of the files to return.
        tools: digests of the files of the tools that the worker must have, by their paths.
        toolkit: name of the shipped toolkit; "" for none.
    """

    argv: list[str]
    environment: dict[str, str]
    files: dict[str, bytes]
    inputs: list[str]
    outputs: list[str]
    tools: dict[str, str]
    toolkit: str


class DaskResult(TypedDict):
    """A result.

    Attributes:
        sizes: bytes of the outputs that exist, by name.
        files: the content of these outputs, or of some of them.
        worker: address of the worker.
        stages: names, begins and ends, by a clock of the worker's.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    sizes: dict[str, int]
    files: dict[str, bytes]
    worker: str
    stages: list[tuple[str, float, float]]


def run_action(
    action: DaskAction,
    made: list[DaskResult],
    runner: Runner | None = None,
    *,
    toolkits: Path | None = None,
    digests: FileDigests | None = None,
) -> DaskResult:
    """Run an action in an empty folder.

    Args:
        action: the action.
        made: results of the actions that make its other inputs.
        runner: starts the program; None for one that nobody cancels.
        toolkits: the folder of the shipped toolkits that the worker has; None for none.
        digests: those of the worker's files that are known; None for none.

    Raises:
        InterruptedByUserError: the runner was canceled.
    """
    began = time.monotonic()
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


def _refused(others: Iterable[str]) -> DaskResult:
    """Return the result of an action whose tools are others here."""
    return {
        "returncode": OTHER_TOOLS_STATUS,
        "stdout": "".join(f"{path}: FAILED\n" for path in others),
        "stderr": "",
        "seconds": 0.0,
        "sizes": {},
        "files": {},
        "worker": "",
        "stages": [],
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


_SYSTEM_FOLDERS = {Path("/"), Path("/usr"), Path("/usr/local"), Path("/opt")}
_TOOL_GROUP = "tools"
# More saves a tenth of the bytes, and takes ten times as long.
_LEVEL = 1


class PackedToolkit(TypedDict):
    """A packed toolkit, as plain data.

    Attributes:
        name: the digest of the list of its files.
        digests: of its files by their names in the archive.
        archive: a tar archive, compressed by gzip.
    """

    name: str
    digests: dict[str, str]
    archive: bytes


class ToolkitFiles:
    """The shipped files of the tools of one build.

    Args:
        tools: files of the tools; those in no shipped folder are left out.
        shipped: the folders.

    Attributes:
        name: the digest of the list of the files; "" for none.
    """

    def __init__(self, tools: Iterable[ToolFile], shipped: ShippedFolders) -> None:
        named = {shipped.name(tool.path): tool for tool in tools if shipped.has(tool.path)}
        self._links = {
            str(name.relative_to(TOOLKIT_FOLDER)): to
            for name, to in shipped.used_links(named).items()
        }
        self._files = {str(name.relative_to(TOOLKIT_FOLDER)): tool for name, tool in named.items()}
        self._digests = {name: tool.sha256 for name, tool in sorted(self._files.items())}
        rows = (*self._digests.items(), *sorted(self._links.items()))
        text = "".join(f"{digest}  {name}\n" for name, digest in rows)
        encoded = text.encode(errors="surrogateescape")
        self.name = hashlib.sha256(encoded).hexdigest() if named else ""

    def pack(self) -> PackedToolkit:
        """Return the archive of the files."""
        blob = io.BytesIO()
        with tarfile.open(fileobj=blob, mode="w:gz", compresslevel=_LEVEL) as archive:
            for name, tool in sorted(self._files.items()):
                # The file itself, wherever a link leads to it.
                archive.add(Path(tool.path).resolve(), name)
            for name, target in sorted(self._links.items()):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)
        return {"name": self.name, "digests": self._digests, "archive": blob.getvalue()}


def find_shipped_folders(folders: Iterable[Path]) -> ShippedFolders:
    """Return the folders of a toolkit that workers get.

    Args:
        folders: those of the toolkit, and of other packages with headers and libraries of CUDA.

    Raises:
        UsageError: other programs are in one of them.
    """
    places = {Path(os.path.normpath(folder)) for folder in folders}
    # As named and as resolved: commands may have both.
    places |= {folder.resolve() for folder in places}
    if system := sorted(places & _SYSTEM_FOLDERS):
        raise UsageError(
            f"the toolkit is in {system[0]}, together with other programs, and can't be shipped",
            hint="use the toolkit of the index (pip install 'nvidia-cuda-nvcc'), or"
            " --remote-toolkit named",
        )
    outer = sorted(each for each in places if places.isdisjoint(each.parents))
    links = {}
    for root in outer:
        for folder, folders_inside, _ in os.walk(root):
            for name in folders_inside:
                path = Path(folder, name)
                # A link out of the toolkit has no meaning on a worker.
                if path.is_symlink() and path.resolve().is_relative_to(root.resolve()):
                    links[str(path)] = os.path.relpath(path.resolve(), path.parent.resolve())
    return ShippedFolders(paths=tuple(map(str, outer)), links=links)


def unpack_toolkit(toolkit: PackedToolkit, folder: Path) -> None:
    """Unpack a toolkit into a folder of its name, if there is none.

    Args:
        toolkit: the toolkit.
        folder: the folder of all toolkits.

    Raises:
        EngineRefusedError: a file is another one than the list has.
    """
    target = folder / toolkit["name"]
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        inside = Path(place, "toolkit")
        with tarfile.open(fileobj=io.BytesIO(toolkit["archive"])) as archive:
            # No name leads out of the folder. Python 3.10.11 and older have no filters.
            more = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(inside, **more)  # type: ignore[arg-type] # noqa: S202 - as said
        _compare(inside, toolkit["digests"])
        try:
            inside.rename(target)
        # Another worker with this folder was faster.
        except OSError:
            if not target.exists():
                raise


def _compare(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            raise EngineRefusedError(f"{name} of a shipped toolkit has changed on its way")
