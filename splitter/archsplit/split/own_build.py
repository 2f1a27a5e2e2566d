"""The environment of a project's own build: the compiler wrapper in nvcc's place, and the targets.

In: the caller's environment, a toolkit and the targets of a recipe. Out: the variables by which
CMake, PyTorch and setuptools find compilers and targets, and a record of the wrapper's calls.

A build names its nvcc in many ways, so that all of them lead to the wrapper: variables, ``PATH``,
and ``CUDA_HOME``, a folder of links to the toolkit whose ``bin/nvcc`` is a script. This folder is
kept in the cache folder: compilers write its path into what they make, and the compile cache would
miss with another path in each build. Its ``include`` and ``lib64`` also have the headers and
libraries of NVIDIA's wheels, and the names without a version that linkers look for. The script
ignores ``PYTHONPATH``, because build frontends hide all packages by it, archsplit among them.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.arch.target import cmake_architectures, gencode_flags, torch_arch_list
from archsplit.errors import OutputError
from archsplit.nvcc.cuda_libraries import wheel_folders
from archsplit.system.env import cache_dir
from archsplit.system.fs import input_errors, output_errors, temporary_dir
from archsplit.system.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.arch.target import Target
    from archsplit.nvcc.toolkit import Toolkit

CALLS_VARIABLE = "ARCHSPLIT_NVCC_CALLS"
"""Environment variable with the file for the wrapper's record of calls."""
COMPILED, CACHED, BY_NVCC = "compiled", "cached", "nvcc"
"""First words of these lines."""

_COMPILERS = ("CUDACXX", "CMAKE_CUDA_COMPILER", "NVCC", "PYTORCH_NVCC")
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT")
_HOMES = ("HOME", "XDG_CACHE_HOME", "ARCHSPLIT_CACHE_DIR")
_VERSIONED = re.compile(r"(lib[\w-]+\.so)(?:\.\d+)+")
_SCRIPT = """\
#!/bin/sh
# archsplit-nvcc in nvcc's place, for the builds that `archsplit build` starts.
exec {python} -E {folder}/archsplit-nvcc {nvcc} "$@"
"""
_LAUNCHER = """\
import sys

sys.path += [folder for folder in {folders!r} if folder not in sys.path]
from archsplit.cli.nvcc import launcher

launcher()
"""


def wrapped_environment(
    environment: Mapping[str, str],
    toolkit: Toolkit | None,
    targets: tuple[Target, ...],
    *,
    folder: Path,
    calls: Path,
) -> dict[str, str]:
    """Return the environment of a project's own build.

    Args:
        toolkit: of the real nvcc; None for a build without the wrapper.
        targets: the targets of the recipe; () to leave them to the build.
        folder: a folder of links to the toolkit, from `wrapped_toolkit`.
        calls: the file for the wrapper's calls.
    """
    env = dict(environment)
    if targets:
        architectures = cmake_architectures(targets)
        env |= {
            "TORCH_CUDA_ARCH_LIST": torch_arch_list(targets),
            "CUDAARCHS": architectures,
            # scikit-build-core reads it; CUDAARCHS has no effect if a default is set first.
            "CMAKE_ARGS": _joined(
                env.get("CMAKE_ARGS", ""), f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"
            ),
            "ARCHSPLIT_TARGETS": " ".join(map(str, targets)),
            "ARCHSPLIT_GENCODE": gencode_flags(targets),
        }
    if toolkit is None:
        return env
    nvcc = folder / "bin" / "nvcc"
    env |= dict.fromkeys(_COMPILERS, str(nvcc)) | dict.fromkeys(_TOOLKITS, str(folder))
    env["PATH"] = _joined(str(nvcc.parent), env.get("PATH", ""), ":")
    # The wheels of the index have their libraries where nvcc doesn't look.
    env["LIBRARY_PATH"] = _joined(env.get("LIBRARY_PATH", ""), str(folder / "lib64"), ":")
    return {**env, CALLS_VARIABLE: str(calls)}


def _joined(first: str, second: str, separator: str = " ") -> str:
    return separator.join(filter(None, (first, second)))


def wrapped_toolkit(
    toolkit: Toolkit,
    environment: Mapping[str, str],
    *,
    site_folders: Sequence[Path] = (),
    private: Path,
) -> Path:
    """Return the folder of links to a toolkit whose nvcc is the wrapper; make it if missing.

    Args:
        site_folders: site-packages folders, which may have NVIDIA's wheels.
        private: a folder of the build, where the links lie if the cache folder can't be written.

    Raises:
        InputError: a folder of the toolkit can't be read.
        OutputError: the folder can't be made.
    """
    with input_errors(toolkit.root):
        links = dict(_links(toolkit, wheel_folders(toolkit, site_folders)))
    # Libraries that are installed later belong to another folder of links.
    named = (f"{name}={path}" for name, path in sorted(links.items()))
    parts = (__version__, sys.executable, str(toolkit.nvcc), *sys.path, *named)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    made = Path(cache_dir(environment)) / "toolkits" / key
    # Without a home, "/.cache" would be meant.
    if any(environment.get(name) for name in _HOMES):
        with suppress(OutputError):
            return _make_once(toolkit, links, made)
    return _make_once(toolkit, links, private / "toolkit")


def _links(toolkit: Toolkit, wheels: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the names in the folder of links, each with its file or folder; the last one counts."""
    root = toolkit.root
    # Files of the toolkit come last, so that they win over the wheels' files.
    for libraries in (*reversed(wheels), toolkit.library_folder):
        for path in sorted(libraries.glob("*")):
            # NVIDIA's wheels lack the names that `-lcublas` looks for.
            if match := _VERSIONED.fullmatch(path.name):
                yield f"lib64/{match[1]}", path
        yield from ((f"lib64/{path.name}", path) for path in libraries.glob("*"))
        headers = root if libraries == toolkit.library_folder else libraries.parent
        yield from ((f"include/{path.name}", path) for path in (headers / "include").glob("*"))
    for path in root.iterdir():
        if path.name not in {"bin", "include", "lib64"}:
            yield path.name, path
    for path in (root / "bin").iterdir():
        if path.name != "nvcc":
            yield f"bin/{path.name}", path


def _make_once(toolkit: Toolkit, links: Mapping[str, Path], made: Path) -> Path:
    if (made / "bin" / "nvcc").is_file():
        return made
    with output_errors(made.parent):
        made.parent.mkdir(parents=True, exist_ok=True)
        with temporary_dir(made.parent) as private:
            _write_links(toolkit, links, private / made.name, made)
            # Another process may have made it in the meantime.
            if not (made / "bin" / "nvcc").is_file():
                (private / made.name).rename(made)
    return made


def _write_links(toolkit: Toolkit, links: Mapping[str, Path], new: Path, made: Path) -> None:
    """Write the folder as ``new``, with scripts for its later place ``made``."""
    for name in ("bin", "include", "lib64"):
        (new / name).mkdir(parents=True)
    for name, path in links.items():
        (new / name).symlink_to(path)
    folders = [folder for folder in sys.path if folder]
    (new / "archsplit-nvcc").write_text(_LAUNCHER.format(folders=folders))
    nvcc = new / "bin" / "nvcc"
    python, folder, real = map(shlex.quote, (sys.executable, str(made), str(toolkit.nvcc)))
    nvcc.write_text(_SCRIPT.format(python=python, folder=folder, nvcc=real))
    nvcc.chmod(0o755)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperCalls:
    """Calls of the wrapper during a build.

    Attributes:
        compiled: the number of compilations that the wrapper ran.
        cached: the number of compilations whose results came from the cache.
        by_nvcc: the number of command lines that only nvcc could run, by the reason.
    """

    compiled: int
    cached: int
    by_nvcc: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report on the build."""
        total = self.compiled + self.cached
        if total:
            runs = count_text(total, "compilation")
            yield f"the compiler wrapper ran {runs}, {self.cached} from the cache"
        for reason, count in self.by_nvcc.items():
            yield f"runs of nvcc itself: {count}: {reason}"
        if not total and not self.by_nvcc:
            names = ", ".join((*_COMPILERS, *_TOOLKITS))
            yield (
                "the build compiled nothing through the compiler wrapper: it has no CUDA sources to"
                " compile, compiles in a container, or starts an nvcc by a path of its own;"
                f" {names} and PATH lead to the wrapper"
            )


def read_calls(path: Path) -> WrapperCalls:
    """Read the record of the wrapper's calls; a missing file has none."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    words = [line.partition(" ") for line in text.splitlines()]
    kinds = Counter(kind for kind, _, _ in words)
    reasons = Counter(reason for kind, _, reason in words if kind == BY_NVCC)
    return WrapperCalls(
        compiled=kinds[COMPILED], cached=kinds[CACHED], by_nvcc=dict(sorted(reasons.items()))
    )
