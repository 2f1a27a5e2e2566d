"""Relocatable device code: inspect, split and verify agree on the GPUs that it serves.

That a driver links the input of a device link for a GPU without linked code was seen on a GPU:
``runs-rdc-linked-by-the-driver`` in tests/gpu/slim_samples_for_gpu.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from split_samples import compile_c, container, image, python, unpacked

from archsplit.arch.target import Capability
from archsplit.devicecode.partition import PackBy
from archsplit.errors import NothingToDoError, TargetError
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage
from archsplit.release.report import read_report
from archsplit.release.verify import verify_release
from archsplit.release.wheel_set import read_wheel_set
from archsplit.split.model import SplitRequest
from archsplit.split.restore import join_split
from archsplit.split.sources import minimal_project, split_library
from archsplit.system.fs import temporary_dir
from target_lists import parse_targets

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


def split(path: Path, out: Path, effects: Effects, *, by: PackBy = PackBy.CAPABILITY) -> None:
    split_library(SplitRequest(source=path, out=out, by=by), effects, minimal_project("rdc", "1"))


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


def test_library_without_code_for_a_target_is_named(tmp_path: Path, effects: Effects) -> None:
    path = library(tmp_path, linked=("sm_80", "sm_90"))
    request = SplitRequest(source=path, out=tmp_path / "out", targets=parse_targets("sm_70"))
    expected = "^librdc.so: nothing in it is for sm_70; it has sm_80, sm_90, compute_80\n"
    with pytest.raises(TargetError, match=expected):
        split_library(request, effects, minimal_project("rdc", "1"))


def pack_targets(out: Path) -> dict[str, list[str]]:
    report = read_report(out / "archsplit-report.json")
    return {one.label: list(one.plugin.targets) for one in report.wheels if one.plugin}


def test_link_input_is_only_in_the_pack_for_join(tmp_path: Path, effects: Effects) -> None:
    path = library(tmp_path, linked=("sm_80", "sm_90"))
    split(path, tmp_path / "out", effects)
    # compute_80 stays for GPUs that are newer than all linked code.
    found = pack_targets(tmp_path / "out")
    assert found == {"cc80": ["sm_80"], "cc90": ["sm_90"], "ptx": ["compute_80"], "rest": ["sm_80"]}
    (joined,) = join_split(tmp_path / "out", tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


def test_only_images_without_a_linker_become_frames(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = image

    def repeated(target: str) -> bytes:
        whole = plain(target, 0x20000)
        return whole[:64] + whole[64 : 64 + 0x1000] * 0x20

    monkeypatch.setattr("test_split_device_link.image", repeated)
    path = library(tmp_path, linked=("sm_80", "sm_90"))
    split(path, tmp_path / "out", effects)
    with temporary_dir() as scratch:
        release = read_wheel_set(tmp_path / "out", scratch)
        forms = {
            name: [row.form is not None for _, row in wheel.pack.images()]
            for name, wheel in release.plugins.items()
            if wheel.pack is not None
        }
    assert forms == {"cc80": [True], "cc90": [True], "ptx": [False], "rest": [True]}
    verify_release(tmp_path / "out")
    (joined,) = join_split(tmp_path / "out", tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


def test_packs_by_target_have_no_replaced_link_input(tmp_path: Path, effects: Effects) -> None:
    path = library(tmp_path, linked=("sm_80", "sm_90"))
    split(path, tmp_path / "out", effects, by=PackBy.TARGET)
    found = pack_targets(tmp_path / "out")
    assert found == {
        **{name: [name] for name in ("sm_80", "sm_90", "compute_80")},
        "rest": ["sm_80"],
    }
    needs = verify_release(tmp_path / "out").needs
    assert [needs[gpu] for gpu in ("8.0", "9.0", "10.0")] == [
        ("sm_80",),
        ("sm_90",),
        ("compute_80",),
    ]
    (joined,) = join_split(tmp_path / "out", tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("linked", [("sm_80",), ()])
def test_input_stays_in_packs_of_gpus_without_linked_code(
    tmp_path: Path, effects: Effects, linked: tuple[str, ...]
) -> None:
    split(library(tmp_path, linked=linked), tmp_path / "out", effects)
    found = pack_targets(tmp_path / "out")
    # 9.0 has no linked code, so its driver links the PTX.
    assert "9.0" in verify_release(tmp_path / "out").needs
    assert any("compute_80" in targets for targets in found.values())
    if not linked:
        assert "rest" not in found


@pytest.mark.parametrize(
    ("packs", "found"),
    [(("cc90",), "native"), (("ptx",), "ptx"), ((), "missing"), (("rest",), "missing")],
)
def test_doctor_needs_input_only_without_linked_code(
    tmp_path: Path, effects: Effects, packs: tuple[str, ...], found: str
) -> None:
    split(library(tmp_path, linked=("sm_80", "sm_90")), tmp_path / "out", effects)
    names = ("rdc", *(f"rdc_{name}" for name in packs))
    wheels = [next((tmp_path / "out").glob(f"{name}-1-*.whl")) for name in names]
    site = unpacked(tmp_path / "site", *wheels)
    done = python(tmp_path, "9.0", str(next(site.glob("*/_archsplit"))), "--json")
    report = json.loads(done.stdout)
    counts = report["devices"][0]["served"]["containers"]
    # The linked container and its input are one for a GPU, whichever of them it takes.
    assert counts == {"native": 0, "older_minor": 0, "ptx": 0, "missing": 0, found: 1}
    assert report["healthy"] == (found != "missing")
