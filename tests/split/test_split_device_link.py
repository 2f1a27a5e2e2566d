"""Relocatable device code: inspect, split and verify agree on the GPUs that it serves.

That a driver links the input of a device link for a GPU without linked code was seen on a GPU:
``runs-rdc-linked-by-the-driver`` in tests/gpu/slim_samples_for_gpu.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from split_samples import compile_c, container, image

from archsplit.arch.target import Capability
from archsplit.devicecode.stats import device_usage
from archsplit.errors import NothingToDoError
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.release.verify import verify_release
from archsplit.split.model import SplitRequest
from archsplit.split.sources import minimal_project, split_library

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.release.context import Effects

GPUS = ("7.0", "8.0", "9.0")
INPUT = ("sm_80", "compute_80")


def library(folder: Path, *, linked: tuple[str, ...] | None) -> Path:
    """A library with input of a device link, and with its result unless ``linked`` is None."""
    containers: list[tuple[str, int, tuple[str, ...]]] = [("__nv_relfatbin", 1, INPUT)]
    containers += [] if linked is None else [(".nv_fatbin", 2, linked)]
    lines = []
    for number, (section, version, targets) in enumerate(containers):
        path = folder / f"{number}.fatbin"
        path.write_bytes(container(*(image(target) for target in targets)))
        lines += [f'.section {section},"a"', ".balign 8", f"f{number}: .incbin {str(path)!r}"]
        lines += ['.section .nvFatBinSegment,"aw"', f".4byte 0x466243b1, {version}"]
        lines += [f".8byte f{number}, 0"]
    lines.append('.section .note.GNU-stack,"",%progbits')
    source = folder / "lib.S"
    source.write_text("\n".join([*lines, ""]).replace("'", '"'))
    return compile_c(folder / "librdc.so", "-shared", str(source))


def usage(path: Path) -> Mapping[str, str]:
    capabilities = map(Capability.parse, GPUS)
    found = device_usage(read_inventory(InspectRequest(subject=str(path))), capabilities)
    return {str(one.capability): " ".join(map(str, one.targets)) for one in found}


def split(path: Path, out: Path, effects: Effects) -> None:
    split_library(SplitRequest(source=path, out=out), effects, minimal_project("rdc", "1"))


@pytest.mark.parametrize(
    ("linked", "gpus"),
    [
        # The linked code comes first; the driver links its input for other GPUs.
        (("sm_80",), {"7.0": "", "8.0": "sm_80", "9.0": "compute_80"}),
        (("sm_80", "sm_90"), {"7.0": "", "8.0": "sm_80", "9.0": "sm_90"}),
        # nvcc links nothing if there is only PTX, and writes an empty container.
        ((), {"7.0": "", "8.0": "sm_80", "9.0": "compute_80"}),
    ],
)
def test_a_device_link_and_its_input_serve_gpus(
    tmp_path: Path, effects: Effects, linked: tuple[str, ...], gpus: dict[str, str]
) -> None:
    path = library(tmp_path, linked=linked)
    assert usage(path) == gpus
    split(path, tmp_path / "out", effects)
    served = {gpu for gpu, targets in gpus.items() if targets}
    needs = verify_release(tmp_path / "out").needs
    assert served == set(GPUS) & set(needs)
    assert {gpu for gpu, targets in usage(tmp_path / "out").items() if targets} == served


def test_input_without_a_device_link_serves_none(tmp_path: Path, effects: Effects) -> None:
    path = library(tmp_path, linked=None)
    assert usage(path) == dict.fromkeys(GPUS, "")
    with pytest.raises(NothingToDoError, match="a device link that was not done"):
        split(path, tmp_path / "out", effects)
