"""The comparison of ``nox -s repro`` itself: it says so where bytes are the same, and where not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from reproduce import PLACES, compared, reproduce, set_up

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc


def test_a_deliberate_difference_is_named(
    recipe: Path, tmp_path: Path, whole_toolkit: Toolkit, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a careless project does: the time, or here the folder, gets into a file of the wheel.
    def careless(changed: Path) -> None:
        with (changed / "python" / "tinyvec" / "__init__.py").open("a") as file:
            file.write(f"BUILT_IN = {str(tmp_path)!r}\n")

    size = (recipe / "python" / "tinyvec" / "__init__.py").stat().st_size
    options = ("--nvcc", str(whole_toolkit.nvcc), "--core-only")
    places = (PLACES[0], PLACES[1])
    # Not in pytest's folder: only its own user may enter that, and one place has another user.
    with tempfile.TemporaryDirectory() as work:
        assert not reproduce(
            recipe, None, Path(work), options=options, places=places, between=careless
        )
    out = capsys.readouterr().out
    named = next(line for line in out.splitlines() if "tinyvec/__init__.py" in line)
    assert named.startswith("build: there: tinyvec-1.2.3-")
    assert f"from byte {size} on: the end against 42 55 49 4c 54 5f 49 4e" in named
    assert named.endswith(
        f"; {size} against {size + len(f'BUILT_IN = {str(tmp_path)!r}') + 1} bytes long"
    )
    assert "build: NOT the same" in out
    # The core knows its build id, which is made from the sources.
    assert "tinyvec/_archsplit/core.json: from byte " in out
    assert "split: the same bytes, 2 times" in out


def test_folders_are_read_in_another_order(tmp_path: Path) -> None:
    bench = set_up(tmp_path)
    (many := tmp_path / "many").mkdir()
    for number in range(50):
        (many / f"{number}").touch()
    script = "import os, sys; print(*os.listdir(sys.argv[1]))"
    found = []
    for preload in ("", str(bench.shuffler)):
        environment = {**os.environ, "LD_PRELOAD": preload, "SHUFFLED_READDIR": "5"}
        words = [sys.executable, "-c", script, str(many)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    assert sorted(found[0]) == sorted(found[1])
    assert found[0] != found[1]


def test_different_manifest_is_reported(split: Path, packs: Path) -> None:
    assert compared({"one": split, "two": packs}) == {}
    with (packs / "archsplit-manifest.json").open("a") as file:
        file.write("\n")
    found = compared({"one": split, "two": packs})
    assert found == {"two: archsplit-manifest.json": ("has other content",)}
