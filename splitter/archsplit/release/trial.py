"""Trial of written files in child processes: pip installs a wheel, ``dlopen`` loads a library.

pip runs no code of a wheel; loading a library runs its constructors, so that is only for a user who
asks for it (``slim --try-load``). The child of such a trial has an empty environment, HOME in a
temporary folder, and, if the kernel allows it, no network. A library's own dependencies are
searched for in the installed packages, as its package would have loaded them before.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ArchsplitError, BinaryFormatError, DiskFullError, VerifyError
from archsplit.formats.elf import MACHINE_NAMES, Elf, FileType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.system.process import CompletedProcess, Runner
    from archsplit.wheels.filename import WheelName


def find_needed_folders(library: Path, sites: Iterable[Path]) -> tuple[Path, ...]:
    """Find the folders of all libraries that a library needs, directly or through others.

    For libraries whose search path doesn't lead to their dependencies: an extension of PyTorch
    counts on libraries that PyTorch loads before.

    Args:
        sites: site-packages folders; the first folder with a library wins.
    """
    available = _libraries_by_name(sites)
    path_by_name: dict[str, Path] = {}
    pending = [library]
    while pending:
        for name in _needed_names(pending.pop()):
            # A library of the system isn't here, and the dynamic loader finds it by itself.
            if name in available and name not in path_by_name:
                path_by_name[name] = available[name]
                pending.append(available[name])
    return tuple(dict.fromkeys(path.parent for path in path_by_name.values()))


def _libraries_by_name(sites: Iterable[Path]) -> Mapping[str, Path]:
    path_by_name: dict[str, Path] = {}
    for site in sites:
        for folder, folders, files in os.walk(site):
            # os.walk has the order of the disk, and the first library of a name wins.
            folders.sort()
            for name in sorted(files):
                # Versions come after the suffix: libcudart.so.12.
                if ".so" in name:
                    path_by_name.setdefault(name, Path(folder, name))
    return path_by_name


def _needed_names(library: Path) -> tuple[str, ...]:
    try:
        return tuple(Dynamic(Elf(open_file(library))).needed)
    except ArchsplitError:
        # The dynamic loader reports a damaged library better, when it is loaded.
        return ()


_LOAD = (
    "import ctypes, os, sys\n"
    "try:\n"
    "    ctypes.CDLL(sys.argv[1], mode=os.RTLD_LAZY)\n"
    "except OSError as error:\n"
    "    print(error, flush=True)\n"
    "    os._exit(3)\n"
    # Without destructors: without a GPU a library's destructors may crash.
    "os._exit(0)\n"
)
LOADS = "loads"
_REFUSED = 3
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SECONDS = 300
_PYTHON = re.compile(r"([a-z]+)(\d)(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Folder and environment of trials.

    Attributes:
        places: the site-packages folders to search for needed libraries.
    """

    runner: Runner
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    places: tuple[Path, ...] = ()

    def load(self, new: Path, old: Path) -> str:
        """Load a library in a child process with ``dlopen`` and RTLD_LAZY.

        A failure doesn't count if the old library can't be loaded either: a needed library or the
        driver of the GPU may be missing.

        Args:
            new: the library.
            old: the library that it was made from, in a folder with the same files.

        Returns:
            The result in words.

        Raises:
            VerifyError: the old library can be loaded, and the new one can't.
        """
        # A library of another machine can't be loaded here, but that is not its fault.
        if (obstacle := _obstacle(new)) is not None:
            return f"not tried, because {obstacle}"
        done = self._load(new)
        if done.returncode == 0:
            return LOADS
        # Second: an installed library is found without these folders.
        folders = find_needed_folders(new, self.places)
        if folders:
            done = self._load(new, folders)
            if done.returncode == 0:
                return LOADS
        # Only a difference between old and new is a fault of this tool.
        if self._load(old, folders).returncode == 0:
            raise VerifyError(f"{new.name} can't be loaded, but could before: {_reason(done)}")
        return f"can't be loaded here, and couldn't be before: {_reason(done)}"

    def install(self, wheel: Path, name: WheelName, target: Path) -> str | None:
        """Install a wheel without its dependencies into ``target`` with pip.

        Returns:
            None on success, or the reason why the trial is not possible.

        Raises:
            VerifyError: pip refuses the wheel.
            DiskFullError: pip has no space for the wheel's files.
        """
        argv = (sys.executable, "-m", "pip", *_pip_words(name), "--target", str(target), str(wheel))
        # pip unpacks there and renames: a small file system for temporary files need not hold it.
        done = self._run(argv, {**self.environment, "TMPDIR": str(self.folder)})
        if done.returncode == 0:
            return None
        if any(f"[Errno {number}]" in done.stderr for number in _FULL):
            raise DiskFullError(
                f"no space left in {self.folder} while pip installed {wheel.name}",
                hint="free some space and run it again",
            )
        if "No module named pip" in done.stderr:
            return "not tried, because this Python has no pip"
        raise VerifyError(f"pip can't install {wheel.name}:\n{done.tail()}")

    def _load(self, library: Path, folders: tuple[Path, ...] = ()) -> CompletedProcess:
        own = self.environment.get("LD_LIBRARY_PATH", "")
        path = os.pathsep.join(filter(None, (own, *map(str, folders))))
        # No variable of the caller: tokens are there, and the library's code runs.
        environment = {"HOME": str(self.folder), "TMPDIR": str(self.folder), "PATH": os.defpath}
        if path:
            environment["LD_LIBRARY_PATH"] = path
        argv = (sys.executable, "-I", "-S", "-c", _LOAD, str(library))
        return self._run((*self._isolation(environment), *argv), environment)

    def _isolation(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return a command that runs another one without a network, or nothing if it can't."""
        unshare = shutil.which("unshare")
        if unshare is None:
            return ()
        # A user namespace lets users other than root have a network namespace.
        argv = (unshare, "--map-current-user", "--net")
        is_allowed = self._run((*argv, sys.executable, "-V"), environment).returncode == 0
        return argv if is_allowed else ()

    def _run(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> CompletedProcess:
        command = Command(argv=argv, cwd=self.folder, env=environment, timeout=_SECONDS)
        return self.runner.run(command)


def trial_results(results: Mapping[str, str]) -> tuple[str, ...]:
    """Return the result of each trial, and the number of libraries not loaded."""
    lines = tuple(f"{name}: {result}" for name, result in results.items())
    untried = sum(result != LOADS for result in results.values())
    if not untried:
        return lines
    return (*lines, f"changed libraries that could not be tried here: {untried} of {len(results)}")


def _obstacle(library: Path) -> str | None:
    """Return the reason why this machine can't load a library; None if it may."""
    try:
        header = Elf(open_file(library)).header
    except BinaryFormatError:
        return "it is not a library"
    if header.type != FileType.LIBRARY:
        return "it is not a library"
    if MACHINE_NAMES.get(header.machine) != platform.machine():
        return f"this machine is a {platform.machine()}"
    return None


def _reason(done: CompletedProcess) -> str:
    if done.returncode == _REFUSED:
        return done.stdout.strip()
    return f"exit status {done.returncode} {done.tail()}".strip()


def _pip_words(name: WheelName) -> tuple[str, ...]:
    """Return pip's options to install a wheel, also one of another machine or Python."""
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--no-index", "--no-input"]
    words += ["--disable-pip-version-check", "--ignore-requires-python", "--only-binary=:all:"]
    for platform_tag in name.platforms:
        words += ["--platform", platform_tag]
    for abi in name.abis:
        words += ["--abi", abi]
    match = _PYTHON.fullmatch(name.pythons[-1])
    if match is not None:
        words += ["--implementation", match[1], "--python-version", f"{match[2]}{match[3]}"]
    return tuple(words)
