"""Rules for make: nvcc's, ours after a compile, and ours after a hit are equal."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from warm_programs import run_archsplit_nvcc

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

WRAPPER = "archsplit-nvcc"
COMMON = ("-arch=sm_80", "-Imy folder", "t.cu")
SOURCES = {
    "t.cu": '#include "h.h"\n#include "in it.h"\n__global__ void k(int* x) { *x = ONE; }\n',
    "h.h": "#define ONE 1\n",
    "my folder/in it.h": "",
}
LINES = (
    *(("-MM", "-o", "t.d"), ("-M", "-o", "b/t.x.d", "-MT", "a b", "-MP"), ("-M", "-MF", "f.d")),
    *(("-MM", "-o", "none", "-odir", "b"), ("-MM", "-c", "-o", "t.d", "-MT", "z.o", "-odir", "b")),
    *(("-MM",), ("-M", "-c", "-o", "t.o", "-MF", "f.d", "-MP"), ("-MD", "-c")),
    *(("-MMD", "-c", "-o", "b/t.x.o", "-MP"), ("-MD", "-ptx", "-o", "b/none")),
    ("-MMD", "-dc", "-o", "t.o", "-MF", "f.d", "-MT", "y", "-odir", "b"),
)


class Folder:
    """A folder with a source, and a cache beside it."""

    def __init__(self, path: Path, toolkit: Toolkit) -> None:
        self.path = path
        self.nvcc = str(toolkit.nvcc)
        (path / "b").mkdir()
        for name, text in SOURCES.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)

    def rules(self, *argv: str, known: bool | None = None) -> dict[str, bytes]:
        """Everything that is said and written and isn't the output itself; that is gone again."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "ARCHSPLIT_CACHE_DIR": str(self.path.parent / "cache"),
            "ARCHSPLIT_NVCC_OPTIONS": f"--nvcc '{self.nvcc}' --explain",
        }
        if argv[0] == WRAPPER:
            done = run_archsplit_nvcc(argv[1:], cwd=self.path, env=environment)
        else:
            done = subprocess.run(
                argv, cwd=self.path, env=environment, capture_output=True, check=False
            )
        assert done.returncode == 0, done.stderr
        assert known is None or (b"archsplit: cache hit" in done.stderr) == known
        made = {"standard output": done.stdout}
        for path in [path for path in self.path.rglob("*") if path.is_file()]:
            name = os.path.relpath(path, self.path)
            if name not in SOURCES:
                content = path.read_bytes()
                made[name] = content if b" : t.cu" in content else b""
                path.unlink()
        return made


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_rules_are_nvccs(tmp_path: Path, toolkit: Toolkit, line: tuple[str, ...]) -> None:
    (tmp_path / "work").mkdir()
    folder = Folder(tmp_path / "work", toolkit)
    theirs = folder.rules(folder.nvcc, *COMMON, *line)
    assert any(theirs.values())
    assert folder.rules(WRAPPER, *COMMON, *line, known=False) == theirs
    # What goes to standard output isn't kept.
    assert folder.rules(WRAPPER, *COMMON, *line, known=not theirs["standard output"]) == theirs


def test_a_hit_under_other_names_has_their_rules(tmp_path: Path, toolkit: Toolkit) -> None:
    (tmp_path / "work").mkdir()
    folder = Folder(tmp_path / "work", toolkit)
    first = ("-MD", "-c", "-o", "t.o", "-MF", "t.d", "-MT", "t.o")
    folder.rules(WRAPPER, *COMMON, *first, known=False)
    for other in (
        ("-MD", "-c", "-o", "b/x.y.o", "-MF", "b/q", "-MT", "a b"),
        ("-MD", "-c", "-o", "none", "-MF", "f.d"),
    ):
        theirs = folder.rules(folder.nvcc, *COMMON, *other)
        assert folder.rules(WRAPPER, *COMMON, *other, known=True) == theirs
    folder.rules(WRAPPER, *COMMON, "-MMD", "-c", "-o", "t.o", known=False)
    for name in ("none", "b/x.y.o", "x.d.o"):
        renamed = ("-MMD", "-c", "-o", name)
        theirs = folder.rules(folder.nvcc, *COMMON, *renamed)
        assert folder.rules(WRAPPER, *COMMON, *renamed, known=True) == theirs
