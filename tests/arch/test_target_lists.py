"""Targets in the forms of PyTorch, CMake and nvcc."""

from __future__ import annotations

from archsplit.arch.target import cmake_architectures, gencode_flags, torch_arch_list
from target_lists import parse_targets

TARGETS = tuple(parse_targets("sm_90a,sm_80,compute_90,sm_120f"))


def test_each_build_system_gets_its_form() -> None:
    assert torch_arch_list(TARGETS) == "8.0;9.0a;12.0f;9.0+PTX"
    assert cmake_architectures(TARGETS) == "80-real;90a-real;120f-real;90-virtual"
    assert gencode_flags(TARGETS) == (
        "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a"
        " -gencode=arch=compute_120f,code=sm_120f -gencode=arch=compute_90,code=compute_90"
    )


def test_machine_code_and_ptx_of_one_capability_are_one_entry_for_pytorch() -> None:
    assert torch_arch_list(parse_targets("compute_90,sm_90,sm_80")) == "8.0;9.0+PTX"
    assert torch_arch_list(()) == cmake_architectures(()) == gencode_flags(()) == ""
