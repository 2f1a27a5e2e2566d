"""Stub containers of nvcc's device link: they keep no selection from being made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.apply import check_code_stays, check_coverage_stays, coverage_changes
from archsplit.devicecode.file_plan import FileEdit, FilePlan, is_stub, plan_rewrite
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import TargetError
from archsplit.formats.reader import open_file
from handmade_samples import THREE, Maker, container, for_devices, held, image, slimmed
from target_lists import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

SOURCE = """
__global__ void triple(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 3; }
extern "C" int run(float *x, int blocks) { triple<<<blocks, 256>>>(x); return 0; }
"""
VARIABLE = """
__device__ float table[4] = {1, 2, 3, 4};
extern "C" int run(void *x) { return cudaMemcpyFromSymbol(x, table, sizeof table); }
"""
TARGETS = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
SASS = "-gencode=arch=compute_80,code=sm_80"
PTX_ALONE = Selection(keep=frozenset(parse_targets("compute_80")), ptx=PtxPolicy.NONE)


def compiled(folder: Path, small_toolkit: Toolkit, source: str, *flags: str) -> Path:
    (folder / "sample.cu").write_text(source)
    maker = Maker(folder=folder)
    nvcc = (str(small_toolkit.nvcc), "-Xcompiler=-fPIC", *flags)
    maker.run(*nvcc, "-c", "sample.cu", "-o", "sample.o")
    maker.run(*nvcc, "-dlink", "sample.o", "-o", "linked.o")
    maker.run("gcc", "-shared", "linked.o", "sample.o", "-o", "libsample.so")
    return folder / "libsample.so"


def plan(library: Path) -> FilePlan:
    return plan_rewrite(open_file(library), FileEdit(selection=PTX_ALONE))


@pytest.mark.parametrize(
    ("source", "packing"), [(SOURCE, ()), (VARIABLE, ("-Xfatbin=-compress-all",))]
)
def test_library_may_keep_only_ptx(
    source: str, packing: tuple[str, ...], small_toolkit: Toolkit, tmp_path: Path
) -> None:
    library = compiled(tmp_path, small_toolkit, source, TARGETS, *packing)
    assert held(library) == [["sm_80"], ["sm_80", "compute_80"]]
    found = plan(library)
    assert list(map(is_stub, found.containers)) == [True, False]
    check_coverage_stays(PTX_ALONE, found.containers, subject="it")
    assert all(effect.stops == 0 for effect in coverage_changes([found.containers]))
    new, _ = slimmed(library, PTX_ALONE)
    assert held(new) == [[], ["compute_80"]]


def test_stub_containers_do_not_refuse_a_gpu(small_toolkit: Toolkit, tmp_path: Path) -> None:
    # As in cuFFT, whose real images are not registered.
    stub, kernel = plan(compiled(tmp_path, small_toolkit, SOURCE, SASS)).containers
    check_code_stays(for_devices("9.0"), [stub], subject="it")
    with pytest.raises(TargetError, match=r"nothing in it runs on 9\.0"):
        check_code_stays(for_devices("9.0"), [stub, kernel], subject="it")


def test_partial_keep_list_is_followed(small_toolkit: Toolkit, tmp_path: Path) -> None:
    codes = (SASS, "-gencode=arch=compute_90,code=[sm_90,compute_90]")
    library = compiled(tmp_path, small_toolkit, SOURCE, *codes)
    assert held(library) == [["sm_80", "sm_90"], ["sm_80", "sm_90", "compute_90"]]
    keep = frozenset(parse_targets("sm_80,compute_90"))
    new, _ = slimmed(library, Selection(keep=keep, ptx=PtxPolicy.NONE))
    assert held(new) == [["sm_80"], ["sm_80", "compute_90"]]


@pytest.mark.parametrize("source", [SOURCE, VARIABLE])
def test_a_container_with_code_or_data_is_missed(
    source: str, small_toolkit: Toolkit, tmp_path: Path
) -> None:
    library = compiled(tmp_path, small_toolkit, source, SASS)
    found = plan(library)
    assert list(map(is_stub, found.containers)) == [True, False]
    with pytest.raises(TargetError, match="in 1 container that serves them now"):
        check_coverage_stays(PTX_ALONE, found.containers, subject="it")


def test_unreadable_code_is_not_a_stub(maker: Maker) -> None:
    ones = (container(image("sm_80", 64)), container(image("sm_80", 1 << 20)), *THREE)
    found = plan(maker.library(ones))
    assert not any(map(is_stub, found.containers))
