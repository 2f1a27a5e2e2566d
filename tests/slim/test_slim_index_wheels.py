"""Wheels as they are on the index, slimmed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.select import PtxPolicy
from archsplit.errors import WheelError
from archsplit.release.context import Effects
from archsplit.slim.request import SlimRequest
from archsplit.slim.wheel import slim_wheel
from archsplit.system.terminal import SilentProgress
from archsplit.wheels.reader import open_wheel
from handmade_samples import for_devices, held
from index_wheels import index_wheel

if TYPE_CHECKING:
    from archsplit.slim.report import SlimReport

pytestmark = pytest.mark.download
AARCH64 = "--platform=manylinux_2_24_aarch64"


def slim(
    source: Path, out: Path, *, device: str = "9.0", ptx: PtxPolicy = PtxPolicy.NONE
) -> tuple[Path, SlimReport]:
    selection = for_devices(device, ptx=ptx)
    request = SlimRequest(source=source, out=out, selection=selection, tries_loading=True)
    effects = Effects(progress=SilentProgress(), environment=os.environ, jobs=1)
    report = slim_wheel(request, effects)
    assert report.output is not None
    return Path(report.output), report


def test_xgboost_shrinks_to_one_gpu_reproducibly(downloads: Path, tmp_path: Path) -> None:
    source = index_wheel(downloads, "xgboost==3.2.0")
    first, report = slim(source, tmp_path / "a")
    assert report.size_before > 131e6
    assert first.stat().st_size <= 36.5e6
    (library,) = report.files
    assert library.size_before > 236e6
    assert library.size_after <= 107e6
    with open_wheel(first) as slimmed:
        (path := tmp_path / "libxgboost.so").write_bytes(slimmed.read(library.path))
    kept = [target for container in held(path) for target in container]
    assert (set(kept), len(kept)) == ({"sm_90"}, 65)
    assert "xgboost/lib/libxgboost.so: loads" in report.checks
    _, again = slim(source, tmp_path / "b")
    assert again.sha256 == report.sha256


def test_wheel_for_another_machine_shrinks_without_being_loaded(
    downloads: Path, tmp_path: Path
) -> None:
    source = index_wheel(downloads, "bitsandbytes==0.50.2", AARCH64)
    new, report = slim(source, tmp_path)
    assert new.stat().st_size < source.stat().st_size / 2
    assert all(file.note is None for file in report.files)
    assert sum("this machine is a" in check for check in report.checks) == len(report.files)
    with open_wheel(new) as slimmed:
        slimmed.check_contents()
        for file in report.files:
            path = tmp_path / Path(file.path).name
            path.write_bytes(slimmed.read(file.path))
            assert {name for names in held(path) for name in names} == {"sm_90"}
            subprocess.run(["readelf", "-aW", path], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("requirement", "device"),
    [
        ("bitsandbytes==0.50.2", "9.0"),
        ("cupy-cuda12x==14.2.0", "9.0"),
        ("faiss-gpu-cu12==1.14.1.post1", "8.6"),  # built for 7.0 and 8.0 only
        ("xformers==0.0.35", "9.0"),
        ("jax-cuda13-plugin==0.10.2", "9.0"),
    ],
)
def test_other_wheels_of_the_index_shrink(
    requirement: str, device: str, downloads: Path, tmp_path: Path
) -> None:
    source = index_wheel(downloads, requirement)
    new, report = slim(source, tmp_path, device=device, ptx=PtxPolicy.NEWEST)
    assert new.stat().st_size == report.size_after
    assert (report.size_after or 0) < report.size_before
    assert any(file.removed for file in report.files)


def test_renamed_wheel_is_refused(downloads: Path, tmp_path: Path) -> None:
    source = index_wheel(downloads, "xformers==0.0.35")
    other = tmp_path / source.name.replace("manylinux_2_28_x86_64", "musllinux_1_2_x86_64")
    other.symlink_to(source)
    with pytest.raises(WheelError, match="musllinux"):
        slim(other, tmp_path / "out")
