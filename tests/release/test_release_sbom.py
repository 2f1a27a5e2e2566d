from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from packageurl import PackageURL
from release_samples import OLD_BILL

from archsplit import __version__
from archsplit.build.provenance import Origins, _cccl, _uses_cccl, add_bill
from archsplit.recipe.load import load_recipe
from archsplit.release.sbom import (
    BUILT,
    SPLIT,
    Bill,
    BillComponent,
    distribution_address,
    encode_bill,
)
from archsplit.system.fs import sha256
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelDraft
from changed_wheels import member, only

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.report import Release

WHEEL = BillComponent(name="toy", version="1", address=distribution_address("toy", "1"))


def bill_of(wheel: Path, name: str) -> dict[str, Any]:
    bill: dict[str, Any] = json.loads(member(wheel, f".dist-info/sboms/{name}"))
    return bill


def is_valid(bill: bytes) -> bool:
    # The validator compiles a grammar when it is imported, for a second and a half.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 (see above)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415 (see above)

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode()) is None


@pytest.mark.nvcc
def test_every_wheel_has_a_valid_sbom(built: tuple[Path, Release], split: Path) -> None:
    for folder, name in ((built[0], BUILT), (split, SPLIT)):
        for wheel in folder.glob("*.whl"):
            assert is_valid(member(wheel, f".dist-info/sboms/{name}")), wheel.name
            with open_wheel(wheel) as opened:
                opened.check_contents()
                assert f"{opened.dist_info}/sboms/{name}" in opened.record


@pytest.mark.nvcc
def test_sbom_of_a_plugin_names_nvidias_code(built: tuple[Path, Release], toolkit: Toolkit) -> None:
    bill = bill_of(only(built[0], "tinyvec_sm90*"), BUILT)
    (runtime,) = bill["components"]
    assert runtime["name"] == "libcudart_static.a"
    digest = sha256(toolkit.library_folder / "libcudart_static.a")
    # A scanner finds what is on no index by its CPE.
    assert runtime["cpe"] == "cpe:2.3:a:nvidia:cuda_toolkit:13.0:*:*:*:*:*:*:*"
    assert runtime["purl"] == "pkg:generic/nvidia/libcudart_static.a@13.0"
    assert runtime["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert runtime["licenses"] == [{"license": {"name": "NVIDIA Software License Agreement"}}]
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/tinyvec-sm90@1.2.3"
    with open_wheel(only(built[0], "tinyvec_sm90*")) as wheel:
        said = wheel.metadata()
        text = wheel.read(f"{wheel.dist_info}/licenses/nvidia-cuda-runtime.txt")
    assert str(said.license_expression).endswith(" AND LicenseRef-NVIDIA-Software-License")
    assert "nvidia-cuda-runtime.txt" in (said.license_files or [])
    assert b"NVIDIA" in text
    tools = {tool["name"]: tool["version"] for tool in bill["metadata"]["tools"]["components"]}
    assert tools["ptxas"] == toolkit.release
    assert "archsplit" in tools


@pytest.mark.nvcc
def test_references_are_unique_and_purls_have_the_components_name(
    built: tuple[Path, Release], split: Path
) -> None:
    for folder, name in ((built[0], BUILT), (split, SPLIT)):
        for wheel in folder.glob("*.whl"):
            bill = bill_of(wheel, name)
            tools, parts = bill["metadata"]["tools"]["components"], bill.get("components", [])
            every = [bill["metadata"]["component"], *parts, *tools]
            references = [one["bom-ref"] for one in every]
            assert len(set(references)) == len(references), wheel.name
            for one in every:
                purl = PackageURL.from_string(one["purl"]) if "purl" in one else None
                if purl is not None and purl.type == "pypi":
                    assert (purl.name, purl.version) == (one["name"], one["version"])
            assert [one["purl"] for one in tools if one["name"] == "deflate"]


@pytest.mark.nvcc
def test_a_core_names_its_loader(built: tuple[Path, Release], tmp_path: Path) -> None:
    core = only(built[0], "tinyvec-1*")
    (loader,) = bill_of(core, BUILT)["components"]
    (tmp_path / "loader").write_bytes(member(core, "/libarchsplit_loader.so"))
    # Scanners compare the name with the purl's.
    assert loader["name"] == "archsplit"
    assert loader["purl"] == f"pkg:pypi/archsplit@{__version__}"
    assert loader["hashes"] == [{"alg": "SHA-256", "content": sha256(tmp_path / "loader")}]


def test_a_split_names_the_fat_wheel(fat: Path, split: Path) -> None:
    for wheel in split.glob("*.whl"):
        subject = bill_of(wheel, SPLIT)["metadata"]["component"]
        (ancestor,) = subject["pedigree"]["ancestors"]
        # A pack is the same whichever wheel of the release it is from.
        is_core = wheel.name.startswith("toy-")
        file = f"?file_name={fat.name}" if is_core else ""
        assert ancestor["purl"] == f"pkg:pypi/toy@2.0{file}"
        digest = [{"alg": "SHA-256", "content": sha256(fat)}] if is_core else None
        assert ancestor.get("hashes") == digest
    core = bill_of(only(split, "toy-2*"), SPLIT)
    assert [part["name"] for part in core["components"]] == ["archsplit"]


def test_sbom_of_the_fat_wheel_stays_in_the_core(split: Path) -> None:
    assert member(only(split, "toy-2*"), "sboms/auditwheel.cdx.json") == OLD_BILL


def test_nothing_in_it_is_random() -> None:
    bill = Bill(subject=WHEEL, parts=(BillComponent(name="x", version="1"),), epoch=1_700_000_000)
    assert encode_bill(bill) == encode_bill(bill)
    content = json.loads(encode_bill(bill))
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    other = json.loads(encode_bill(replace(bill, parts=())))
    assert content["serialNumber"] != other["serialNumber"]


def test_sbom_without_an_epoch_has_no_time() -> None:
    for epoch in (None, 315_532_800):
        assert (
            "timestamp" not in json.loads(encode_bill(Bill(subject=WHEEL, epoch=epoch)))["metadata"]
        )


def test_a_licence_is_an_expression_or_a_name() -> None:
    parts = (
        BillComponent(name="a", version="1", license="mit and apache-2.0"),
        BillComponent(name="b", version="1", license="Somebody's own"),
        BillComponent(name="c", version="1"),
    )
    content = encode_bill(Bill(subject=WHEEL, parts=parts))
    assert is_valid(content)
    assert [part.get("licenses") for part in json.loads(content)["components"]] == [
        [{"expression": "MIT AND Apache-2.0"}],
        [{"license": {"name": "Somebody's own"}}],
        None,
    ]


def test_sbom_names_included_cuda_headers(recipe: Path, toolkit: Toolkit) -> None:
    assert not _uses_cccl(load_recipe(recipe))
    with (recipe / "src" / "add.cu").open("a") as file:
        file.write("#  include <cub/device/device_reduce.cuh>\n")
    assert _uses_cccl(load_recipe(recipe))
    version = _cccl(toolkit.root)
    assert version == "3.0.1"
    assert _cccl(recipe) == "unknown"


def test_a_wheel_without_files_has_no_bill() -> None:
    name = WheelName(project=distribution_name("toy-all"), version="1", platforms=("any",))
    plan = WheelDraft(
        name=name,
        metadata=CoreMetadata(name="toy-all", version="1"),
        generator="a test",
        members=(),
        purelib=True,
    )
    nothing = Origins(sources=(), toolchain=(), runtime=(), cccl=None, flags={})
    assert add_bill(plan, nothing, epoch=0) == plan


@pytest.mark.nvcc
def test_twine_is_content(built: tuple[Path, Release], split: Path) -> None:
    wheels = [str(path) for folder in (built[0], split) for path in folder.glob("*.whl")]
    command = [sys.executable, "-m", "twine", "check", "--strict", *wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
