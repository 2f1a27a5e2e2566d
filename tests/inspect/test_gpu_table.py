"""The table of GPUs: names, shares and faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch import gpu_list
from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.gpu_list import product_capability
from archsplit.arch.gpus import GPUS
from archsplit.arch.target import Capability
from archsplit.errors import InputError
from archsplit.inspect.gpu_table import read_gpu_table

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "8.9"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "8.6"),
        ("GeForce GTX 1060 6GB", "6.1"),
        ("GeForce GTX 1060 with Max-Q Design", "6.1"),
        ("NVIDIA(R) GeForce(TM) RTX 4090 D", "8.9"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100 80GB PCIe", "8.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA H100 NVL", "9.0"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("tesla_t4", "7.5"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("Quadro RTX 6000", "7.5"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"),
        ("NVIDIA GeForce GTX 960M", "5.0"),
        ("NVIDIA GeForce GTX 960", "5.2"),
        ("NVIDIA GB10", "12.1"),
        ("NVIDIA GeForce GT 730", None),
        ("NVIDIA Graphics Device", None),
        ("AMD Radeon RX 6600", None),
        ("RTX 6000", None),
        ("Ti", None),
        ("", None),
    ],
)
def test_names_as_surveys_and_nvidia_smi_have_them(name: str, expected: str | None) -> None:
    assert product_capability(name) == (expected and Capability.parse(expected))


def test_every_model_is_listed_once_and_known_by_its_name() -> None:
    models = {model: row.sm for row in GPUS for model in row.models}
    assert len({gpu_list._normalize(model) for model in models}) == sum(len(r.models) for r in GPUS)
    for model, sm in models.items():
        assert product_capability(f"NVIDIA {model}") == Capability.from_sm_number(sm)


def test_products_in_messages_are_known_names() -> None:
    for row in GPUS:
        for product in filter(None, row.display.partition(" (")[0].split(", ")):
            family = row.display.partition(" ")[0]
            found = product_capability(product) or product_capability(f"{family} {product}")
            assert found == Capability.from_sm_number(row.sm) or product == "Thor before CUDA 13"


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_none(text: str) -> None:
    found = product_capability(text)
    assert found is None or found in GPU_BY_CAPABILITY


def test_example_is_read_with_its_foreign_parts() -> None:
    found = read_gpu_table((RECIPES / "gpus.example.csv").read_text(), where="x")
    assert sum(found.shares.values()) == pytest.approx(1)
    assert list(map(str, found.shares)) == ["5.0", "5.2", "6.1", "7.5", "8.6", "8.9", "12.0"]
    assert [row.gpu for row in found.unknown_gpus] == [
        "NVIDIA GeForce GT 730",
        "NVIDIA Graphics Device",
    ]
    assert found.unknown_share == pytest.approx(0.0084, abs=1e-4)
    assert found.gpus[Capability(8, 6)][0] == "NVIDIA GeForce RTX 3060"


def test_shares_of_any_kind_are_summed_by_capability() -> None:
    table = (
        '\ufeff# ours\n\nCapability, Share ,GPU\n9.0,300,\n,100,"T4"\n8.6,50%,A10\n9.0,50,H100\n'
    )
    found = read_gpu_table(table, where="x")
    shares = {str(capability): share for capability, share in found.shares.items()}
    assert shares == {"7.5": 0.2, "8.6": 0.1, "9.0": 0.7}
    assert found.gpus[Capability(9, 0)] == ("H100",)
    assert found.unknown_gpus == ()


def test_share_of_zero_is_left_out() -> None:
    assert list(read_gpu_table("capability,share\n9.0,1\n8.0,0\n", where="x").shares) == [
        Capability(9, 0)
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "x:1: the columns are none"),
        ("# only words\n", "x:1: the columns are none"),
        ("# c\ngpu,part\nT4,1\n", "x:2: the columns are gpu, part"),
        ("name,share\nT4,1\n", "x:1: the columns are name, share"),
        ("gpu,share\n,1\n", "x:2: the row names no GPU"),
        ("capability,share\nninety,1\n", "x:2: 'ninety' is not a compute capability"),
        ("gpu,share\nT4,-1\n", "x:2: the share '-1' is not a number of 0 or more"),
        ("gpu,share\nT4,nan\n", "x:2: the share 'nan' is not a number"),
        ("gpu,share\nT4,1_0\n", "x:2: the share '1_0' is not a number"),
        ("gpu,share\nT4\n#\n\nA10,?\n", "x:2: the share '' is not a number of 0 or more\nx:5: the"),
        ("gpu,share\nVoodoo,1\n", "x has no users of a known GPU, only of Voodoo\n"),
        (
            "gpu,share\n" + "".join(f"Voodoo {number},1\n" for number in range(7)),
            "x has no users of a known GPU, only of Voodoo 0, Voodoo 1, Voodoo 2, Voodoo 3,"
            " Voodoo 4 and 2 more",
        ),
        ("gpu,share\nT4,0\n", "x has no users of a known GPU"),
    ],
)
def test_fault_of_a_gpu_table_is_named_with_its_line(table: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_gpu_table(table, where="x")
    assert str(caught.value).startswith(message)
    assert "reference/inspect.html#choose-targets" in str(caught.value)
