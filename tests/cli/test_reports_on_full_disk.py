"""Pages, reports, recipes and exports on a full disk: an error, and the earlier file stays."""

from __future__ import annotations

import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from full_disk import needs_mounts, run_on_full_disk
from handmade_samples import THREE, Maker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_mounts
LAUNCH = (sys.executable, "-c", "from archsplit.cli.main import entry_point; entry_point()")
WORDS = {
    "inspect": ("inspect", "{library}", "--html", "{out}/old"),
    "inspect-junit": ("inspect", "{library}", "--junit", "{out}/old"),
    "inspect-summary": ("inspect", "{library}", "--summary", "{out}/new"),
    "diff": ("diff", "{library}", "{library}", "--html", "{out}/old"),
    "init": ("init", "{out}", "--force"),
    "cache-export": ("cache", "export", "{out}/old"),
}


@pytest.mark.parametrize("name", WORDS)
def test_earlier_file_stays_on_a_full_disk(name: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    library = Maker(folder=tmp_path / "made").library(THREE)
    old = tmp_path / "outputs"
    (old / "src").mkdir(parents=True)
    (old / "src" / "k.cu").write_text("__global__ void k() {}\n")
    if name == "cache-export":
        with tarfile.open(old / "old", "w") as tar:
            tar.addfile(tarfile.TarInfo("an earlier entry"))
    else:
        (old / "old").write_text("<!DOCTYPE html><testsuites/>")
    (old / "recipe.toml").write_text("# an earlier recipe\n")
    words = (word.replace("{library}", str(library)) for word in WORDS[name])
    variables = {"ARCHSPLIT_CACHE_DIR": str(tmp_path / "store")}
    argv = (*LAUNCH, *words)
    full = run_on_full_disk(tmp_path, argv, outputs=old, free=0, **variables)
    assert full.code == 11, full.stderr
    assert "no space left" in full.stderr.lower()
    assert (full.after, full.left) == (full.before, ())
    done = run_on_full_disk(tmp_path, argv, outputs=old, free=16 << 20, **variables)
    assert done.code == 0, done.stderr
    assert done.after != done.before
