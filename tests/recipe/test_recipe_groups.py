"""Options for some of the sources, and interface headers that include others."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from recipe_samples import MINIMAL, fill_folder, message_for

from archsplit.nvcc.cuda_libraries import CUDA_WHEELS, is_cuda_wheel
from archsplit.recipe.inputs import declared_identifiers, hash_interface
from archsplit.recipe.load import load_recipe

if TYPE_CHECKING:
    from archsplit.recipe.model import Recipe

GROUPS = """
[[source.group]]
files = ["src/a.*"]
include = ["left"]
defines = ["SIDE=1"]

[[source.group]]
files = ["src/*.cu"]
include = ["right"]
host-flags = ["-Wall"]
"""


def grouped(folder: Path, groups: str = GROUPS) -> Path:
    fill_folder(folder, MINIMAL + groups)
    for side in ("left", "right"):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / "utils.h").write_text(f'#include "{side}.inc"\n')
        (folder / side / f"{side}.inc").write_text("")
    (folder / "src/a.cu").write_text('#include "utils.h"\n')
    (folder / "src/b.cu").write_text('#include "utils.h"\n')
    return folder


def with_header(folder: Path, text: str, **others: str) -> Recipe:
    fill_folder(folder)
    (folder / "include/vec.h").write_text(text)
    for name, content in others.items():
        (folder / "include" / f"{name}.h").write_text(content)
    return load_recipe(folder)


def test_a_source_gets_the_options_of_its_groups_in_their_order(tmp_path: Path) -> None:
    source = load_recipe(grouped(tmp_path)).source
    first, second = source.files
    assert source.include_of(first) == (PurePosixPath("left"), PurePosixPath("right"))
    assert source.include_of(second) == (PurePosixPath("right"),)
    assert [group.defines for group in source.groups_of(first)] == [("SIDE=1",), ()]
    assert source.group[1].files == (first, second)


def test_headers_of_one_name_are_all_input_files(tmp_path: Path) -> None:
    names = set(map(str, load_recipe(grouped(tmp_path)).input_files))
    assert {f"{side}/{name}" for side in ("left", "right") for name in ("utils.h",)} <= names
    assert {"left/left.inc", "right/right.inc"} <= names


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            'files = ["include/*.h"]',
            "recipe.toml:19: source.group[0].files: no source matches: include/vec.h\n"
            "    hint: a group has options for sources; name them in source.files, too",
        ),
        (
            'files = ["src/a.cu"]\nnvcc-flags = ["-rdc=true"]',
            "recipe.toml:18: source.group[0]: -rdc=true is for all sources or for none\n"
            "    hint: write compile.rdc",
        ),
        (
            'files = ["src/a.cu"]\nincludes = ["include"]',
            "recipe.toml:20: source.group[0].includes: unknown key\n"
            "    hint: did you mean include?",
        ),
        ('files = ["src/c.cu"]', "source.group[0].files[0]: no file matches src/c.cu"),
        ('defines = ["A"]', "recipe.toml:18: source.group[0].files: is missing"),
    ],
)
def test_a_wrong_group_is_a_fault_with_its_line(tmp_path: Path, group: str, expected: str) -> None:
    assert expected in message_for(fill_folder(tmp_path, f"{MINIMAL}\n[[source.group]]\n{group}\n"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cudart", "leave it out: every plugin has the CUDA runtime, linked statically"),
        ("cuda", "write it in link.libraries: the driver brings it"),
        ("cublass", "did you mean cublas?"),
        ("zlib", "known here: cublas, cublasLt, nvblas, "),
    ],
)
def test_an_unknown_library_of_cuda_has_a_hint(tmp_path: Path, name: str, hint: str) -> None:
    recipe = f'{MINIMAL}\n[link]\ncuda-libraries = ["cublas", "{name}"]\n'
    message = message_for(fill_folder(tmp_path, recipe))
    assert f"link.cuda-libraries[1]: {name!r} is not a library of CUDA's wheels" in message
    assert hint in message


def test_a_word_in_a_comment_or_text_declares_nothing(tmp_path: Path) -> None:
    fill_folder(tmp_path)
    header = '/* vec_sort\n */ // vec_sort\n#define NAME "vec_sort"\nint vec_scan(int one);\n'
    (tmp_path / "include/vec.h").write_text(header)
    message = message_for(tmp_path)
    assert "interface.symbols[0]: vec_sort does not occur in include/vec.h" in message
    assert b"vec_scan" in declared_identifiers(header.encode())
    assert b"left" in declared_identifiers(b"#error don't\nint left; // it's\n")


def test_a_symbol_may_be_declared_in_an_included_header(tmp_path: Path) -> None:
    umbrella = '#include "sort.h"\n'
    recipe = with_header(tmp_path, umbrella, sort="int vec_sort(void);\n")
    assert PurePosixPath("include/sort.h") in recipe.input_files
    first = hash_interface(recipe)
    assert hash_interface(with_header(tmp_path, umbrella, sort="int vec_sort(void);\r\n")) == first
    changed = with_header(tmp_path, umbrella, sort="int vec_sort(int count);\n")
    assert hash_interface(changed) != first


def test_header_with_an_include_from_elsewhere_is_a_fault(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "inside")
    (tmp_path / "outside.h").write_text("int vec_sort(void);\n")
    (folder / "include/vec.h").write_text('#include "../../outside.h"\n')
    message = message_for(folder)
    assert "interface.header: include/vec.h:1: includes" in message
    assert "outside.h, which is outside of" in message


def test_a_faulty_source_table_hides_no_fault_of_the_interface(tmp_path: Path) -> None:
    recipe = MINIMAL.replace('"src/*.cu"', "3").replace('["vec_sort"]', '["vec_scan"]')
    assert "vec_scan does not occur" in message_for(fill_folder(tmp_path, recipe))


def test_the_wheels_of_cudas_libraries_have_the_names_of_their_toolkit() -> None:
    cublas, nccl = CUDA_WHEELS["cublasLt"], CUDA_WHEELS["nccl"]
    assert [cublas.name(12), cublas.name(13)] == ["nvidia-cublas-cu12", "nvidia-cublas"]
    assert [cublas.place(12), cublas.place(13)] == ["nvidia/cublas/lib", "nvidia/cu13/lib"]
    assert [nccl.name(12), nccl.name(13)] == ["nvidia-nccl-cu12", "nvidia-nccl-cu13"]
    assert nccl.place(13) == "nvidia/nccl/lib"
    assert cublas.install_hint("13.0.88") == "pip install 'cuda-toolkit[cublas]==13.0.*'"
    assert nccl.install_hint("12.8.1") == "pip install 'nvidia-nccl-cu12'"
    assert is_cuda_wheel("nvidia-cublas")
    assert is_cuda_wheel("nvidia-nccl-cu13")
    assert not is_cuda_wheel("numpy")
