from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from release_samples import TINYVEC
from variantlib.commands.generate_index_json import (  # type: ignore[import-untyped] # no types
    generate_index_json,
)
from variantlib.constants import (  # type: ignore[import-untyped] # it ships no types
    VALIDATION_WHEEL_NAME_REGEX,
)
from variantlib.variant_dist_info import (  # type: ignore[import-untyped] # it ships no types
    VariantDistInfo,
)

from archsplit.arch.target import Target
from archsplit.cli.main import main
from archsplit.errors import WheelError
from archsplit.release.variants import (
    VARIANTS_FOLDER,
    Variant,
    built_variants,
    split_variants,
    variant_values,
)
from archsplit.wheels import record
from changed_wheels import member, only

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.report import Release


@pytest.fixture(scope="module")
def built_ones(tmp_path_factory: pytest.TempPathFactory, small_toolkit: Toolkit) -> Path:
    out = tmp_path_factory.mktemp("variants")
    words = [
        "--nvcc",
        str(small_toolkit.nvcc),
        "--quiet",
        "--targets",
        "sm_80",
        "--variants",
        "--cache",
        "on",
    ]
    assert main(["build", str(TINYVEC), "--out", str(out), *words]) == 0
    return out / VARIANTS_FOLDER


@pytest.fixture(scope="module")
def split_ones(tmp_path_factory: pytest.TempPathFactory, fat: Path) -> Path:
    out = tmp_path_factory.mktemp("variants") / "out"
    assert main(["split", str(fat), "--out", str(out), "--variants"]) == 0
    return out / VARIANTS_FOLDER


def properties(folder: Path) -> dict[str, set[str]]:
    """Return the properties that variantlib reads from each wheel, by the wheel's label."""
    found = {}
    for wheel in folder.glob("*.whl"):
        name = VALIDATION_WHEEL_NAME_REGEX.fullmatch(wheel.name)
        assert name is not None
        label = name["variant_label"]
        info = VariantDistInfo(member(wheel, ".dist-info/variant.json"), label)
        found[label] = {one.to_str() for one in info.variant_desc.properties}
    return found


@pytest.mark.nvcc
def test_variantlib_reads_exactly_one_set_of_properties_a_wheel(built_ones: Path) -> None:
    found = properties(built_ones)
    assert found["sm80"] == {"nvidia :: sm_arch :: 80_real"}
    assert found["sm90"] == {"nvidia :: sm_arch :: 90_real"}
    assert found["compute90"] == {
        f"nvidia :: sm_arch :: {one}_virtual" for one in (90, 100, 101, 103, 107, 110, 120, 121)
    }


def test_variantlib_reads_the_variants_of_a_split(split_ones: Path) -> None:
    found = properties(split_ones)
    assert "nvidia :: sm_arch :: 80_real" in found["cc80"]
    everything = [value for values in found.values() for value in values]
    assert len(everything) == len(set(everything))


@pytest.mark.nvcc
@pytest.mark.parametrize("which", ["built_ones", "split_ones"])
def test_index_file_equals_variantlibs(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder: Path = request.getfixturevalue(which)
    for wheel in folder.glob("*.whl"):
        shutil.copy(wheel, tmp_path)
    generate_index_json(["--directory", str(tmp_path)])
    theirs, ours = only(tmp_path, "*-variants.json"), only(folder, "*-variants.json")
    assert theirs.name == ours.name
    made, written = json.loads(theirs.read_text()), json.loads(ours.read_text())
    # variantlib still has the address from before the drafts were numbered.
    assert made.pop("$schema").endswith("/v0.2.0.json")
    assert written.pop("$schema").endswith("/peps/850/v0.2.0.json")
    assert made == written


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("capability", "plugin"), [("9.0", "sm90"), ("8.6", "sm80"), ("12.0", "compute90")]
)
def test_uv_takes_the_variant_of_the_gpu(
    built: tuple[Path, Release],
    built_ones: Path,
    tmp_path: Path,
    capability: str,
    plugin: str,
) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--no-cache", "--quiet", str(tmp_path / "venv")], check=True)
    words = [uv, "--no-config", "--no-cache", "--preview-features", "wheel-variants", "pip"]
    words += ["install", "--python", str(tmp_path / "venv"), "--no-index", "--find-links"]
    words += [str(built_ones), "--find-links", str(built[0]), "tinyvec"]
    pretended = {
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": capability,
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "13.0",
    }
    environment = {**os.environ, **pretended}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    installed = [line for line in done.stderr.splitlines() if line.startswith(" + ")]
    assert installed == [" + tinyvec==1.2.3", f" + tinyvec-{plugin}==1.2.3"], done.stderr


@pytest.mark.nvcc
def test_variant_is_the_core_with_a_required_plugin(built_ones: Path) -> None:
    core, variant = only(built_ones.parent, "tinyvec-1*.whl"), only(built_ones, "*-sm90.whl")
    assert variant.name == core.name.replace(".whl", "-sm90.whl")
    old, new = (member(path, "METADATA").decode() for path in (core, variant))
    assert new == old.replace("\n\n", "\nRequires-Dist: tinyvec-sm90==1.2.3\n\n", 1)
    rows = {row.path: row for row in record.decode_record(member(variant, "RECORD"))}
    text = member(variant, "variant.json")
    assert rows["tinyvec-1.2.3.dist-info/variant.json"].digest == hashlib.sha256(text).digest()


@pytest.mark.nvcc
def test_they_are_said_to_be_experimental(
    tmp_path: Path, small_toolkit: Toolkit, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--out", str(out), "--nvcc", str(small_toolkit.nvcc), "--quiet", "--variants"]
    assert main(["build", str(TINYVEC), *words, "--no-core"]) == 2
    assert main(["build", str(TINYVEC), *words, "--core-only"]) == 0
    assert "Wrote 3 wheel variants (PEP 825, a draft)" in capsys.readouterr().err
    assert not list(out.glob("*-sm90.whl"))
    assert main(["build", "--help"]) == 0
    assert "experimental: also write the core as wheel variants" in " ".join(
        capsys.readouterr().out.split()
    )


def test_code_for_only_one_capability_has_no_variant() -> None:
    names = ("sm_90", "sm_90a", "sm_100f", "sm_100", "sm_100a", "sm_120a")
    variants, notes = built_variants({name: f"toy-{name}==1" for name in names})
    assert [(one.label, one.values) for one in variants] == [
        ("sm90", ("90_real",)),
        ("sm100f", ("100_real",)),
    ]
    assert notes == (
        "sm_90a has no variant: sm90 is for the same GPUs",
        "sm_100 has no variant: sm100f is for the same GPUs",
        "sm_100a has no variant: the draft has no property for its GPUs",
        "sm_120a has no variant: the draft has no property for its GPUs",
    )
    assert variant_values(Target.parse("compute_120")) == ("120_virtual", "121_virtual")
    # No Hopper has a later capability.
    assert variant_values(Target.parse("sm_90a")) == ("90_real",)


def test_gpus_with_the_same_packs_share_a_variant() -> None:
    needs = {"8.0": ["a"], "8.6": ["a", "b"], "8.9": ["a", "b"]}
    variants = split_variants(needs, {"a": "toy-a==1", "b": "toy-b==1"})
    assert [(one.label, one.values, one.requires) for one in variants] == [
        ("cc80", ("80_real",), ("toy-a==1",)),
        ("cc86", ("86_real", "89_real"), ("toy-a==1", "toy-b==1")),
    ]


@pytest.mark.parametrize("label", ["null", "SM90", "sm-90", ""])
def test_labels_invalid_by_the_draft_are_refused(label: str) -> None:
    with pytest.raises(WheelError, match="can't be the label"):
        Variant(label=label, values=("90_real",), requires=("toy==1",))


def test_variant_without_a_property_is_refused() -> None:
    with pytest.raises(WheelError, match="has no property"):
        Variant(label="sm90", values=(), requires=("toy==1",))
