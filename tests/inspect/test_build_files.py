"""Files that are not device code: their kinds by name, and the line and the JSON of ``inspect``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.inspect.breakdown import build_file_kind, sum_build_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("nvidia/cu13/lib/libcufft_static.a", "static libraries"),
        ("nvidia/cu13/include/cuda.h", "headers"),
        ("nvidia/cu13/include/cuda/std/tuple", "headers"),
        ("torch/include/ATen/core/aten.inc", "headers"),
        ("pandas/tests/test_x.py", "tests"),
        ("nvidia/nsight_compute/host/ncu-ui.bin", "profilers and disassemblers"),
        ("triton/backends/nvidia/bin/cuobjdump", "profilers and disassemblers"),
        ("foo/libfoo.so.debug", "debug information"),
        # Triton and XLA start it.
        ("triton/backends/nvidia/bin/ptxas", None),
        ("ncutensor/libx.so", None),
        ("torch/testing/__init__.py", None),
        ("foo/include", None),
        ("tests", None),
    ],
)
def test_a_path_decides(path: str, kind: str | None) -> None:
    assert build_file_kind(path) == kind


def test_sums_are_by_kind_and_the_largest_is_first() -> None:
    rows = sum_build_files([("a.h", 1), ("b.a", 5), ("c.h", 2), ("d.py", 9)])
    assert [(row.kind, row.count, row.size) for row in rows] == [
        ("static libraries", 1, 5),
        ("headers", 2, 3),
    ]


def test_empty_folder_has_no_line_about_build_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path)]) == 0
    assert "not device code in libraries" not in capsys.readouterr().out


def test_inspect_names_notable_build_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foo.h").write_bytes(bytes(3000))
    (tmp_path / "foo.txt").write_bytes(bytes(5000))
    assert main(["inspect", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not device code in libraries: headers 3.0 kB" in text
    page = tmp_path.parent / f"{tmp_path.name}.html"
    assert main(["inspect", str(tmp_path), "--html", str(page)]) == 0
    assert "<p>not device code in libraries: headers 3.0 kB." in page.read_text()
    capsys.readouterr()
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    other = json.loads(capsys.readouterr().out)["other_files"]
    assert other == [{"kind": "headers", "count": 1, "size": 3000}]
    (tmp_path / "foo.txt").write_bytes(bytes(500_000))
    assert main(["inspect", str(tmp_path), "--html", str(page)]) == 0
    assert "not device code" not in page.read_text()
    assert main(["inspect", str(tmp_path)]) == 0
    assert "not device code" not in capsys.readouterr().out
