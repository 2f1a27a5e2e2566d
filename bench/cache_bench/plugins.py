"""Measure a further plugin of a recipe whose other targets were compiled before."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cache_bench.reuse import SOURCES
from cache_bench.table import Row
from cache_bench.tools import OURS, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_bench.tools import Took, Tool

_PROJECT = Path(__file__).parents[2] / "tests" / "tinyvec"
_TARGETS = re.compile(r"^sass = .*\nptx = .*$", re.MULTILINE)


def plugins(tool: Tool, folder: Path, targets: list[str]) -> Iterator[Row]:
    """Build all plugins of a release, and then one for a user who has none."""
    shutil.copytree(_PROJECT, folder)
    recipe = folder / "recipe.toml"
    names = [f"sm_{each}" for each in targets]
    listed = ", ".join(f'"{name}"' for name in names)
    recipe.write_text(_TARGETS.sub(f"sass = [{listed}]", recipe.read_text()))
    (folder / "src" / "sort.cu").write_text(SOURCES["CUB"])
    time.sleep(0.1)
    for case, wanted in (("all plugins", ",".join(names)), ("one more plugin", names[-1])):
        yield Row(case=f"a recipe: {case}", tool=OURS, took=_build(tool, folder, wanted))


def _build(tool: Tool, folder: Path, targets: str) -> Took:
    out = folder.parent / f"out-{targets}"
    words = (
        "build",
        str(folder),
        "--targets",
        targets,
        "--out",
        str(out),
        "--nvcc",
        str(tool.nvcc),
    )
    environment = {**os.environ, **tool.environment}
    return measured(("archsplit", *words, "--no-core", "--explain"), folder, environment)
