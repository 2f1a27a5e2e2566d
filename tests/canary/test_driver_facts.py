"""What archsplit takes for granted about NVIDIA's driver, and NVIDIA doesn't promise.

docs/contributing/index.md lists the facts by these numbers. Fact 11 is a program of its own:
``tests/gpu/test_unregistered_gpu.py``.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from canary_probes import containers, emptied, section, wrappers

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability, CodeKind, Target

if TYPE_CHECKING:
    from pathlib import Path

    from canary_probes import Workbench

pytestmark = [pytest.mark.canary, pytest.mark.gpu]

NO_KERNEL_IMAGE = -209  # cudaErrorNoKernelImageForDevice
NO_SYMBOL = -500  # cudaErrorSymbolNotFound: a device link without an image for the GPU
SUFFIXES = {"": 0, "a": 1, "f": 2}


@pytest.fixture(scope="module")
def capability() -> Capability:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"a GPU is needed: {done.stdout}{done.stderr}"
    major, minor = done.stdout.split(".")
    return Capability(major=int(major), minor=int(minor))


def gencode(target: Target, virtual: int) -> str:
    """Return the option for one image, whose code says from which virtual target it comes."""
    name = f"{target.capability.major}{target.capability.minor}{target.suffix}"
    code = f"sm_{name}" if target.kind is CodeKind.SASS else f"compute_{name}"
    source = name if target.suffix or target.kind is CodeKind.PTX else virtual
    return f"-gencode=arch=compute_{source},code={code}"


def build(bench: Workbench, name: str, *options: str) -> Path:
    bench.compile("-shared", *options, "-o", name)
    return bench.folder / name


def targets_for(capability: Capability) -> list[Target]:
    """Return code for the GPU, for earlier ones of its major and others, and PTX."""
    earlier = [Capability(major=8, minor=minor) for minor in (0, 6, 9)]
    plain = [Target(kind=CodeKind.SASS, capability=one, suffix="") for one in earlier]
    own = Target(kind=CodeKind.SASS, capability=capability, suffix="")
    specific = Target(kind=CodeKind.SASS, capability=capability, suffix="a")
    ptx = Target(kind=CodeKind.PTX, capability=earlier[0], suffix="")
    return [*plain, own, *([specific] if capability.major >= 9 else []), ptx]


def test_fact_8_driver_takes_the_image_of_the_rules(
    bench: Workbench, capability: Capability
) -> None:
    every = targets_for(capability)
    lists = [
        every,
        *([one for one in every if one is not left] for left in every),
        *([one] for one in every),
        *([one, every[-1]] for one in every[:-1]),
    ]
    wrong = []
    for number, targets in enumerate(lists):
        # nvcc knows no `compute_` that is older than its toolkit; 75 is in all since CUDA 10.
        library = build(bench, f"libchoice{number}.so", *(gencode(one, 75) for one in targets))
        best = best_target(capability, targets)
        if best is None:
            expected = NO_KERNEL_IMAGE
        elif best.kind is CodeKind.PTX or best.suffix:
            number_of = best.capability.major * 100 + best.capability.minor * 10
            expected = number_of * 10 + SUFFIXES[best.suffix]
        else:
            expected = 7500
        if (found := bench.image(library)) != expected:
            wrong.append((list(map(str, targets)), expected, found))
    assert wrong == []


def test_fact_6_container_without_entries_is_a_clean_error(
    bench: Workbench, capability: Capability
) -> None:
    sass = Target(kind=CodeKind.SASS, capability=capability, suffix="")
    library = build(bench, "libwhole.so", gencode(sass, 75))
    assert bench.image(library) == 7500
    assert bench.image(emptied(library, "libnothing.so")) == NO_KERNEL_IMAGE


@pytest.mark.parametrize("form", ["plain", "linked"])
def test_facts_5_and_7_driver_reads_a_container_outside_of_the_library(
    form: str, bench: Workbench, capability: Capability, tmp_path: Path
) -> None:
    """Its pointer is set by a constructor that runs first, as archsplit's stub does."""
    sass = Target(kind=CodeKind.SASS, capability=capability, suffix="")
    options = (gencode(sass, 75), *(("-rdc=true",) if form == "linked" else ()))
    whole = build(bench, f"libfat_{form}.so", *options)
    address, _, content = section(whole, ".nv_fatbin")
    # The library's own; with the static runtime, there are containers of others.
    own = max(containers(content), key=lambda each: each[1])
    (wrapper,) = [at for at, _, pointer in wrappers(whole) if pointer == address + own[0]]
    pack = tmp_path / "pack"
    pack.write_bytes(content[own[0] : own[0] + 16 + own[1]])

    bench.link("libcanarystub.so", "-shared", "-ldl")
    stub = ("-Xlinker=--no-as-needed", "-L.", "-lcanarystub", "-Xlinker=-rpath=$ORIGIN")
    # The same library with one more needed one: addresses of data may move by a page.
    split = build(bench, f"libsplit_{form}.so", *options, *stub)
    address, _, content = section(split, ".nv_fatbin")
    own = max(containers(content), key=lambda each: each[1])
    (wrapper,) = [at for at, _, pointer in wrappers(split) if pointer == address + own[0]]
    # Without a linked image, the driver links the relocatable one.
    relocatable = ("__nv_relfatbin",) if form == "linked" else ()
    empty = emptied(split, f"libsplit_empty_{form}.so", ".nv_fatbin", *relocatable)

    assert bench.image(whole) == 7500
    assert bench.image(empty) == (NO_SYMBOL if form == "linked" else NO_KERNEL_IMAGE)
    served = {"CANARY_WRAPPER": hex(wrapper), "CANARY_CONTAINER": str(pack)}
    assert bench.image(empty, **served) == 7500


def test_relocatable_code_is_read_only_without_a_linked_image(
    bench: Workbench, capability: Capability
) -> None:
    """`split` and `slim` leave it out for the GPUs that a device link served."""
    sass = Target(kind=CodeKind.SASS, capability=capability, suffix="")
    linked = build(bench, "librelocatable.so", gencode(sass, 75), "-rdc=true")
    both = (".nv_fatbin", "__nv_relfatbin")
    assert bench.image(emptied(linked, "librelocatable_linked.so", both[1])) == 7500
    assert bench.image(emptied(linked, "librelocatable_only.so", both[0])) == 7500
    assert bench.image(emptied(linked, "librelocatable_none.so", *both)) == NO_SYMBOL
