# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""A second compile with archsplit's cache, beside sccache's and ccache's.

    python bench/bench_cache.py --nvcc NVCC [--sccache PROGRAM] [--ccache PROGRAM] [--targets 80 90]

For each source: nothing known, the same again, after touch, in another folder, with a comment on
top, with one target more; and, in a two-target build, after an edit that only the host's pass or
only one target sees: there `stale` says that an object of before came out. Seconds are of the wall;
of archsplit and ccache also of the CPU (sccache's server does its work elsewhere). Each tool has a
store of its own, new at the beginning.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess  # noqa: TID251 - a bench starts its peers as their users do
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SOURCES = {
    "templates": "#include <vector>\ntemplate <int N> __global__ void fold(float *p) {\n"
    "#pragma unroll\n  for (int i = 0; i < N; ++i) p[i] = p[i] * p[i + 1] + i;\n}\n"
    "void run(float *p) { fold<64><<<1, 1>>>(p); fold<128><<<1, 1>>>(p); }\n",
    "CUB": "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\n"
    "void run(thrust::device_vector<int> &v) { thrust::sort(v.begin(), v.end()); }\n",
}
EDITS = {
    "host edit": "\n#ifndef __CUDA_ARCH__\nint seen() { return %d; }\n#endif\n",
    "one target's edit": "\n__global__ void one(int *p) {\n#if __CUDA_ARCH__ >= 900\n  *p = %d;\n"
    "#endif\n}\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A way to compile, its store's variables, and what starts and stops its server."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]

    def compile(self, folder: Path, targets: list[str]) -> tuple[float, float]:
        """Compile ``k.cu`` there; wall and CPU seconds."""
        flags = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in targets]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(  # noqa: S603 - the commands are this script's own
            [*self.command, "-c", "k.cu", "-o", "k.o", *flags],
            cwd=folder,
            env={**os.environ, **self.environment},
            check=True,
        )
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return wall, cpu


def main() -> None:
    """Run all cases with all tools that there are, and print what they took."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as name:
        for tool in _tools(arguments, Path(name)):
            for source, text in SOURCES.items():
                _compare(tool, source, text, Path(name) / tool.name / source, arguments.targets)
            _edits(tool, Path(name) / tool.name / "edits")
            if tool.name == "sccache":
                stop = [tool.command[0], "--stop-server"]
                subprocess.run(stop, env={**os.environ, **tool.environment}, check=False)  # noqa: S603


def _compare(tool: Tool, source: str, text: str, folder: Path, targets: list[str]) -> None:
    folder.mkdir(parents=True)
    _write(folder, text)
    _say(tool, source, "cold", tool.compile(folder, targets))
    _say(tool, source, "warm", tool.compile(folder, targets))
    (folder / "k.cu").touch()
    _say(tool, source, "touched", tool.compile(folder, targets))
    other = folder / "elsewhere"
    other.mkdir()
    _write(other, text)
    _say(tool, source, "other folder", tool.compile(other, targets))
    _write(folder, f"// a comment\n{text}")
    _say(tool, source, "comment on top", tool.compile(folder, targets))
    _write(folder, text)
    _say(tool, source, "one target more", tool.compile(folder, [*targets, "75"]))


def _edits(tool: Tool, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in EDITS.items():
        objects, took = [], (0.0, 0.0)
        for value in (1, 2):
            _write(folder, SOURCES["templates"] + text % value)
            took = tool.compile(folder, ["80", "90"])
            objects.append((folder / "k.o").read_bytes())
        verdict = "stale" if objects[0] == objects[1] else "rebuilt"
        _say(tool, "templates", f"{name}: {verdict}", took)


def _write(folder: Path, text: str) -> None:
    (folder / "k.cu").write_text(text)
    time.sleep(0.1)  # none of the caches trusts a file that is younger than its compilation


def _say(tool: Tool, source: str, case: str, took: tuple[float, float]) -> None:
    print(f"{tool.name:<11}{source:<11}{case:<28}{took[0]:8.2f} s{took[1]:8.2f} s CPU", flush=True)


def _tools(arguments: argparse.Namespace, folder: Path) -> list[Tool]:
    nvcc = str(arguments.nvcc.absolute())
    ours = {
        "ARCHSPLIT_NVCC_OPTIONS": f"--nvcc {nvcc}",
        "ARCHSPLIT_CACHE": "on",
        "ARCHSPLIT_CACHE_DIR": str(folder / "store"),
    }
    found = [Tool(name="archsplit", command=("archsplit-nvcc",), environment=ours)]
    peers = {"sccache": "SCCACHE_DIR", "ccache": "CCACHE_DIR"}
    for name, variable in peers.items():
        program = getattr(arguments, name) or shutil.which(name)
        if program is None:
            print(f"{name} is not there")
            continue
        extra = {variable: str(folder / f"{name}-store"), "SCCACHE_SERVER_PORT": "14226"}
        found.append(Tool(name=name, command=(program, nvcc), environment=extra))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nvcc", type=Path, required=True)
    parser.add_argument("--sccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--ccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--targets", nargs="+", default=["80", "90"], metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    main()
