"""The matrix of a release: every Python, platform and GPU has its wheels, or is named."""

from __future__ import annotations

import pytest

from archsplit.errors import VerifyError
from archsplit.release.matrix import Cell, hole_findings, matrix_text, release_matrix
from archsplit.release.merge import require_cells
from archsplit.release.report import (
    BuildDetails,
    Plugin,
    Release,
    ReleaseWheel,
    SplitDetails,
)

X86, ARM = "manylinux_2_28_x86_64", "manylinux_2_28_aarch64"
CP310, CP311 = "cp310-cp310", "cp311-cp311"
NEEDS = {"8.0": ("cc80",), "9.0": ("cc90", "common_cc90")}


def wheel(name: str, tags: str) -> ReleaseWheel:
    """The core, or the pack of this name, for these tags."""
    project = f"foo-cu12-{name.replace('_', '')}" if name else "foo-cu12"
    plugin = Plugin(kind="pack", name=name) if name else None
    return ReleaseWheel(
        file=f"{project.replace('-', '_')}-1.0-{tags}.whl",
        size=1,
        sha256="0" * 64,
        role="plugin" if name else "core",
        distribution=project,
        plugin=plugin,
    )


def release(*wheels: ReleaseWheel) -> Release:
    details = SplitDetails(sources=(), needs=NEEDS)
    return Release(
        project="foo-cu12",
        version="1.0",
        build_id="0" * 64,
        interface_hash="1" * 64,
        wheels=wheels,
        split=details,
    )


WHOLE = (
    wheel("", f"{CP310}-{X86}"),
    wheel("", f"{CP311}-{X86}"),
    wheel("", f"{CP310}-{ARM}"),
    wheel("", f"{CP311}-{ARM}"),
    wheel("cc80", f"py3-none-{X86}"),
    wheel("cc80", f"py3-none-{ARM}"),
    wheel("cc90", f"{CP310}-{X86}"),
    wheel("cc90", f"py3-none-{X86}"),
    wheel("cc90", f"py3-none-{ARM}"),
    wheel("common_cc90", "py3-none-any"),
)


def test_complete_release_has_no_holes() -> None:
    whole = release(*WHOLE)
    cells = release_matrix(whole)
    assert len(cells) == 8
    assert not list(hole_findings(whole))
    by_name = {f"{cell.place}:{cell.gpu}": cell.files for cell in cells}
    assert f"foo_cu12_cc90-1.0-{CP310}-{X86}.whl" in by_name[f"{CP310}-{X86}:9.0"]
    assert f"foo_cu12_cc90-1.0-py3-none-{X86}.whl" in by_name[f"{CP311}-{X86}:9.0"]
    assert matrix_text(whole, cells).splitlines() == [
        "foo-cu12 1.0",
        f"{'':34}  8.0  9.0",
        f"{CP310}-{X86}    x    x",
        f"{CP311}-{X86}    x    x",
        f"{CP310}-{ARM}   x    x",
        f"{CP311}-{ARM}   x    x",
    ]


def test_each_hole_is_named_and_can_be_allowed() -> None:
    part = release(*(one for one in WHOLE if one not in (WHOLE[7], WHOLE[3], WHOLE[5])))
    holes = [cell for cell in release_matrix(part) if cell.missing]
    assert [(f"{cell.place}:{cell.gpu}", cell.missing) for cell in holes] == [
        (f"{CP311}-{X86}:9.0", ("foo-cu12-cc90",)),
        (f"{CP310}-{ARM}:8.0", ("foo-cu12-cc80",)),
        (f"{CP311}-aarch64:", ("foo-cu12",)),
    ]
    with pytest.raises(VerifyError, match="the release is incomplete") as caught:
        require_cells(part)
    assert [one.code for one in caught.value.findings] == [
        "incomplete-core",
        "incomplete-core",
        "missing-cell",
    ]
    assert "--without 'cp311-cp311-aarch64:*'" in caught.value.findings[-1].hint
    allowed = ["*:8.0", "cp311-*"]
    require_cells(part, allowed)


def test_a_build_needs_a_plugin_for_each_target() -> None:
    core = wheel("", f"py3-none-{X86}")
    plugin = wheel("sm_90", f"py3-none-{X86}")
    details = BuildDetails(epoch=0, targets=("sm_80", "sm_90"))
    built = Release(
        project="foo-cu12",
        version="1.0",
        build_id="0" * 64,
        interface_hash="1" * 64,
        wheels=(core, plugin),
        build=details,
    )
    (hole,) = hole_findings(built)
    assert hole.found == "no wheel of foo-cu12-sm80 for GPUs of sm_80"
    nameless = Release(
        project="foo", version="1.0", build_id="", interface_hash="", wheels=(core,), build=None
    )
    assert release_matrix(nameless) == ()
    assert matrix_text(nameless, ()).splitlines() == ["foo 1.0"]


def test_columns_are_in_the_order_of_the_gpus() -> None:
    names = ("10.0", "8.0", "9.0")
    cells = [Cell(place="py3-none-linux_x86_64", gpu=gpu) for gpu in names]
    assert matrix_text(release(), cells).splitlines()[1].split() == ["8.0", "9.0", "10.0"]
