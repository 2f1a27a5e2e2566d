"""Files that are compiled: a few lines each, which instantiate what ``sources/*.cuh`` have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Files: TypeAlias = Mapping[str, tuple[str, ...]]
    """For the name of each file the header that it includes, and the lines that follow."""

HEADERS = Path(__file__).resolve().parent.parent / "sources"

_ENTRY = (
    'extern "C" __attribute__((visibility("default")))',
    "void sort_floats(float *keys, int *values, std::int64_t n) { sort_pairs(keys, values, n); }",
)
THRUST: Files = {"sort_all": ("sort", "SORT(float, int)", "SORT(std::int64_t, int)", *_ENTRY)}
"""A compile for one target takes about 10 CPU seconds, half of them in the host pass."""

GEMM: Files = {
    "gemm_all": (
        "gemm",
        *(f"GEMMS({scalar})" for scalar in ("float", "int", "unsigned")),
        *(f"GEMMS_OF_TILE(double, 4, {columns})" for columns in (2, 4)),
    )
}
"""A compile for seven targets takes about 50 CPU seconds, 95 % in cicc and ptxas."""

_OPERATIONS = (
    *("Sine", "Power", "Remainder", "Exponential", "Logarithm", "Tangent", "Gamma", "Error"),
    *("Length", "Angle", "Root", "Bessel", "Fused"),
)
MIX: Files = {
    **{f"sort_{key}": ("sort", f"SORT({key}, int)") for key in ("float", "double")},
    "fold": ("fold", "FOLD(float)"),
    "scan": ("fold", "SCAN(int)"),
    **{f"gemm_{scalar}": ("gemm", f"GEMMS({scalar})") for scalar in ("float", "int", "unsigned")},
    **{f"map_{name.lower()}": ("map", f"MAPS({name})") for name in _OPERATIONS},
    **{f"tiny_{factor}": ("tiny", f"TINY({factor})") for factor in (2, 3, 5, 7)},
}
"""A library of 24 files: some long ones, mostly plain templates, some of nearly nothing."""

QUICK_MIX: Files = {
    name: MIX[name]
    for name in ("sort_float", "fold", "gemm_int", "map_power", "map_error", "map_root", "tiny_2")
}
TINY: Files = {"tiny_2": MIX["tiny_2"]}
HUNGRY: Files = {f"table_{letter}": ("table",) for letter in "abcdef"}
"""Each has cudafe++, cicc and ptxas need 1.9, 2.3 and 3.1 GB, in about 40 seconds."""

_RECIPE = """\
[project]
name = "sorts"
version = "1.0"
summary = "Sort on a GPU."
license = "Apache-2.0"
license-files = ["LICENSE"]
readme = "README.md"
authors = [{{ name = "The archsplit authors" }}]

[source]
files = ["src/*.cu"]
include = ["src"]

[targets]
sass = [{sass}]

[interface]
header = "sorts.h"
symbols = ["sort_floats"]
"""
_BACKEND = """\
[build-system]
requires = ["archsplit[nvcc]"]
build-backend = "archsplit.backend"
"""


def write(files: Files, folder: Path) -> tuple[Path, ...]:
    """Write the files; their paths, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (header, *lines) in files.items():
        path = folder / f"{name}.cu"
        path.write_text("\n".join((f'#include "{header}.cuh"', *lines, "")))
        paths.append(path)
    return tuple(paths)


def write_recipe(folder: Path, targets: tuple[str, ...]) -> Path:
    """Write a recipe whose only source is the Thrust file; its folder."""
    write(THRUST, folder / "src")
    shutil.copy(HEADERS / "sort.cuh", folder / "src")
    sass = ", ".join(f'"sm_{target}"' for target in targets)
    (folder / "recipe.toml").write_text(_RECIPE.format(sass=sass))
    (folder / "pyproject.toml").write_text(_BACKEND)
    (folder / "sorts.h").write_text("void sort_floats(float *keys, int *values, long n);\n")
    (folder / "LICENSE").write_text("Apache-2.0\n")
    (folder / "README.md").write_text("# sorts\n")
    package = folder / "python" / "sorts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Sorts."""\n')
    return folder
