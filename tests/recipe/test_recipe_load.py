from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from recipe_samples import MINIMAL, fill_folder, message_for

from archsplit.errors import InputError, UsageError
from archsplit.recipe.inputs import hash_interface
from archsplit.recipe.load import load, load_recipe
from archsplit.recipe.model import Author, Recipe
from archsplit.recipe.single_build import check_cuda_major, select_cuda_major

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY_UID = 65534

FULL = """\
[project]
name = "Vec.Sort"
version = "1.2.3rc1"
summary = "Sorts."
license = "apache-2.0"
license-files = ["LICENSE"]
readme = "README.md"
requires-python = ">= 3.11"
authors = [{ name = "A. Person" }, { email = "b@example.org" }]
keywords = ["cuda", "sort"]
classifiers = ["Environment :: GPU :: NVIDIA CUDA"]
dependencies = ["numpy >= 2"]

[project.urls]
Homepage = "https://example.org"

[source]
files = ["src/*.cu"]
include = ["include", "."]
defines = ["NDEBUG", "BLOCK=256"]

[compile]
std = "c++20"
nvcc-flags = ["-lineinfo", "-O3"]
host-flags = ["-Wall"]
host-pass = "per-target"

[link]
library = "libother.so"
libraries = ["pthread"]
library-folders = ["src"]

[targets]
sass = ["sm_90a", "sm_80"]
ptx = ["compute_120"]
manylinux = "2_28"

[interface]
header = "include/vec.h"
symbols = ["vec_sort"]

[python]
package = "vec_sort"
root = "python"
files = ["vec_sort/*.py"]

[install]
mode = "meta"
"""


def test_the_least_recipe_gets_its_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(fill_folder(tmp_path))
    assert recipe.root == tmp_path.resolve()
    assert recipe.file == PurePosixPath("recipe.toml")
    assert recipe.project.requires_python == ">=3.10"
    assert (recipe.project.readme, recipe.project.readme_type) == (None, "")
    assert recipe.source.files == (PurePosixPath("src/a.cu"), PurePosixPath("src/b.cu"))
    assert (recipe.compile.std, recipe.compile.host_pass) == ("c++17", "once")
    assert not recipe.compile.relocatable
    assert recipe.link.library == "libvec_sort.so"
    assert recipe.python.package == "vec_sort"
    assert recipe.python.files == (PurePosixPath("vec_sort/__init__.py"),)
    assert recipe.install.mode == "core"
    assert [str(target) for target in recipe.targets.all] == ["sm_80", "sm_90"]


def test_every_key_is_read(tmp_path: Path) -> None:
    recipe = load_recipe(fill_folder(tmp_path, FULL) / "recipe.toml")
    project = recipe.project
    assert (project.name, project.version, project.license) == (
        "vec-sort",
        "1.2.3rc1",
        "Apache-2.0",
    )
    assert (project.requires_python, project.dependencies) == (">=3.11", ("numpy>=2",))
    assert project.authors == (Author(name="A. Person"), Author(email="b@example.org"))
    assert (str(project.readme), project.readme_type) == ("README.md", "text/markdown")
    assert project.urls == {"Homepage": "https://example.org"}
    assert recipe.source.include == (PurePosixPath("include"), PurePosixPath())
    assert recipe.source.defines == ("NDEBUG", "BLOCK=256")
    assert recipe.compile.nvcc_flags == ("-lineinfo", "-O3")
    assert recipe.compile.host_pass == "per-target"
    assert recipe.link.library == "libother.so"
    assert recipe.link.library_folders == (PurePosixPath("src"),)
    assert [str(target) for target in recipe.targets.all] == ["sm_80", "sm_90a", "compute_120"]
    assert recipe.targets.manylinux == "2_28"
    assert recipe.install.mode == "meta"


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("rdc = true", ()),
        ('nvcc-flags = ["-O2", "-rdc=true"]', ("-O2",)),
        ('nvcc-flags = ["-dc"]\nrdc = true', ()),
    ],
)
def test_relocatable_device_code_is_asked_for_by_key_or_flag(
    tmp_path: Path, key: str, others: tuple[str, ...]
) -> None:
    recipe = load_recipe(fill_folder(tmp_path, f"{MINIMAL}\n[compile]\n{key}\n"))
    assert recipe.compile.relocatable
    assert recipe.compile.other_flags == others


def test_interface_hash_covers_only_the_header_and_the_symbols(tmp_path: Path) -> None:
    header = "int vec_sort(void);\nint vec_scan(void);\n"
    two = MINIMAL.replace('["vec_sort"]', '["vec_sort", "vec_scan"]')
    fill_folder(tmp_path, two)
    (tmp_path / "include/vec.h").write_text(header)
    first = hash_interface(load_recipe(tmp_path))
    assert len(first) == 32

    (tmp_path / "include/vec.h").write_text(header.replace("\n", "\r\n"), newline="")
    (tmp_path / "recipe.toml").write_text(
        MINIMAL.replace('["vec_sort"]', '["vec_scan", "vec_sort"]').replace("1.2.3", "2.0")
    )
    assert hash_interface(load_recipe(tmp_path)) == first

    (tmp_path / "recipe.toml").write_text(MINIMAL)
    assert hash_interface(load_recipe(tmp_path)) != first
    (tmp_path / "recipe.toml").write_text(two)
    (tmp_path / "include/vec.h").write_text(header + "\n")
    assert hash_interface(load_recipe(tmp_path)) != first


def test_five_mistakes_are_reported_at_once_each_with_line_key_and_hint(tmp_path: Path) -> None:
    recipe = MINIMAL.replace('"1.2.3"', '"1.2.3+cu13"').replace("summary", "sumary")
    recipe = recipe.replace("src/*.cu", "src/*.cpp").replace('"sm_90"', '"sm90"')
    recipe = recipe.replace('["vec_sort"]', '["vec_sort", "vec_scan"]')
    assert (
        message_for(fill_folder(tmp_path, recipe))
        == """\
recipe.toml has 6 faults
recipe.toml:1: project.summary: is missing
recipe.toml:3: project.version: '1.2.3+cu13' has a local part, which the public index refuses
    hint: write 1.2.3; the CUDA version belongs in the project's name
recipe.toml:4: project.sumary: unknown key
    hint: did you mean summary?
recipe.toml:9: source.files[0]: no file matches src/*.cpp
    hint: it is looked for in FOLDER
recipe.toml:12: targets.sass[0]: 'sm90' is not a target
    hint: did you mean sm_90?
recipe.toml:16: interface.symbols[1]: vec_scan does not occur in include/vec.h
    hint: declare it there or in a header that it includes, or leave it out"""
    )


def test_faults_in_one_table_hide_none_in_another(tmp_path: Path) -> None:
    message = message_for(fill_folder(tmp_path, 'link = 3\n[porject]\n[python]\nfiles = ["x.py"]'))
    assert (
        message
        == """\
recipe.toml has 7 faults
recipe.toml:1: interface: the table is missing
    hint: write [interface] with at least header, symbols
recipe.toml:1: link: must be a table, not 3
recipe.toml:1: project: the table is missing
    hint: write [project] with at least name, version, summary, license, license-files
recipe.toml:1: source: the table is missing
    hint: write [source] with at least files
recipe.toml:1: targets: names no target
    hint: write, for example, sass = ["sm_90"]
recipe.toml:2: porject: unknown key
    hint: did you mean project?
recipe.toml:4: python.files[0]: no file matches x.py
    hint: it is looked for in python"""
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"[project\n",
            "recipe.toml:1:9: not TOML: Expected ']' at the end of a table declaration",
        ),
        (b"a = 1\na = 2\n", "recipe.toml:2:6: not TOML: Cannot overwrite a value"),
        (b"a = [", "recipe.toml: not TOML: Invalid value (at end of document)"),
        (b"a = 1\n# \xff\n", "recipe.toml:2: not UTF-8: invalid start byte at byte 8"),
        (b"a = " + b"[" * 9999, "recipe.toml: lists or tables are nested too deep"),
        (b"a = " + b"1" * 9999, "recipe.toml: not TOML: Exceeds the limit"),
    ],
)
def test_recipe_with_wrong_toml_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    assert message_for(tmp_path).startswith(message)


def test_a_missing_recipe_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no recipe\.toml\nhint: archsplit init "):
        load_recipe(tmp_path)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Give up root's right to read everything, where the tests have it."""
    user = os.geteuid()
    os.seteuid(user or NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(user)


def test_unreadable_folders_are_faults() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        recipe = MINIMAL.replace("src/*.cu", "src/**/*.cu")
        recipe = recipe.replace("[targets]", 'include = ["src/closed/inner"]\n[targets]')
        fill_folder(folder, recipe)
        (folder / "src/closed/inner").mkdir(parents=True)
        (folder / "src/closed").chmod(0)
        with unprivileged():
            message = message_for(folder)
        (folder / "src/closed").chmod(0o700)
        assert "source.files[0]: can't list src/closed: Permission denied" in message
        assert "source.include[0]: the folder src/closed/inner is not there" in message


def test_a_recipe_in_a_closed_folder_is_an_input_error() -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "closed/recipe").mkdir(parents=True)
        Path(name).chmod(0o755)
        (Path(name) / "closed").chmod(0)
        with unprivileged(), pytest.raises(InputError, match="Permission denied"):
            load_recipe(Path(name) / "closed/recipe")
        (Path(name) / "closed").chmod(0o700)


def test_the_recipes_of_this_repository_have_no_faults() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    for file in sorted(folder.glob("*/recipe.toml")):
        recipe = load(file)
        if isinstance(recipe, Recipe):
            assert recipe.project.name == file.parent.name


def test_project_name_with_cuda_major_is_refused_if_majors_are_listed(tmp_path: Path) -> None:
    recipe = MINIMAL.replace('"vec-sort"', '"vec-sort-cu12"')
    package = '\n[python]\npackage = "vec_sort"\n'
    fill_folder(tmp_path, f"{recipe}{package}\n[cuda]\nmajors = [12, 13]\n")
    assert "vec-sort-cu12 has the major of CUDA in it, and [cuda] adds one" in message_for(tmp_path)
    fill_folder(tmp_path, f"{MINIMAL}\n[cuda]\nmajors = [12, 12]\n")
    assert "cuda.majors" in message_for(tmp_path)
    fill_folder(tmp_path, f"{MINIMAL}\n[cuda]\nmajors = [12, 13]\n")
    assert load_recipe(tmp_path).cuda.majors == (12, 13)


def test_a_major_is_one_of_the_recipe(tmp_path: Path) -> None:
    plain = load_recipe(fill_folder(tmp_path))
    check_cuda_major(plain, None)
    with pytest.raises(UsageError, match=r"not for CUDA 12: its cuda\.majors are not set"):
        check_cuda_major(plain, 12)
    both = load_recipe(fill_folder(tmp_path, f"{MINIMAL}\n[cuda]\nmajors = [12, 13]\n"))
    check_cuda_major(both, 13)
    with pytest.raises(UsageError, match="is for CUDA 12, 13, and makes a release for each"):
        check_cuda_major(both, None)
    with pytest.raises(UsageError, match=r"not for CUDA 11: its cuda\.majors are 12, 13"):
        check_cuda_major(both, 11)


def test_a_major_has_the_targets_of_its_toolkit(tmp_path: Path) -> None:
    whole = load_recipe(fill_folder(tmp_path))
    target = whole.targets.sass[0]
    part = select_cuda_major(whole, 12, {target})
    assert (part.project.name, part.python.package) == ("vec-sort-cu12", "vec_sort")
    assert part.targets.all == part.release == (target,)
