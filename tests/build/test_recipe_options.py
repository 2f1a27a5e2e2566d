"""Recipes as real projects need them: groups, CUDA's libraries, visibility, several failures."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest, plan_build, requested_recipe
from archsplit.errors import RecipeError, StepError, ToolNotFoundError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.nvcc.cuda_libraries import find_cuda_libraries
from archsplit.recipe.load import load_recipe
from archsplit.release.merge import core_platforms
from archsplit.release.verify import verify_release
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects

RECIPE = """\
[project]
name = "dotty"
version = "1.0.0"
summary = "Dot products."
license = "MIT"
license-files = ["LICENSE"]

[source]
files = ["src/*.cu", "src/**/*.c"]
include = ["include"]

[[source.group]]
files = ["src/left/*"]
include = ["src/left/headers"]
defines = ["SIDE=40"]

[[source.group]]
files = ["src/right/*"]
include = ["src/right/headers"]
defines = ["MORE=2"]
host-flags = ["-fvisibility=default"]

[link]
cuda-libraries = ["cublas"]

[targets]
sass = ["sm_80"]
manylinux = "2_38"

[interface]
header = "include/dotty.h"
symbols = ["dotty_sides", "dotty_version"]
"""
KERNEL = """\
#include "dotty.h"
#include <cublas_v2.h>
__global__ void nothing() {}
extern "C" int dotty_version(void) { return cublas_stand_in(); }
"""
FILES = {
    "recipe.toml": RECIPE,
    "LICENSE": "MIT\n",
    "python/dotty/__init__.py": "",
    "include/dotty.h": '#pragma once\n#include "parts.h"\n',
    "include/parts.h": """\
#ifdef __cplusplus
extern "C" {
#endif
#define API __attribute__((visibility("default")))
API int dotty_version(void);
int dotty_sides(void);
int dotty_left(void);
int dotty_right(void);
#ifdef __cplusplus
}
#endif
""",
    "src/dotty.cu": KERNEL,
    "src/left/left.c": '#include "utils.h"\nint dotty_left(void) { return SIDE + LEFT; }\n',
    "src/left/headers/utils.h": "#define LEFT 0\n",
    "src/right/right.c": '#include "dotty.h"\n#include "utils.h"\n'
    "int dotty_right(void) { return RIGHT * MORE; }\n"
    "int dotty_sides(void) { return dotty_left() + dotty_right(); }\n",
    "src/right/headers/utils.h": "#define RIGHT 1\n",
}

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit) -> Path:
    """Site-packages with a stand-in for NVIDIA's wheel: without a ``libcublas.so``, as that."""
    if list(toolkit.library_folder.glob("libcublas.so*")):
        pytest.skip("the toolkit has the library that is stood in for")
    site = tmp_path_factory.mktemp("site packages")
    library = site / "nvidia/cu13/lib/libcublas.so.13"
    library.parent.mkdir(parents=True)
    (site / "nvidia_cublas-13.1.1.3.dist-info").mkdir()
    header = site / "nvidia/cu13/include/cublas_v2.h"
    header.parent.mkdir()
    # The toolkit's own headers warn about themselves.
    header.write_text(
        'extern "C" int cublas_stand_in(void);\n'
        "__attribute__((deprecated)) int gone();\n"
        "inline int old() { return gone(); }\n"
    )
    source = site / "stand_in.c"
    source.write_text("int cublas_stand_in(void) { return 13; }\n")
    words = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", str(source), "-o", str(library)]
    subprocess.run(["g++", "-x", "c", *words], check=True)
    return site


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "dotty"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def here(effects: Effects, site: Path, told: list[str]) -> Effects:
    return replace(effects, site_folders=(site, *effects.site_folders), progress=_Told(told))


@pytest.fixture
def told() -> list[str]:
    return []


class _Told(SilentProgress):
    """Keeps what a build says."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        """Keep the note."""
        self._notes.append(text)


def change(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_plugin_of_groups_finds_the_library_of_nvidias_wheel(
    recipe: Path, here: Effects, site: Path, told: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "dist"
    report = build_recipe(BuildRequest(recipe=load_recipe(recipe)), here, out=out)
    verify_release(out, here)
    installed = Path(shutil.copytree(site, tmp_path / "installed"))
    for wheel in report.wheels:
        with zipfile.ZipFile(out / wheel.file) as archive:
            archive.extractall(installed)
    (plugin,) = installed.glob("dotty_plugins/cuda/sm_80/*.so")
    dynamic = Dynamic(Elf(open_file(plugin)))
    assert "libcublas.so.13" in dynamic.needed
    assert dynamic.runpath == "$ORIGIN/../../../nvidia/cu13/lib"
    (metadata,) = installed.glob("dotty_sm80-*/METADATA")
    assert "Requires-Dist: nvidia-cublas<14,>=13.1\n" in metadata.read_text()
    library = ctypes.CDLL(str(plugin))
    assert (library.dotty_sides(), library.dotty_version()) == (42, 13)
    assert not [text for text in told if "deprecated" in text]


@pytest.mark.usefixtures("site")
def test_missing_cuda_library_is_named_with_its_wheel(
    recipe: Path, effects: Effects, toolkit: Toolkit, tmp_path: Path
) -> None:
    bare = replace(effects, site_folders=(tmp_path,))
    request = BuildRequest(recipe=load_recipe(recipe), nvcc=(toolkit.nvcc,))
    with pytest.raises(ToolNotFoundError) as caught, plan_build(request, bare):
        pass
    assert "libcublas.so of CUDA 13.0" in str(caught.value)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pip install 'cuda-toolkit[cublas]==13.0")


def test_version_without_a_wheel_is_read_from_the_file(
    toolkit: Toolkit, site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    real = shutil.copy(site / "nvidia/cu13/lib/libcublas.so.13", folder / "libcublas.so.13.2.0.9")
    (folder / "libcublas.so").symlink_to(Path(real).name)
    old = replace(toolkit, library_folder=folder, root=tmp_path)
    (found,) = find_cuda_libraries(["cublas"], old, [])
    assert (found.soname, found.include) == ("libcublas.so.13", None)
    assert found.requirement == "nvidia-cublas<14,>=13.2"
    (folder / "libcublas.so").unlink()
    Path(real).rename(folder / "libcublas.so.13")
    assert find_cuda_libraries(["cublas"], old, [])[0].requirement == "nvidia-cublas<14,>=13"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("API int dotty_version", "int dotty_version", "the visibility is hidden", "-fvisibility"),
        ('extern "C" int dotty_v', "int dotty_v", "C++ mangles the name", 'extern "C"'),
    ],
)
def test_unexportable_symbol_fails_before_the_long_compile(
    recipe: Path, here: Effects, old: str, new: str, message: str, hint: str, tmp_path: Path
) -> None:
    name = "include/parts.h" if old.startswith("API") else "src/dotty.cu"
    change(recipe, name, old, new)
    if name.endswith(".cu"):
        change(recipe, name, '#include "dotty.h"\n', "")
    # Two targets: the probe needs only one device compile.
    change(recipe, "recipe.toml", '["sm_80"]', '["sm_80", "sm_90"]')
    with pytest.raises(StepError) as caught:
        build_recipe(BuildRequest(recipe=load_recipe(recipe)), here, out=tmp_path / "dist")
    assert "dotty_version" in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_keep_going_reports_every_failure(recipe: Path, here: Effects, tmp_path: Path) -> None:
    for name in ("src/left/left.c", "src/right/right.c"):
        (recipe / name).write_text("int broken(void) { return missing; }\n")
    request = BuildRequest(recipe=load_recipe(recipe))
    with pytest.raises(StepError) as once:
        build_recipe(request, here, out=tmp_path / "dist")
    assert str(once.value).count("error:") == 1
    with pytest.raises(StepError) as all_of_them:
        build_recipe(request, replace(here, keep_going=True), out=tmp_path / "dist")
    text = str(all_of_them.value)
    assert text.count("error:") == 2
    assert "2 steps failed; not run because of them: 1" in text.replace("\n", " ")
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


def test_a_missing_library_shows_before_anything_is_compiled(recipe: Path, here: Effects) -> None:
    change(
        recipe,
        "recipe.toml",
        "cuda-libraries",
        'libraries = ["nowhere", "cusparse"]\ncuda-libraries',
    )
    with (
        pytest.raises(RecipeError) as caught,
        plan_build(BuildRequest(recipe=load_recipe(recipe)), here),
    ):
        pass
    assert "-lnowhere" in str(caught.value)
    assert caught.value.hint == ("write cusparse in link.cuda-libraries: NVIDIA's wheels have them")


def test_core_has_the_tag_of_the_plugin_with_the_latest_glibc() -> None:
    core = ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
    later = ("manylinux_2_34_x86_64",)
    assert core_platforms(core, [later, core]) == later
    assert core_platforms(core, [core]) == core_platforms(core, []) == core
    assert core_platforms(("linux_x86_64",), [later]) == ("linux_x86_64",)


def test_release_of_some_targets_names_no_others(recipe: Path, here: Effects) -> None:
    targets = load_recipe(recipe).targets.all
    order = BuildRequest(recipe=load_recipe(recipe), targets=targets[:1], is_release=True)
    chosen = requested_recipe(order, here)
    assert chosen.targets.all == targets[:1]
    # nvcc gets the whole list, so that the bytes are the same.
    assert chosen.release == targets
    part = requested_recipe(replace(order, is_release=False), here)
    assert part.targets.all == targets
