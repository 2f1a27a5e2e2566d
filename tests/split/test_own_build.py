"""A project's own build with the compiler wrapper in nvcc's place: setuptools and CMake."""

from __future__ import annotations

import shlex
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import NothingToDoError, ToolFailedError, ToolNotFoundError
from archsplit.formats.device_pack import PACK_FILE, read_pack
from archsplit.formats.reader import Window
from archsplit.recipe.load import load
from archsplit.recipe.prebuilt import SplitRecipe
from archsplit.release.context import Effects
from archsplit.release.verify import verify_release
from archsplit.split.from_recipe import FAT_FOLDER, split_by_recipe
from archsplit.split.own_build import read_calls, wrapped_toolkit
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

PYTHON = shlex.quote(sys.executable)
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "ownbuild"
version = "1.0"
"""
# Build frontends hide packages from the programs that they start: here, as pip does.
HIDDEN = "import sys\nsys.path[:] = [one for one in sys.path if 'site-packages' not in one]\n"
SETUP = """\
import os
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class Kernels(build_ext):
    def get_ext_filename(self, name):
        return name.replace(".", "/") + ".so"

    def build_extension(self, extension):
        out = Path(self.get_ext_fullpath(extension.name)).absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        build(out)


def build(out):
    env = {**os.environ, "PYTHONPATH": str(Path("hidden").absolute())}
    nvcc = os.environ["CUDA_HOME"] + "/bin/nvcc"
    flags = [*os.environ["ARCHSPLIT_GENCODE"].split(), "-Xcompiler=-fPIC"]
    made = out.with_suffix(".o")
    subprocess.run([nvcc, *flags, "-c", "kernel.cu", "-o", made], env=env, check=True)
    subprocess.run([nvcc, *flags, "-shared", made, "-o", out], env=env, check=True)
    made.unlink()


setup(
    packages=["ownbuild"],
    ext_modules=[Extension("ownbuild.libown", ["kernel.cu"])],
    cmdclass={"build_ext": Kernels},
)
"""
WITH_CMAKE = """\
def build(out):
    subprocess.run(["cmake", "-S", ".", "-B", "build/cmake"], check=True)
    subprocess.run(["cmake", "--build", "build/cmake"], check=True)
    out.write_bytes(Path("build/cmake/libown.so").read_bytes())


setup("""
LISTS = """\
cmake_minimum_required(VERSION 3.20)
project(own LANGUAGES CXX CUDA)
add_library(own SHARED kernel.cu)
"""
KERNEL = """\
__global__ void scale(float *values) { values[threadIdx.x] *= 2; }
extern "C" int own_scale(float *values) {
    scale<<<1, 32>>>(values);
    return cudaGetLastError();
}
"""
FRONTENDS = (
    "pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir {out} .",
    "build --wheel --no-isolation --outdir {out}",
    "uv build --wheel --offline --no-build-isolation --out-dir {out}",
)
TARGETS = '[targets]\nsass = ["sm_80"]\nptx = ["compute_80"]\n'

pytestmark = pytest.mark.nvcc


class Told(SilentProgress):
    """Keeps what a build says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep the note."""
        self.notes.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a cache")


@pytest.fixture
def effects(
    environment: dict[str, str], small_toolkit: Toolkit, cache: Path, told: Told
) -> Effects:
    """With programs beside this Python first, and a cache that the tests share."""
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    around = {**environment, "PATH": path, "ARCHSPLIT_CACHE_DIR": str(cache)}
    around |= {"ARCHSPLIT_CACHE": "on", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    around["CUDA_HOME"] = str(small_toolkit.root)
    around["UV_CACHE_DIR"] = str(cache.with_name("uv"))  # HOME may be read-only
    return Effects(progress=told, environment=around, jobs=2)


def project(folder: Path, command: str, **files: str) -> SplitRecipe:
    """Write a project with a recipe that builds it."""
    texts = {
        "pyproject.toml": PROJECT,
        "setup.py": SETUP,
        "kernel.cu": KERNEL,
        "ownbuild/__init__.py": "",
        "hidden/sitecustomize.py": HIDDEN,
        "recipe.toml": f'[source]\nbuild = """{command}"""\n{TARGETS}',
        **files,
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    recipe = load(folder)
    assert isinstance(recipe, SplitRecipe)
    return recipe


def test_frontends_compile_once_and_the_fat_wheel_is_kept(
    tmp_path: Path, effects: Effects, told: Told
) -> None:
    for number, frontend in enumerate(FRONTENDS):
        out = tmp_path / f"out {number}"
        shutil.rmtree(tmp_path / "project/build", ignore_errors=True)
        report = split_by_recipe(
            project(tmp_path / "project", f"{PYTHON} -m {frontend}"), effects, out=out
        )
        assert {wheel.label for wheel in report.wheels} == {"core", "cc80", "ptx"}
        assert verify_release(out, effects).version == "1.0"
        assert [path.name[:13] for path in (out / FAT_FOLDER).iterdir()] == ["ownbuild-1.0-"]
        cached = f"{min(number, 1)} from the cache"
        assert told.notes[0] == f"the compiler wrapper ran 1 compilation, {cached}"
        told.notes.clear()


def test_cmake_with_its_default_generator_uses_the_wrapper(
    tmp_path: Path, effects: Effects, told: Told
) -> None:
    if shutil.which("make", path=effects.environment["PATH"]) is None:
        pytest.skip("make, CMake's default, is missing")
    setup = SETUP[: SETUP.index("def build(")] + WITH_CMAKE + SETUP.partition("setup(\n")[2]
    files = {"setup.py": setup, "CMakeLists.txt": LISTS}
    recipe = project(tmp_path / "project", f"{PYTHON} -m {FRONTENDS[0]}", **files)
    report = split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert {wheel.label for wheel in report.wheels} == {"core", "cc80", "ptx"}
    assert "the compiler wrapper ran" in told.notes[0]


def test_build_bypassing_the_wrapper_is_reported(
    tmp_path: Path, effects: Effects, told: Told, toolkit: Toolkit
) -> None:
    setup = SETUP.replace('os.environ["CUDA_HOME"] + "/bin/nvcc"', repr(str(toolkit.nvcc)))
    text = f'[source]\nbuild = """{PYTHON} -m {FRONTENDS[0]}"""\n[targets]\nsass = ["sm_80"]\n'
    files = {"setup.py": setup, "recipe.toml": text}
    recipe = project(tmp_path / "project", "", **files)
    split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert told.notes[0].startswith("the build compiled nothing through the compiler wrapper")
    # A pack without PTX has its CUDA version from the machine code, where ptxas has noted it.
    (wheel,) = (tmp_path / "out").glob("ownbuild_cc80-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(PACK_FILE))
        pack = read_pack(Window(archive.read(name), source=name))
    is_noted = toolkit.cuda_version >= 13000
    assert pack.descriptor.cuda_version == (toolkit.cuda_version if is_noted else 11000)


def test_failed_build_hints_at_unsupported_targets(tmp_path: Path, effects: Effects) -> None:
    project(tmp_path / "project", f"{PYTHON} -m {FRONTENDS[0]}")
    (tmp_path / "project/recipe.toml").write_text(
        f'[source]\nbuild = """{PYTHON} -m {FRONTENDS[0]}"""\n[targets]\nsass = ["sm_35"]\n'
    )
    recipe = load(tmp_path / "project")
    assert isinstance(recipe, SplitRecipe)
    with pytest.raises(ToolFailedError) as caught:
        split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert caught.value.hint is not None
    assert "can't compile for\n  sm_35" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_build_without_cuda_is_an_error(tmp_path: Path, effects: Effects, told: Told) -> None:
    setup = SETUP.replace("check=True", "check=False").replace("made.unlink()", "out.touch()")
    project(tmp_path / "project", f"{PYTHON} -m {FRONTENDS[0]}", **{"setup.py": setup})
    (tmp_path / "project/recipe.toml").write_text(
        f'[source]\nbuild = """{PYTHON} -m {FRONTENDS[0]}"""\n[targets]\nsass = ["sm_35"]\n'
    )
    recipe = load(tmp_path / "project")
    assert isinstance(recipe, SplitRecipe)
    with pytest.raises(NothingToDoError, match=r"succeeded, but \{out\}/ownbuild") as caught:
        split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert "run the command by hand" in str(caught.value.hint)
    assert "can't compile for\n  sm_35" in told.notes[-1]
    assert not (tmp_path / "out").exists()


def test_the_links_have_the_libraries_of_wheels(
    tmp_path: Path, effects: Effects, toolkit: Toolkit
) -> None:
    major = toolkit.cuda_version // 1000
    wheel = tmp_path / "site/nvidia" / (f"cu{major}" if major >= 13 else "cublas")
    names = ("include/cublas_v2.h", "lib/libcublas.so.13", "lib/libcudart_static.a")
    for name in names:
        (wheel / name).parent.mkdir(parents=True, exist_ok=True)
        (wheel / name).write_text(name)

    def links() -> Path:
        site = (tmp_path / "site",)
        return wrapped_toolkit(toolkit, effects.environment, site_folders=site, private=tmp_path)

    made = links()
    assert (made / "include/cublas_v2.h").read_text() == names[0]
    # A linker looks for the name without a version.
    assert (made / "lib64/libcublas.so").read_text() == names[1]
    static = toolkit.library_folder / "libcudart_static.a"
    assert (made / "lib64/libcudart_static.a").samefile(static)
    assert (made / "include/cuda_runtime.h").is_file()
    assert links() == made
    (wheel / "lib/libcufft.so.12").write_text("")
    assert (links() / "lib64/libcufft.so").is_file()


def test_the_wrapper_can_be_left_out(tmp_path: Path, effects: Effects, told: Told) -> None:
    script = (
        "import os, pathlib; pathlib.Path('seen').write_text(os.environ.get('CUDACXX', 'none'))"
    )
    text = f'[source]\nwrapper = false\nwheel = "*.whl"\nbuild = """{PYTHON} -c "{script}" """\n'
    (tmp_path / "recipe.toml").write_text(text)
    recipe = load(tmp_path)
    assert isinstance(recipe, SplitRecipe)
    with pytest.raises(ToolFailedError, match="no file matches"):
        split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert (tmp_path / "seen").read_text() == "none"
    assert told.notes == []


def test_without_nvcc_the_command_runs_as_it_is(
    tmp_path: Path, effects: Effects, told: Told
) -> None:
    (tmp_path / "recipe.toml").write_text(f'[source]\nbuild = "{PYTHON} -c pass"\n')
    recipe = load(tmp_path)
    assert isinstance(recipe, SplitRecipe)
    bare = replace(effects, site_folders=(), environment={**effects.environment, "CUDA_HOME": ""})
    with pytest.raises(ToolFailedError, match="no file matches"):
        split_by_recipe(recipe, bare, out=tmp_path / "out")
    assert told.notes == ["no usable nvcc: the build runs without the compiler wrapper"]
    with pytest.raises(ToolNotFoundError, match="no usable nvcc"):
        split_by_recipe(recipe, bare, out=tmp_path / "out", nvcc=tmp_path / "nvcc")


def test_the_record_counts_calls_and_reasons(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    assert [line[:28] for line in read_calls(calls).lines()] == ["the build compiled nothing t"]
    calls.write_text(
        "compiled\ncached\nnvcc it reads standard input\nnvcc it reads standard input\n"
    )
    assert list(read_calls(calls).lines()) == [
        "the compiler wrapper ran 2 compilations, 1 from the cache",
        "runs of nvcc itself: 2: it reads standard input",
    ]


@pytest.mark.download
@pytest.mark.parametrize(
    ("name", "compilations", "packs"),
    [
        ("cuda-kernels", 2, {"cc80", "cc90"}),
        # Two of the four are CMake's own tests of the compiler.
        ("custc", 4, {"cc75", "cc80", "cc86", "cc89", "cc90", "ptx"}),
    ],
)
def test_a_project_of_the_index_is_built_from_its_sdist(
    tmp_path: Path, effects: Effects, told: Told, name: str, compilations: int, packs: set[str]
) -> None:
    recipe = load(Path(__file__).parents[2] / "recipes" / name)
    assert isinstance(recipe, SplitRecipe)
    report = split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert {wheel.label for wheel in report.wheels} == {"core", *packs}
    assert told.notes[0].startswith(f"the compiler wrapper ran {compilations} compilations")
