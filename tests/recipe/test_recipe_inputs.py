from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from recipe_samples import MINIMAL, fill_folder

from archsplit.errors import RecipeError
from archsplit.recipe.inputs import (
    ReadIncludes,
    find_included_files,
    find_unlisted_inputs,
    relative_name,
)
from archsplit.recipe.load import load_recipe

if TYPE_CHECKING:
    from archsplit.recipe.model import Recipe

ALWAYS = {"LICENSE", "include/vec.h", "python/vec_sort/__init__.py", "recipe.toml"}
WITH_FOLDERS = MINIMAL.replace("[targets]", 'include = ["include"]\n[targets]')


def write(root: Path, files: dict[str, str]) -> Recipe:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return load_recipe(root)


def inputs(root: Path) -> set[str]:
    """Return the listed inputs, without those that every recipe here has."""
    recipe = load_recipe(root)
    assert list(recipe.input_files) == sorted(set(recipe.input_files))
    return {str(name) for name in recipe.input_files} - ALWAYS - {"src/a.cu", "src/b.cu"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill_folder(tmp_path / "recipe folder", WITH_FOLDERS)


def test_headers_below_the_source_folders_are_inputs(root: Path) -> None:
    names = ("src/detail/x.cuh", "include/dist/old.whl", "include/deep/y.hpp", "src/notes.txt")
    write(root, dict.fromkeys((*names, "z.hpp"), ""))
    assert inputs(root) == {"src/detail/x.cuh", "include/deep/y.hpp"}


def test_the_recipes_own_folder_may_be_an_include_folder(root: Path) -> None:
    (root / "recipe.toml").write_text(WITH_FOLDERS.replace('["include"]', '["."]'))
    write(root, {"z.hpp": "", "dist/old.whl": "", "dist/report.json": ""})
    assert inputs(root) == {"z.hpp"}


def test_libraries_below_the_library_folders_count(root: Path) -> None:
    text = WITH_FOLDERS + '[link]\nlibrary-folders = ["vendor"]\n'
    names = ("vendor/libx.a", "vendor/libx.so", "vendor/libx.so.1.2", "vendor/x.whl", "vendor/x.h")
    write(root, {"recipe.toml": text, **dict.fromkeys(names, "")})
    assert inputs(root) == {"vendor/libx.a", "vendor/libx.so", "vendor/libx.so.1.2"}


def test_includes_are_followed_within_the_folder(root: Path) -> None:
    files = {
        "src/a.cu": '#include "../common/v.h"\n  #  include <table.dat>\n#include <vector>\n',
        "common/v.h": '#pragma once\n#if OTHER\n#include "../other/w.txt"\n#endif',
        "common/unused.h": "",
        "include/table.dat": '#include "a.cu"\n',
        "other/w.txt": '#include "v.h"\n#include "../common/v.h"\n#embed "../logo.png"\n',
        "other/v.h": "\udcff",
        "logo.png": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(text.encode(errors="surrogateescape"))
    assert inputs(root) == set(files) - {"src/a.cu", "common/unused.h"}


def test_a_file_beside_the_including_one_comes_first(root: Path) -> None:
    write(root, {"src/a.cu": '#include "t.dat"\n', "src/t.dat": "", "include/t.dat": ""})
    assert inputs(root) == {"src/t.dat"}
    write(root, {"src/a.cu": "#include <t.dat>\n"})
    assert inputs(root) == {"include/t.dat"}


def test_includes_from_outside_are_refused_all_at_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "v.h").touch()
    files = {
        "src/a.cu": '\n#include "../../v.h"\n#include "../../missing.h"\n',
        "src/b.cu": f'#include "{tmp_path}/v.h"\n',
    }
    with pytest.raises(RecipeError) as caught:
        write(root, files)
    assert str(caught.value).replace(f"{root}/src/../../v.h", "X").splitlines() == [
        f"src/a.cu:2: includes X, which is outside of {root}",
        f"src/b.cu:1: includes {tmp_path}/v.h, which is outside of {root}",
        "hint: put the file into the recipe's folder: a build must not depend on the folder's"
        " place",
    ]


def test_a_link_in_the_folder_is_a_file_of_the_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored/v.dat").write_text('#include "w.dat"\n')
    (tmp_path / "vendored/w.dat").touch()
    (root / "linked").symlink_to(tmp_path / "vendored")
    write(root, {"src/a.cu": '#include "../linked/v.dat"\n'})
    assert inputs(root) == {"linked/v.dat", "linked/w.dat"}


def test_dots_behind_a_link_resolve_like_the_system(root: Path, tmp_path: Path) -> None:
    (tmp_path / "v.h").touch()
    (tmp_path / "vendored").mkdir()
    (root / "linked").symlink_to(tmp_path / "vendored")
    (root / "v.h").touch()
    assert relative_name(root, root / "linked/../v.h") is None
    assert relative_name(root, root / "src/../v.h") == PurePosixPath("v.h")
    (root / "inner").symlink_to(root / "src")
    assert relative_name(root, root / "inner/../src/a.cu") == PurePosixPath("src/a.cu")


def test_a_header_of_several_sources_is_read_once(root: Path) -> None:
    write(root, {"include/x.h": '#include "y.h"\n', "include/y.h": ""})
    for source in ("src/a.cu", "src/b.cu"):
        (root / source).write_text("#include <x.h>\n")
    known: ReadIncludes = {}
    folders = [PurePosixPath("include")]

    def found(source: str) -> set[str]:
        files = find_included_files(root, [PurePosixPath(source)], folders, known=known)
        return {*map(str, files)} - {source}

    assert found("src/a.cu") == {"include/x.h", "include/y.h"}
    (root / "include/x.h").write_text("")
    assert found("src/b.cu") == {"include/x.h", "include/y.h"}
    # Another search may find other files.
    folders.append(PurePosixPath("src"))
    assert found("src/a.cu") == {"include/x.h"}


def test_files_read_beyond_the_inputs_are_found(root: Path, tmp_path: Path) -> None:
    recipe = write(root, {"gen/t.h": "", "src/x.h": "", "v.h": ""})
    toolkit = tmp_path / "cuda"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/cuda.h").touch()
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "include").symlink_to(tmp_path / "elsewhere")
    fine = ("src/a.cu", "src/../src/x.h", f"{toolkit}/bin/../include/cuda.h")
    odd = ("src/../gen/t.h", f"{tmp_path}/elsewhere/../outside.h")
    (tmp_path / "outside.h").touch()
    assert list(find_unlisted_inputs(recipe, map(Path, (*fine, *odd)), toolkit)) == [
        "gen/t.h is included, but not by a name that is written in a source",
        f"{odd[1]} is included, which is outside of {root}",
    ]
