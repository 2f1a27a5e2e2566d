"""Stable and readable names of kernels, and of functions that PTX calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.devicecode.kernels import (
    device_runtime_calls,
    find_demangler,
    readable_name,
    stable_name,
)
from handmade_samples import Maker, container, image


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "_ZN54_GLOBAL__N__6fc9c46a_16_sparse24_pack_cu_6d241d85_145934sparse24_sparsify",
            "_ZN54_GLOBAL__N__0123abcd_16_sparse24_pack_cu_ffffffff_145934sparse24_sparsify",
        ),
        (
            "_ZN3cub21CUB_200500_500_600_NS6detail6reduceEv",
            "_ZN3cub17CUB_300000_SM_9006detail6reduceEv",
        ),
        (
            "_ZN3cub28_V_300200_SM_750_800_860_8906detail6reduceEv",
            "_ZN3cub15_V_300201_SM_906detail6reduceEv",
        ),
    ],
)
def test_build_specific_parts_of_names_are_removed(one: str, other: str) -> None:
    assert stable_name(one) == stable_name(other) != one


@given(st.text(alphabet="_ZN0123456789GLOBALCUBabc", max_size=60))
def test_any_name_has_a_stable_and_a_readable_form(name: str) -> None:
    assert isinstance(stable_name(name), str)
    assert bool(readable_name(name)) == bool(name)


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("plain_kernel", "plain_kernel"),
        ("_Z5scaleIfEvPT_S0_", "scale IfEvPT_S0_"),
        ("_ZN3cub6detail6reduceEv", "cub::detail::reduce Ev"),
        ("_ZN12_GLOBAL__N_15shiftEPff", "{unnamed}::shift EPff"),
        ("_Z99short", "_Z99short"),
        ("_ZTV", "_ZTV"),
        ("_ZN38_GLOBAL__N__6fc9c46a_cut_off", "_ZN38_GLOBAL__N__6fc9c46a_cut_off"),
        ("_Z5scale", "scale"),
    ],
)
def test_mangled_names_become_readable(name: str, readable: str) -> None:
    assert readable_name(name) == readable


def test_a_demangler_reads_the_arguments_too() -> None:
    pytest.importorskip("pycxxfilt", reason="it has no wheel for Python 3.10")
    assert readable_name("_Z5scaleIfEvPT_S0_", find_demangler()) == "scale<float>(float*, float)"
    assert readable_name("_ZN3cub6reduceEv", find_demangler()) == "cub::reduce()"
    assert readable_name("plain_kernel", find_demangler()) == "plain_kernel"
    assert readable_name("_Z99short", find_demangler()) == "_Z99short"


def test_calls_of_the_device_runtime_are_found_in_relocatable_ptx(maker: Maker) -> None:
    text = b".extern .func cudaLaunchDevice\n(\n);\n.extern .func other\n(\n);\n".ljust(128)
    ptx = image("compute_90", 128)[:-128] + text
    library = maker.linked_library(container(image("sm_90")), container(image("sm_90"), ptx))
    assert device_runtime_calls(library) == {"cudaLaunchDevice"}


def test_wrong_length_leaves_the_name_unchanged() -> None:
    assert stable_name("_ZN99_GLOBAL__N__6fc9c46a_x") == "_ZN99_GLOBAL__N__6fc9c46a_x"
    nested = "_ZN31CUB_100_9CUB_200_aaaaaaaaaaaaaaE"
    assert stable_name(nested) == "_ZN3CUBE"
