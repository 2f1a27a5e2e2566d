"""``archsplit publish`` on a full disk: nothing is uploaded, and the next run does it all."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from publish_samples import SECRET, USER, Scene

from full_disk import needs_mounts, run_on_full_disk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_mounts
LAUNCH = (sys.executable, "-c", "from archsplit.cli.main import entry_point; entry_point()")


@pytest.mark.stress
def test_full_disk_ends_publish_before_anything_is_uploaded(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "none").mkdir()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TWINE_")}
    own = {"TWINE_USERNAME": USER, "TWINE_PASSWORD": SECRET, "HOME": str(tmp_path / "home")}
    words = (str(scene.dist), "--repository-url", scene.server.url, "--no-download", "--quiet")
    argv = (*LAUNCH, "publish", *words)
    for free, code in ((4 << 10, 11), (16 << 10, 11), (64 << 10, 11), (8 << 20, 0)):
        done = run_on_full_disk(
            tmp_path, argv, outputs=tmp_path / "none", free=free, **{**kept, **own}
        )
        assert done.code == code, done.stderr
        assert done.left == ()
        if code:
            assert "no space left" in done.stderr.lower()
            assert "hint: " in done.stderr
        assert scene.names() == (
            set() if code else {path.name for path in scene.dist.glob("*.whl")}
        )
