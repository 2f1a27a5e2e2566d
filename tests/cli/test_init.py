"""``archsplit init``: the recipe that fits a source tree or an sdist, and what is refused."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.recipe.load import load_recipe, load_split_recipe

if TYPE_CHECKING:
    from pathlib import Path

INFO = (
    "Metadata-Version: 2.4\nName: foo-dot\nVersion: 1.2\nSummary: Dots.\nLicense-Expression: MIT\n"
)
KERNEL = "__global__ void dot() {}\n"
FUNCTIONS = """\
extern "C" DOT_API int dot_one(int n) { if (n) { return 1; } return 0; }
extern "C" {
// int gone() {
__global__ void kernel() {}
static int own(int n) { return n; }
__declspec(dllexport) int dot_two(float *to) {
    for (int i = 0; i < 2; i++) { to[i] = 0; }
    return own(2);
}
}
"""
SETUP = "import subprocess\nsubprocess.run(['nvcc', 'a.cu'])\n"
CMAKE = "project(foo LANGUAGES CXX CUDA)\n"
HEADER = """\
/* int foo_gone(void); */
#ifndef FOO_H
#define FOO_API(x) \\
    int foo_macro(void);
typedef int (*foo_callback)(int code);
#ifdef __cplusplus
extern "C" {
#endif
// int foo_too(void);
FOO_EXPORT int foo_dot(const float *left, float *right,
                       foo_callback done);
const char *foo_error(void);
static inline int foo_inline(void);
#ifdef __cplusplus
}
#endif
#endif
"""
C_LIBRARY = {
    "PKG-INFO": INFO,
    "LICENSE": "MIT\n",
    "setup.py": SETUP,
    "include/foo.h": HEADER,
    "src/dot.cu": KERNEL,
    "src/help.c": "int help;\n",
    "src/foo_dot/__init__.py": "import ctypes\nctypes.CDLL('libfoo.so')\n",
    "tests/test.cu": KERNEL,
}


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def sdist(path: Path, files: dict[str, str], top: str = "foo_dot-1.2") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["init", *words])
    return code, capsys.readouterr().err


def test_a_library_of_c_functions_gets_a_recipe_of_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "new folder"
    path = sdist(tmp_path / "foo_dot-1.2.tar.gz", C_LIBRARY)
    assert main(["init", str(path), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out / 'recipe.toml'}\n"
    assert "not known: src/foo_dot/__init__.py must open the plugin" in told.err
    assert f"next: archsplit build '{out}' --out dist" in told.err
    recipe = load_recipe(out)
    assert (recipe.project.name, recipe.project.version) == ("foo-dot", "1.2")
    assert list(map(str, recipe.source.files)) == ["src/dot.cu", "src/help.c"]
    assert recipe.interface.symbols == ("foo_dot", "foo_error")
    assert (recipe.python.package, str(recipe.python.root)) == ("foo_dot", "src")
    # Without a word about visibility in the code, its functions would be hidden.
    assert recipe.compile.host_flags == ("-fvisibility=default",)
    # CMake has nothing to configure here.
    assert "cmake" not in told.err


def test_a_package_beside_setup_py_gets_its_own_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "import ctypes\nctypes.CDLL('libfoo.so')\n"
    files = {name: text for name, text in C_LIBRARY.items() if not name.startswith("src/foo_dot")}
    files |= {"foo_dot/__init__.py": "", "foo_dot/low/level.py": module, "CMakeLists.txt": CMAKE}
    files["include/foo.h"] = HEADER.replace("FOO_EXPORT", '__attribute__((visibility("default")))')
    assert main(["init", str(tree(tmp_path, files))]) == 0
    recipe = load_recipe(tmp_path)
    assert [*map(str, recipe.python.files)] == ["foo_dot/__init__.py", "foo_dot/low/level.py"]
    assert recipe.compile.host_flags == ()
    told = capsys.readouterr().err
    assert "foo_dot/low/level.py must open the plugin: `from foo_dot._archsplit import" in told
    assert "the build: `cmake -S . -B build" in told


def test_include_folders_and_macros_come_from_a_configuration(tmp_path: Path) -> None:
    files = {**C_LIBRARY, "src/more/x.h": "", "setup.cfg": "[x]\narch=sm_80\n"}
    files["PKG-INFO"] = "Name: other\nVersion: 1.0\n"
    files["src/foo_dot/__init__.py"] = ""
    files["face.py"] = "from ctypes import CDLL\nimport ctypes\nctypes.CDLL('x')\n"
    command = f"nvcc -I{tmp_path}/src/more -I/usr/include -DFAST -DN=2 -c src/dot.cu"
    commands = [{"file": "src/dot.cu", "command": command}, {"file": "a.c", "command": "gcc"}]
    files["build/compile_commands.json"] = json.dumps(commands)
    assert main(["init", str(tree(tmp_path, files))]) == 0
    text = (tmp_path / "recipe.toml").read_text()
    assert 'include = ["src/more"]' in text
    assert 'defines = ["FAST", "N=2"]' in text
    assert 'license = "FILL IN"' in text
    assert 'summary = "FILL IN"' in text
    assert 'sass = ["sm_80"]\n\n' in text
    group = {"language": "CUDA", "includes": [{"path": "include"}], "defines": [{"define": "A=1"}]}
    reply = "build/.cmake/api/v1/reply"
    tree(tmp_path, {f"{reply}/target-foo.json": json.dumps({"compileGroups": [group]})})
    assert main(["init", str(tmp_path), "--force"]) == 0
    assert 'defines = ["A=1"]' in (tmp_path / "recipe.toml").read_text()


@pytest.mark.parametrize(
    ("files", "command", "words"),
    [
        (
            {"setup.py": "from torch.utils.cpp_extension import CUDAExtension\n"},
            "python3 -m pip wheel --no-deps --no-build-isolation --wheel-dir {out} .",
            "PyTorch",
        ),
        (
            {
                "pyproject.toml": '[build-system]\nbuild-backend = "scikit_build_core.build"\n',
                "CMakeLists.txt": CMAKE + "FetchContent_Declare(pybind11 GIT_TAG v3)\n"
                'set(CMAKE_CUDA_ARCHITECTURES "80-real;90")\n'
                "set(CMAKE_CUDA_COMPILER /usr/local/cuda-12/bin/nvcc)\n",
                "src/bind.cpp": "#include <pybind11/pybind11.h>\n",
                "src/fast.pyx": "",
            },
            "python3 -m pip wheel --no-deps --wheel-dir {out} .",
            "name sm_80, sm_90, compute_90,",
        ),
        (
            {"setup.py": SETUP},
            'sh -c \'NVCC_APPEND_FLAGS="$ARCHSPLIT_GENCODE" python3 -m pip wheel --no-deps'
            " --wheel-dir {out} .'",
            'sass = ["sm_75"',
        ),
        (
            {"Makefile": "a.so:\n\tnvcc -shared a.cu\n", "src/hip.cpp": "#include <hip/hip.h>\n"},
            "sh -c 'cmake -S . -B {out}/build -DCMAKE_BUILD_TYPE=Release && cmake --build"
            " {out}/build'",
            "FILL IN: no pyproject.toml",
        ),
        (
            {"setup.py": SETUP, "b.py": "ctypes.CDLL('x')\n", "src/b.cu": FUNCTIONS},
            'sh -c \'NVCC_APPEND_FLAGS="$ARCHSPLIT_GENCODE" python3 -m pip wheel --no-deps'
            " --wheel-dir {out} .'",
            "no header has functions of C",
        ),
        (
            {"setup.py": SETUP, "b.py": "ctypes.CDLL('x')\n", "src/foo.h": HEADER},
            'sh -c \'NVCC_APPEND_FLAGS="$ARCHSPLIT_GENCODE" python3 -m pip wheel --no-deps'
            " --wheel-dir {out} .'",
            "the tree has no name and no version and no license text (a file LICENSE or COPYING)",
        ),
        ({"setup.py": ""}, "python3 -m pip wheel --no-deps --wheel-dir {out} .", "ctypes or cffi"),
        (
            {"setup.py": "setup(cffi_modules=['b.py:ffi'])\n"},
            "python3 -m pip wheel --no-deps --wheel-dir {out} .",
            "Python calls it by cffi's API mode",
        ),
        (
            {"setup.py": "import torch.utils.cpp_extension\nx = ['a.cu', 'csrc/gone.cu']\n"},
            "python3 -m pip wheel --no-deps --no-build-isolation --wheel-dir {out} .",
            "PyTorch",
        ),
    ],
)
def test_all_others_get_their_own_build(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    command: str,
    words: str,
) -> None:
    assert main(["init", str(tree(tmp_path, {"src/a.cu": KERNEL, **files}))]) == 0
    recipe = load_split_recipe(tmp_path)
    assert recipe is not None
    assert recipe.source.build == command
    assert words in (tmp_path / "recipe.toml").read_text()
    told = capsys.readouterr().err
    if "the tree has no name" in words:
        assert "better: the tree has no name and no version and no license text" in told
    if "FetchContent" in files.get("CMakeLists.txt", ""):
        assert "the network during the build: CMakeLists.txt fetches other sources" in told
    if "no header" in words:
        assert "no header declares dot_one, dot_two; with one that does" in told
    if "CMakeLists.txt" in files:
        assert "CMakeLists.txt: set(CMAKE_CUDA_COMPILER" in told
        assert recipe.targets is None
    if "Makefile" in files:
        assert "the command that makes a wheel: fill in source.build" in told
        assert "which sources are for CUDA and which for HIP" in told
    if "gone.cu" in files.get("setup.py", ""):
        assert "the place of csrc/gone.cu: a build file names it" in told
        assert "install one with CUDA in this environment first" in told
    if not files.get("setup.py", "x"):
        assert "the compiler of src/a.cu: no build file starts nvcc" in told


SCIKIT = '[build-system]\nrequires = []\nbuild-backend = "scikit_build_core.build"\n'
MODULE = "pybind11_add_module(_foo MODULE foo.cpp)\ninstall(FILES ${HERE}/foo.cmake)\n"
NOT_INSTALLED = "own build: python/CMakeLists.txt builds the module _foo, and no install() has it"
NO_LIBRARY = "which the build does not make: no file does"
ONLY_CMAKE = "which the build does not make: CMakeLists.txt does, and setup.py does not start it"
LINKED = "setup(ext_modules=[Extension('foo', ['a.cpp'], libraries=['m', 'foo_dot'])])\n"
EMPTY = "setup.py compiles nothing: it names no ext_modules"


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"pyproject.toml": SCIKIT, "python/CMakeLists.txt": MODULE}, NOT_INSTALLED),
        ({"setup.py": LINKED}, NO_LIBRARY),
        ({"setup.py": LINKED, "CMakeLists.txt": f"{CMAKE}add_library(foo_dot a.cu)\n"}, ONLY_CMAKE),
        (
            {
                "setup.py": "import setuptools\nsetuptools.setup(cffi_modules=['b.py:ffi'])\n",
                "CMakeLists.txt": f"{CMAKE}cuda_add_library(cuFoo a.cu)\n",
                "b.py": "ffi.set_source('_foo', '', libraries=['cuFoo'])\n",
            },
            "b.py links the project's own cuFoo (-lcuFoo)",
        ),
        ({"setup.py": "COMMAND = ['nvcc']\nsetup(name='foo')\n"}, f"{EMPTY}; name the extension"),
        (
            {"setup.py": "setup(name='foo')\n", "src/Makefile": "all:\n\tnvcc a.cu\n"},
            f"{EMPTY}, and nothing starts src/Makefile",
        ),
        (
            {"pyproject.toml": "[build-system]\nbuild-backend = 'setuptools.build_meta'\n"},
            "pyproject.toml compiles nothing: it names no ext_modules; name",
        ),
        (
            {"setup.py": "run(['cmake', '.'])\nsetup(ext_modules=[X('foo')])\n"},
            "setup.py starts cmake, and the project does not require it",
        ),
        ({"CMakeLists.txt": f"{CMAKE}add_library(foo gone.cu)\n"}, "the place of gone.cu"),
    ],
)
def test_a_build_that_makes_no_wheel_that_works_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], fault: str
) -> None:
    assert main(["init", str(tree(tmp_path, {"PKG-INFO": INFO, "src/a.cu": KERNEL, **files}))]) == 0
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": SCIKIT, "CMakeLists.txt": f"{MODULE}install(TARGETS x _foo LIBRARY)\n"},
        {"pyproject.toml": SCIKIT, "CMakeLists.txt": f"{MODULE}install(TARGETS ${{ALL}})\n"},
        {"pyproject.toml": SCIKIT, "CMakeLists.txt": f"{MODULE}# $<TARGET_FILE:_foo>\n"},
        {"pyproject.toml": SCIKIT, "CMakeLists.txt": f"{MODULE}# LIBRARY_OUTPUT_DIRECTORY\n"},
        {"setup.py": "setup(ext_modules=[Extension('foo', ['a.cpp'], libraries=['m'])])\n"},
        {"setup.py": f"run(['make'])\n{LINKED}"},
        {"setup.py": "setup(**options)\n"},
        {"setup.py": "this is no Python\n"},
        {"setup.py": "setup(name='foo')\n", "setup.cfg": "[options]\next_modules = foo\n"},
        {
            "setup.py": "run(['cmake', '.'])\nsetup(cmdclass={})\n",
            "pyproject.toml": "[build-system]\nrequires = ['setuptools', 'cmake>=3']\n",
        },
        {"CMakeLists.txt": f"{CMAKE}add_executable(bench bench/gone.cu ${{DIR}}/gone.cu)\n"},
    ],
)
def test_a_build_that_may_work_gets_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    # A target that every toolkit knows: this is about the build files.
    kernel = {"PKG-INFO": INFO, "src/a.cu": KERNEL, "flags.mk": "-arch=sm_90\n"}
    assert main(["init", str(tree(tmp_path, {**kernel, **files}))]) == 0
    told = capsys.readouterr().err
    assert "own build:" not in told
    assert "the place of" not in told


@pytest.mark.nvcc
def test_targets_that_the_toolkit_lacks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"setup.py": "FLAGS = ['-gencode=arch=compute_37,code=sm_37', 'sm_90']\nsetup(**all)\n"}
    assert main(["init", str(tree(tmp_path, {"src/a.cu": KERNEL, **files}))]) == 0
    told = capsys.readouterr().err
    assert re.search(r"own build: CUDA [\d.]+ \(.*\) can't compile for sm_37: take them out", told)


def test_init_needs_no_toolkit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.build.context.find_toolkit", lambda *_: ())
    files = {"setup.py": "FLAGS = ['sm_37']\nsetup(**all)\n", "src/a.cu": KERNEL}
    assert main(["init", str(tree(tmp_path, files))]) == 0
    assert "own build:" not in capsys.readouterr().err


def test_a_build_without_cuda_sources_in_the_tree(tmp_path: Path) -> None:
    lists = "if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)\nset(CMAKE_CUDA_ARCHITECTURES 80-virtual)\n"
    files = {"setup.py": "", "CMakeLists.txt": f"{lists}endif()\nenable_language(CUDA)\n"}
    assert main(["init", str(tree(tmp_path, files))]) == 0
    text = (tmp_path / "recipe.toml").read_text()
    assert "its CUDA sources are not in the tree" in text
    assert 'ptx = ["compute_80"]' in text


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        ({"a.py": ""}, "has no CUDA sources (*.cu), and no build file", "archsplit split WHEEL"),
        (
            {"foo/load.py": "import ctypes\nctypes.CDLL('libfoo.so')\n"},
            "foo/load.py opens a library that is not here either",
            "take the source tree of the project's repository",
        ),
        ({"tests/a.cu": ""}, "but 1 in tests, examples or bundled projects", "archsplit split"),
        ({"a.hip": ""}, "has HIP sources for AMD's GPUs, and no CUDA", "rocm-kpack"),
        (
            {"a.cu": "", "a.py": "from pycuda.compiler import SourceModule\n"},
            "compiles its kernels at run time (PyCUDA): its wheel has no device code",
            "there is nothing to split",
        ),
        (
            {"a.cu": "", "a.py": "from torch.utils.cpp_extension import CUDA_HOME, load\n"},
            "compiles its kernels at run time (PyTorch's cpp_extension)",
            "there is nothing to split",
        ),
        (
            {"a.so": "", "b/a.so": "", "b/b.so": "", "b/c.so": "", "c/.venv/d.so": ""},
            "has no CUDA sources (*.cu), but built libraries: a.so, b/a.so, b/b.so and 1 more",
            "pip wheel --no-deps --wheel-dir fat",
        ),
        (
            {"a.cu": "", "a.py": "import cupy as cp\ncp.RawModule(code='')\n"},
            "compiles its kernels at run time (CuPy)",
            "there is nothing to split",
        ),
    ],
)
def test_a_project_without_device_code_is_refused_with_what_was_seen(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    message: str,
    hint: str,
) -> None:
    code, text = refusal(capsys, str(tree(tmp_path, files)))
    assert code == 17
    assert message in text
    assert hint in text
    assert not (tmp_path / "recipe.toml").exists()


def test_what_is_no_project_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.txt": "no archive", "a.tar.gz": "no archive", "a.whl": "", "recipe.toml": ""}
    tree(tmp_path, {**files, "b.cu": KERNEL})
    for name, words in (
        ("gone", "pip download --no-deps --no-binary gone gone gets"),
        ("gone.tar.gz", "--no-binary gone gone gets"),
        ("gone-1.0.tar.gz", "--no-binary gone gone==1.0 gets"),
        ("a.txt", "is no source tree and no sdist"),
        ("a.tar.gz", "can't be unpacked: file could not be opened successfully\n"),
        ("a.whl", "archsplit split"),
    ):
        code, text = refusal(capsys, str(tmp_path / name), "--out", str(tmp_path / "out"))
        assert (code, words in text) == (14, True), text
    bare = sdist(tmp_path / "b.tar.gz", {"a.cu": KERNEL})
    code, text = refusal(capsys, str(bare), "--out", str(tmp_path / "out"))
    assert (code, "no folder with a PKG-INFO" in text) == (14, True)
    assert not (tmp_path / "out").exists()
    assert refusal(capsys, str(tmp_path))[0] == 10
    assert refusal(capsys, str(tmp_path), "--out", "x")[0] == 2
    assert refusal(capsys, str(bare), "--out", str(tmp_path))[0] == 10


def test_an_sdist_that_is_refused_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "foo-1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("foo-1/PKG-INFO", INFO)
    assert refusal(capsys, str(path), "--out", str(tmp_path / "new" / "out"))[0] == 17
    assert [one.name for one in tmp_path.iterdir()] == ["foo-1.zip"]
