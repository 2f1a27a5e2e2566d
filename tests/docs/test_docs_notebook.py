"""The notebook of the manual: its cells are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from prepared import DOCS, FAT, desk_with_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

_RUN = "from nbclient.cli import main; main()"
NOTEBOOK = DOCS / "notebooks" / "sizes.ipynb"


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_has_the_output_of_the_real_wheel() -> None:
    table, numbers, chart = (cell["outputs"] for cell in code_cells(NOTEBOOK))
    assert "<td>sm_90<td>SASS<td>65<td>12.1 MB" in "".join(table[0]["data"]["text/html"])
    assert "  9.0    12.1" in "".join(numbers[0]["text"])
    drawn = "".join(chart[0]["data"]["image/svg+xml"])
    assert drawn == (DOCS / "images" / "notebook-chart.svg").read_text()


@pytest.mark.nvcc
def test_the_notebook_runs(tmp_path: Path, small_toolkit: Toolkit, downloads: Path) -> None:
    desk = desk_with_wheel(tmp_path, small_toolkit, downloads)
    assert (desk.folder / FAT).exists()
    path = desk.folder / "sizes.ipynb"
    path.write_text(NOTEBOOK.read_text())
    # A process of its own: the kernel's libraries warn, and a warning is an error here.
    command = [sys.executable, "-c", _RUN, "--inplace", str(path)]
    own = {"HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        command,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    table, numbers, chart = (cell["outputs"] for cell in code_cells(path))
    assert "<table>" in "".join(table[0]["data"]["text/html"])
    assert "  9.0 " in "".join(numbers[0]["text"])
    assert "".join(chart[0]["data"]["image/svg+xml"]).count("<rect") > 3
