"""The files of the tools of steps, for machines that have the same ones.

In: a step. Out: its program, the parts that the program starts, and the headers and libraries of
CUDA that no step declares, with their digests. The worker of a farm compares them before it runs
the step.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.file_resolver import PROGRAM_GROUP
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError, UsageError
from archsplit.nvcc.step_args import is_host_compiler
from archsplit.remote.action import ShippedFolders, ToolFile
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from archsplit.scheduler.graph import Step
    from archsplit.system.process import Runner

_HEADER_GROUP = "toolkit headers"
_LINKERS = ("collect2", "ld")
_SYSTEM_FOLDERS = {Path("/"), Path("/usr"), Path("/usr/local"), Path("/opt")}


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


class ToolFiles:
    """The files of the tools of each step, with their digests.

    Args:
        runner: asks compilers for their parts.
        folder: folder of known digests.
        cwd: the working directory of the steps.
        headers: returns paths below the folders of CUDA's headers.
        objcopy: the program of that name, which has no parts; None if no step runs it.
        libraries: files that links read and don't declare.
    """

    def __init__(
        self,
        runner: Runner,
        folder: Path,
        *,
        cwd: Path,
        headers: Callable[[], Iterable[Path]],
        objcopy: Path | None = None,
        libraries: Sequence[Path] = (),
    ) -> None:
        self._digests = FileDigests(folder)
        self._digests.load(PROGRAM_GROUP)
        self._digests.load(_HEADER_GROUP)
        self._runner = runner
        self._tools = ToolIdentities(runner=runner, digests=self._digests, cwd=cwd)
        self._find_headers = headers
        self._objcopy = objcopy
        self._libraries = libraries
        self._more: dict[str, tuple[ToolFile, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> tuple[ToolFile, ...]:
        """Return the files of a step's tools; several threads may call it.

        Raises:
            ToolNotFoundError: one of them is gone.
        """
        with self._lock:
            return tuple(dict.fromkeys(self._find_all(step)))

    def save(self) -> None:
        """Store the digests for the next build."""
        self._digests.save()

    def _find_all(self, step: Step) -> Iterator[ToolFile]:
        for part in step.parts or (step,):
            yield from self._find(part.command)

    def _find(self, command: Command) -> Iterator[ToolFile]:
        if self._objcopy is not None and command.argv[0] == str(self._objcopy):
            # `ToolIdentities` takes each other program for a compiler with parts.
            yield self._file(self._objcopy, PROGRAM_GROUP)
            return
        for path in self._tools.files(command.argv, command.env):
            yield self._file(path, PROGRAM_GROUP)
        if is_host_compiler(command.argv[0]):
            compiles = not {"-E", "-c", "-S"}.isdisjoint(command.argv)
            yield from self._headers() if compiles else self._link_parts(command)

    def _headers(self) -> tuple[ToolFile, ...]:
        if "headers" not in self._more:
            paths = sorted(set(self._find_headers()))
            found = (self._file(path, _HEADER_GROUP) for path in paths if path.is_file())
            self._more["headers"] = tuple(found)
        return self._more["headers"]

    def _link_parts(self, command: Command) -> tuple[ToolFile, ...]:
        if "link" not in self._more:
            paths = [*self._libraries]
            for part in _LINKERS:
                argv = (command.argv[0], f"-print-prog-name={part}")
                query = Command(argv=argv, cwd=command.cwd, env=command.env)
                name = run_checked(self._runner, query, what=f"asking for {part}").stdout.strip()
                # A bare name is one that the compiler looks for on the PATH.
                place = shutil.which(name, path=command.env.get("PATH", ""))
                paths += [] if place is None else [Path(place)]
            self._more["link"] = tuple(self._file(path, PROGRAM_GROUP) for path in paths)
        return self._more["link"]

    def _file(self, path: Path | None, group: str) -> ToolFile:
        digest = None if path is None else self._digests.digest(str(path), group=group)
        if path is None or digest is None:
            raise ToolNotFoundError(f"a part of the tools is gone: {path or 'a compiler'}")
        return ToolFile(path=str(path), sha256=digest)
