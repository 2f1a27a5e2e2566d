"""``archsplit-nvcc`` on a full disk: an error, and no output that an earlier one could be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from full_disk import needs_mounts, run_on_full_disk

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = [pytest.mark.nvcc, needs_mounts]
LAUNCH = (sys.executable, "-c", "from archsplit.cli.nvcc import launcher; launcher()")


@pytest.mark.parametrize("cache", ["on", "off"])
def test_full_disk_leaves_no_new_object_beside_old_rules(
    toolkit: Toolkit, tmp_path: Path, cache: str
) -> None:
    source, old = tmp_path / "n.cpp", tmp_path / "old"
    # Preprocessed: 70 kB.
    source.write_text("int n() { return 2; }\n" + "extern int x;\n" * 5000)
    old.mkdir()
    for name in ("n.o", "n.d"):
        (old / name).write_text("old")
    variables = {"ARCHSPLIT_CACHE": cache, "ARCHSPLIT_CACHE_DIR": str(tmp_path / "store")}
    words = ("-c", str(source), "-o", "{out}/n.o", "-MD", "-MF", "{out}/n.d")
    argv = (*LAUNCH, str(toolkit.nvcc), *words)

    def run(free: int) -> tuple[int, set[str], set[str]]:
        done = run_on_full_disk(tmp_path, argv, outputs=old, free=free, **variables)
        assert "Traceback" not in done.stderr
        assert done.left == ()
        if done.code:
            # gcc's own reason is a random one.
            said = done.stderr.lower()
            assert "no space left" in said or "when writing output to" in said
        kept = {name for name, digest in done.before.items() if done.after.get(name) == digest}
        return done.code, kept, {*done.after} - kept

    # Python takes another folder than a TMPDIR in which nothing can be written.
    assert run(0) == (11, {"n.o", "n.d"}, set())
    # The tools' own messages and exit codes. The compiler runs beside the preprocessor: if only
    # one of them fails, the new object goes, and the old one stays.
    for free in (8 << 10, 40 << 10):
        assert run(free) == (1, {"n.o", "n.d"}, set())
    assert run(16 << 20) == (0, set(), {"n.o", "n.d"})
    if cache == "on":
        # A hit has no space, either.
        assert run(1) == (11, {"n.o", "n.d"}, set())
