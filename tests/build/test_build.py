from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build_notes import BuildNotes

from archsplit.arch.target import Target
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest, plan_build
from archsplit.devicecode.registered import read_library
from archsplit.errors import OutputError, StepError, TargetError, ToolNotFoundError
from archsplit.recipe.load import load_recipe
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.report import REPORT_FILE, Release
from archsplit.release.verify import verify_release
from archsplit.system.fs import sha256
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from archsplit.release.context import Effects

pytestmark = pytest.mark.nvcc


def extracted(folder: Path, name: str, member: str, to: Path) -> Path:
    (path,) = folder.glob(name)
    with open_wheel(path) as wheel:
        to.write_bytes(wheel.read(member))
    return to


def test_build_makes_a_core_and_one_plugin_per_target(built: tuple[Path, Release]) -> None:
    folder, report = built
    targets = {wheel: wheel.plugin.targets if wheel.plugin else () for wheel in report.wheels}
    assert {(wheel.role, wheel.distribution, own) for wheel, own in targets.items()} == {
        ("core", "tinyvec", ()),
        ("plugin", "tinyvec-sm80", ("sm_80",)),
        ("plugin", "tinyvec-sm90", ("sm_90",)),
        ("plugin", "tinyvec-compute90", ("compute_90",)),
    }
    files = {REPORT_FILE, MANIFEST, *(wheel.file for wheel in report.wheels)}
    assert set(os.listdir(folder)) == files


def test_report_lists_all_wheels(built: tuple[Path, Release]) -> None:
    folder, report = built
    content = json.loads((folder / REPORT_FILE).read_text())
    assert content["schema"] == 2
    assert content["build"]["targets"] == ["sm_80", "sm_90", "compute_90"]
    for wheel in content["wheels"]:
        assert wheel["sha256"] == sha256(folder / wheel["file"])
        assert wheel["size"] == (folder / wheel["file"]).stat().st_size
    assert content["build_id"] == report.build_id


def test_plugin_has_only_its_target_descriptor_and_symbols(
    built: tuple[Path, Release], tmp_path: Path
) -> None:
    folder, report = built
    member = "tinyvec_plugins/cuda/sm_90/libtinyvec.so"
    path = extracted(folder, "tinyvec_sm90-*.whl", member, tmp_path / "lib.so")
    library = read_library(path)
    target = Target.parse("sm_90")
    assert library.containers == (frozenset({target}),) * 2
    assert library.exports == {"tinyvec_add", "tinyvec_name", "tinyvec_scale"}
    assert library.descriptor is not None
    assert library.descriptor.package == "tinyvec"
    assert library.descriptor.version == "1.2.3"
    assert library.descriptor.targets == (target,)
    assert library.descriptor.build_id.hex() == report.build_id
    opened = ctypes.CDLL(str(path))
    opened.tinyvec_name.restype = ctypes.c_char_p
    assert opened.tinyvec_name() == b"tiny, vec"


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "compute_90"])
def test_cuobjdump_sees_the_same_code(
    built: tuple[Path, Release], tmp_path: Path, target: str
) -> None:
    member = f"tinyvec_plugins/cuda/{target}/libtinyvec.so"
    wheel = f"tinyvec_{target.replace('_', '')}-*.whl"
    path = extracted(built[0], wheel, member, tmp_path / "lib.so")
    installed = metadata.files("nvidia-cuda-cuobjdump") or []
    (cuobjdump,) = (file.locate() for file in installed if file.name == "cuobjdump")
    command = [str(cuobjdump), "-lelf", "-lptx", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kind = "ELF" if target.startswith("sm") else "PTX"
    number = target.partition("_")[2]
    listed = re.findall(r"^(ELF|PTX) file +\d+: .*\.sm_(\w+)\.", done.stdout, re.MULTILINE)
    assert listed == [(kind, number)] * 2


def test_two_builds_in_two_folders_are_the_same(
    built: tuple[Path, Release], tmp_path: Path, environment: dict[str, str]
) -> None:
    source = tmp_path / "elsewhere" / "a longer path"
    shutil.copytree(Path(__file__).parents[1] / "tinyvec", source)
    script = (
        "import os, sys; from pathlib import Path; os.umask(0o077);"
        "from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    changed = {
        **environment,
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(tmp_path),
        "PYTHONHASHSEED": "7",
    }
    out = tmp_path / "out"
    subprocess.run(
        [sys.executable, "-c", script, "build", str(source), "--out", str(out), "--jobs", "1"],
        check=True,
        env=changed,
        cwd=tmp_path,
    )
    assert json.loads((out / REPORT_FILE).read_text()) == json.loads(
        (built[0] / REPORT_FILE).read_text()
    )


def test_a_subset_of_the_targets_has_the_same_bytes(
    built: tuple[Path, Release], tmp_path: Path, recipe: Path, effects: Effects
) -> None:
    order = BuildRequest(recipe=load_recipe(recipe), targets=(Target.parse("sm_80"),), core=False)
    report = build_recipe(order, effects, out=tmp_path / "out")
    (plugin,) = report.wheels
    assert plugin in built[1].wheels


def test_per_target_host_passes(recipe: Path, tmp_path: Path, effects: Effects) -> None:
    text = (recipe / "recipe.toml").read_text()
    text = text.replace("[compile]\n", '[compile]\nhost-pass = "per-target"\n')
    (recipe / "recipe.toml").write_text(text)
    source = recipe / "src" / "scale.cu"
    source.write_text(
        source.read_text() + "static const int archs[] = {__CUDA_ARCH_LIST__};\n"
        'extern "C" int tinyvec_archs(void) { return archs[0] * 10 + sizeof archs / 4; }\n'
    )
    header = recipe / "include" / "tinyvec.h"
    visible = '__attribute__((visibility("default")))'
    header.write_text(f'{header.read_text()}\nextern "C" {visible} int tinyvec_archs(void);\n')
    text = text.replace('"tinyvec_add", ', '"tinyvec_add", "tinyvec_archs", ')
    (recipe / "recipe.toml").write_text(text)
    targets = (Target.parse("sm_80"), Target.parse("sm_90"))
    build_recipe(
        BuildRequest(recipe=load_recipe(recipe), targets=targets, core=False),
        effects,
        out=tmp_path / "out",
    )
    for target, expected in (("sm_80", 8001), ("sm_90", 9001)):
        member = f"tinyvec_plugins/cuda/{target}/libtinyvec.so"
        wheel = f"tinyvec_{target.replace('_', '')}-*.whl"
        path = extracted(tmp_path / "out", wheel, member, tmp_path / f"{target}.so")
        assert ctypes.CDLL(str(path)).tinyvec_archs() == expected


def test_recipe_with_meta_gets_a_meta_wheel(recipe: Path, tmp_path: Path, effects: Effects) -> None:
    notes = BuildNotes()
    with (recipe / "recipe.toml").open("a") as file:
        file.write('\n[install]\nmode = "meta"\n')
    report = build_recipe(
        BuildRequest(recipe=load_recipe(recipe), targets=()),
        replace(effects, progress=notes),
        out=tmp_path / "out",
    )
    assert {wheel.role for wheel in report.wheels} == {"core", "meta"}
    assert any("a core without digests of its plugins" in line for line in notes.lines)
    (meta,) = (tmp_path / "out").glob("tinyvec_all-1.2.3-py3-none-any.whl")
    with open_wheel(meta) as wheel:
        assert list(map(str, wheel.metadata().requires_dist or [])) == ["tinyvec[all]==1.2.3"]


def test_source_with_a_syntax_error_fails_and_leaves_no_output(
    recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    (recipe / "src" / "add.cu").write_text("__global__ void broken( {}\n")
    with pytest.raises(StepError) as caught:
        build_recipe(BuildRequest(recipe=load_recipe(recipe)), effects, out=tmp_path / "out")
    text = str(caught.value)
    assert caught.value.exit_code == 6
    assert "src/add.cu(1): error" in text
    assert "cudafe++" in text or "cicc" in text
    assert not (tmp_path / "out").exists()


def test_undefined_exported_symbol_fails_the_build(
    recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    header = recipe / "include" / "tinyvec.h"
    header.write_text(header.read_text() + "int tinyvec_missing(void);\n")
    path = recipe / "recipe.toml"
    path.write_text(path.read_text().replace('"tinyvec_add"', '"tinyvec_add", "tinyvec_missing"'))
    with pytest.raises(StepError, match="doesn't define tinyvec_missing"):
        build_recipe(
            BuildRequest(recipe=load_recipe(recipe), core=False), effects, out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_target_missing_from_the_recipe_is_refused(recipe: Path, effects: Effects) -> None:
    order = BuildRequest(recipe=load_recipe(recipe), targets=(Target.parse("sm_100"),))
    with pytest.raises(TargetError, match=r"no target sm_100; it has sm_80, sm_90, compute_90"):
        plan_build(order, effects).__enter__()


def test_target_unknown_to_the_toolkit_is_refused(recipe: Path, effects: Effects) -> None:
    path = recipe / "recipe.toml"
    path.write_text(path.read_text().replace('"sm_80"', '"sm_20"'))
    with pytest.raises(TargetError, match=r"(?s)can't compile for.*sm_20: the nearest"):
        plan_build(BuildRequest(recipe=load_recipe(recipe)), effects).__enter__()


def test_missing_nvcc_is_refused_with_the_places_tried(recipe: Path, effects: Effects) -> None:
    nowhere = replace(effects, environment={"PATH": "/usr/bin:/bin"}, site_folders=())
    with pytest.raises(ToolNotFoundError, match=r"(?s)no usable nvcc.*PATH: nowhere: not found"):
        plan_build(BuildRequest(recipe=load_recipe(recipe)), nowhere).__enter__()


def test_missing_host_compiler_is_refused(recipe: Path, effects: Effects) -> None:
    nowhere = replace(effects, environment={"PATH": "/nowhere"})
    with pytest.raises(ToolNotFoundError, match=r"g\+\+"):
        plan_build(BuildRequest(recipe=load_recipe(recipe)), nowhere).__enter__()


def test_unwritable_output_folder_fails_the_build(
    recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't write"):
        build_recipe(
            BuildRequest(recipe=load_recipe(recipe)), effects, out=tmp_path / "file" / "out"
        )


def test_built_release_verifies(built: tuple[Path, Release], effects: Effects) -> None:
    release = verify_release(built[0], effects)
    assert release.identity.package == "tinyvec"
    assert sorted(held for held in release.wheels.values() if held) == [
        ("compute_90",),
        ("sm_80",),
        ("sm_90",),
    ]
