"""Relocatable device code: tests/tinyrdc, built with the real tools, and what is left of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.build.context import identify
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildPlan, BuildRequest, plan_build
from archsplit.devicecode.registered import read_library
from archsplit.errors import StepError
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.release.verify import verify_release
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, check_outcome, run_graph
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.registered import Library
    from archsplit.release.report import Release

TINYRDC = Path(__file__).parents[1] / "tinyrdc"
SM_80, SM_90 = Target.parse("sm_80"), Target.parse("sm_90")
COMPUTE_80 = Target.parse("compute_80")
LAUNCHING = """
__global__ void child(int *item) {
    *item = 42;
}
__global__ void parent(int *item) {
    child<<<1, 1, 0, cudaStreamFireAndForget>>>(item);
}
extern "C" int tinyrdc_launch(int *item) {
    parent<<<1, 1>>>(item);
    return cudaGetLastError();
}
"""

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def released(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> tuple[Path, Release]:
    folder = tmp_path_factory.mktemp("tinyrdc")
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2)
    return folder, build_recipe(BuildRequest(recipe=load_recipe(TINYRDC)), effects, out=folder)


@pytest.fixture
def tinyrdc(tmp_path: Path) -> Path:
    """A copy of the recipe, to be changed."""
    return Path(shutil.copytree(TINYRDC, tmp_path / "a longer path" / "tinyrdc"))


def change(recipe: Path, old: str, new: str) -> None:
    path = recipe / "recipe.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@contextmanager
def executed(recipe: Path, effects: Effects, *targets: Target) -> Iterator[BuildPlan]:
    with plan_build(
        BuildRequest(recipe=load_recipe(recipe), targets=targets or None), effects
    ) as plan:
        for path, text in plan.texts.items():
            path.write_text(text)
        check_outcome(
            plan.graph,
            run_graph(
                plan.graph,
                RunOptions(
                    pool=LocalPool(2),
                    runner=effects.runner,
                    progress=SilentProgress(),
                    parallel=False,
                ),
            ),
        )
        yield plan


def library(folder: Path, target: str, to: Path) -> Library:
    (wheel,) = folder.glob(f"tinyrdc_{target.replace('_', '')}-*.whl")
    shutil.unpack_archive(wheel, to, "zip")
    return read_library(to / "tinyrdc_plugins" / "cuda" / target / "libtinyrdc.so")


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_machine_code_is_linked_into_one_container(
    released: tuple[Path, Release], tmp_path: Path, target: str
) -> None:
    plugin = library(released[0], target, tmp_path)
    assert plugin.containers == (frozenset({Target.parse(target)}),)
    assert plugin.relocatable == (frozenset(), frozenset())
    assert plugin.exports == {"tinyrdc_apply", "tinyrdc_set"}


def test_ptx_is_left_to_the_driver_to_link(released: tuple[Path, Release], tmp_path: Path) -> None:
    plugin = library(released[0], "compute_80", tmp_path)
    assert plugin.containers == (frozenset(),)
    assert plugin.relocatable == (frozenset({COMPUTE_80}),) * 2


def test_the_release_verifies(released: tuple[Path, Release], effects: Effects) -> None:
    release = verify_release(released[0], effects)
    assert sorted(release.wheels.values()) == [(), ("compute_80",), ("sm_80",), ("sm_90",)]


def test_one_target_elsewhere_has_the_same_bytes(
    released: tuple[Path, Release], tinyrdc: Path, tmp_path: Path, effects: Effects
) -> None:
    order = BuildRequest(recipe=load_recipe(tinyrdc), targets=(SM_90,), core=False)
    (plugin,) = build_recipe(order, effects, out=tmp_path / "out").wheels
    assert plugin in released[1].wheels


def test_exchanged_object_equals_a_single_target_compile(
    effects: Effects,
) -> None:
    with executed(TINYRDC, effects, SM_80, SM_90) as plan:
        folder = plan.context.folder / "000-apply"
        steps = {
            step.name.partition(" ")[2]: step
            for step in plan.graph.steps
            if folder in {path.parent for path in step.writes}
        }
        pack, compile_ = steps["fatbinary sm_90"].command, steps["host compile"].command
        # What nvcc itself does: the container's text is included into the host's compile.
        embedded = f"--embedded-fatbin={folder / 'apply.fatbin.c'}"
        subprocess.run([*pack.argv, embedded], check=True, env=pack.env, cwd=pack.cwd)
        real, copy = folder / "real.o", folder / "copy.o"
        argv = [*compile_.argv[:-1], str(real)]
        assert compile_.argv[-2] == "-o"
        subprocess.run(argv, check=True, env=compile_.env, cwd=compile_.cwd)
        # objcopy may order a file in its own way, so it reads both.
        subprocess.run([plan.context.host.objcopy, real, copy], check=True)
        exchanged = (folder / "sm_90.o").read_bytes()
        assert copy.read_bytes() == exchanged
        assert exchanged != (folder / "sm_80.o").read_bytes()


def test_the_host_pass_is_done_once_and_device_links_run_side_by_side(
    effects: Effects, tinyrdc: Path
) -> None:
    with plan_build(BuildRequest(recipe=load_recipe(tinyrdc)), effects) as plan:
        names = [step.name for step in plan.graph.steps]
        files = {path: step.name for step in plan.graph.steps for path in step.writes}
    assert sum("cudafe++" in name for name in names) == 2
    assert sum(name.endswith("nvlink") for name in names) == 3
    # Each has a registration file of its own, which they would overwrite for each other otherwise.
    assert sum(path.name.endswith(".reg.c") for path in files) == 3


def test_the_flag_means_the_same_as_the_key(
    effects: Effects, tinyrdc: Path, released: tuple[Path, Release], tmp_path: Path
) -> None:
    change(tinyrdc, "rdc = true", 'nvcc-flags = ["-dc"]\nhost-pass = "per-target"')
    build_recipe(
        BuildRequest(recipe=load_recipe(tinyrdc), targets=(SM_80,), core=False),
        effects,
        out=tmp_path / "out",
    )
    plugin = library(tmp_path / "out", "sm_80", tmp_path)
    assert plugin.containers == (frozenset({SM_80}),)
    assert plugin.relocatable == (frozenset(), frozenset())


def launch(recipe: Path, targets: str) -> None:
    """Let one kernel start another, for which CUDA's device runtime is needed."""
    source = recipe / "src" / "state.cu"
    source.write_text(source.read_text() + LAUNCHING)
    change(recipe, 'sass = ["sm_80", "sm_90"]\nptx = ["compute_80"]', targets)


def test_only_linked_code_of_the_device_runtime_stays(
    effects: Effects, tinyrdc: Path, tmp_path: Path
) -> None:
    launch(tinyrdc, 'sass = ["sm_80"]')
    build_recipe(
        BuildRequest(recipe=load_recipe(tinyrdc), core=False), effects, out=tmp_path / "out"
    )
    plugin = library(tmp_path / "out", "sm_80", tmp_path)
    assert plugin.containers == (frozenset({SM_80}),)
    assert plugin.relocatable == (frozenset(),) * 3


def test_ptx_with_calls_of_the_device_runtime_is_refused(
    effects: Effects, tinyrdc: Path, tmp_path: Path
) -> None:
    launch(tinyrdc, 'ptx = ["compute_80"]')
    with pytest.raises(
        StepError, match=r"compute_80 calls __cudaCDP2GetP\w+, __cudaCDP2Launch"
    ) as caught:
        build_recipe(
            BuildRequest(recipe=load_recipe(tinyrdc), core=False), effects, out=tmp_path / "out"
        )
    assert "take compute_80 out of targets.ptx" in str(caught.value.hint)


def test_ptx_of_three_digits_is_registered(effects: Effects, tinyrdc: Path, tmp_path: Path) -> None:
    change(tinyrdc, 'sass = ["sm_80", "sm_90"]\nptx = ["compute_80"]', 'ptx = ["compute_120"]')
    build_recipe(
        BuildRequest(recipe=load_recipe(tinyrdc), core=False), effects, out=tmp_path / "out"
    )
    plugin = library(tmp_path / "out", "compute_120", tmp_path)
    assert plugin.relocatable == (frozenset({Target.parse("compute_120")}),) * 2


def test_registration_is_the_same_for_machine_code_and_ptx(effects: Effects) -> None:
    with executed(TINYRDC, effects, SM_80, COMPUTE_80) as plan:
        texts = [
            (plan.context.folder / f"device-link-{target}" / "device-link.reg.c").read_text()
            for target in (SM_80, COMPUTE_80)
        ]
    assert texts[0] == texts[1]
    assert texts[0].count("DEFINE_REGISTER_FUNC(") == 2


def test_missing_device_function_fails_the_link(
    effects: Effects, tinyrdc: Path, tmp_path: Path
) -> None:
    source = tinyrdc / "src" / "state.cu"
    source.write_text(source.read_text().replace("int twice(int item)", "int thrice(int item)"))
    with pytest.raises(StepError, match=r"(?s)device link.*Undefined reference to '_Z5twicei'"):
        build_recipe(
            BuildRequest(recipe=load_recipe(tinyrdc), targets=(SM_80,)),
            effects,
            out=tmp_path / "out",
        )


def test_the_build_id_covers_the_device_link(effects: Effects, tmp_path: Path) -> None:
    with plan_build(BuildRequest(recipe=load_recipe(TINYRDC), targets=()), effects) as plan:
        site = plan.context
    shutil.copytree(site.toolkit.root / "bin", tmp_path / "bin", copy_function=os.symlink)
    for name in ("include", "nvvm"):
        (tmp_path / name).symlink_to(site.toolkit.root / name)
    libraries = Path(shutil.copytree(site.toolkit.library_folder, tmp_path / "lib", symlinks=True))
    toolkit = replace(site.toolkit, root=tmp_path, library_folder=libraries)
    changed = replace(site, toolkit=toolkit)
    first = identify(site, version="1.0").build_id
    assert identify(changed, version="1.0").build_id == first
    for path in ("bin/nvlink", "bin/crt/link.stub", "lib/libcudadevrt.a"):
        kept = (tmp_path / path).read_bytes()
        (tmp_path / path).unlink()
        (tmp_path / path).write_bytes(kept + b"\n")
        assert identify(changed, version="1.0").build_id != first
        (tmp_path / path).write_bytes(kept)
    assert identify(changed, version="1.0").build_id == first
