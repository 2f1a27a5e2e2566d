"""Every kind of fault, one at a time, in the words that a person reads."""

from __future__ import annotations

import datetime
import json
import math
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_samples import MINIMAL, fill_folder, message_for

from archsplit.errors import RecipeError
from archsplit.recipe.load import load_recipe
from archsplit.recipe.model import RECIPE_TABLES
from archsplit.system.toml import loads

ASTRAY = "leads out of the recipe's folder"


@pytest.mark.parametrize(
    ("table", "line", "message"),
    [
        ("project", 'name = "vec sort"', "name: 'vec sort' is not a project name"),
        ("project", "name = 3", "name: must be text, not 3"),
        ("project", 'version = "one"', "version: 'one' is not a version\n    hint: write it like"),
        ("project", 'version = "1.02"', "'1.02' is not normalized\n    hint: write 1.2"),
        ("project", 'summary = "two\\nlines"', r"summary: 'two\nlines' is not one line of text"),
        ("project", 'summary = " "', "summary: ' ' is not one line of text"),
        ("project", f'summary = "{"x" * 513}"', "summary: has 513 characters; the index takes 512"),
        ("project", 'license = "Apache"', "license: 'Apache' is not an SPDX license expression"),
        ("project", "license-files = []", "license-files: must have at least one entry"),
        ("project", 'license-files = "LICENSE"', "license-files: must be a list, not 'LICENSE'"),
        ("project", 'license-files = ["../LICENSE"]', f"license-files[0]: '../LICENSE' {ASTRAY}"),
        (
            "targets",
            'manylinux = "2.28"',
            "manylinux: '2.28' is not the glibc of a",
        ),
        ("targets", 'manylinux = "2_12"', "such as 2_28"),
        ("targets", 'dropped = ["sm_90"]', "sm_90 is built and dropped"),
        ("project", 'readme = "README.md.md"', "readme: can't read README.md.md: No such file"),
        ("project", 'readme = "include"', "readme: can't read include: Is a directory"),
        ("project", 'readme = "LICENSE"', "the readme LICENSE is not a .md, .rst or .txt file"),
        ("project", 'requires-python = "3"', "requires-python: '3' is not a set of versions"),
        ("project", 'authors = [{ name = "" }]', "authors[0].name: '' is not one line of text"),
        ("project", "authors = [{}]", "authors[0]: has neither a name nor an e-mail address"),
        (
            "project",
            'authors = [{ nam = "" }]',
            "authors[0].nam: unknown key",
        ),
        ("project", 'authors = ["A"]', "authors[0]: must be a table, not 'A'"),
        (
            "project",
            'authors = [{ email = "a" }]',
            "authors[0].email: 'a' is not an e-mail address",
        ),
        ("project", 'keywords = ["a,b"]', "keywords[0]: 'a,b' has a comma in it"),
        ("project", 'keywords = ["a", "b", "a"]', "keywords[2]: a is listed twice"),
        ("project", 'classifiers = ["GPU"]', "classifiers[0]: 'GPU' is not a classifier"),
        ("project", 'classifiers = ["License :: X"]', "repeats project.license"),
        ("project", "urls = 3", "urls: must be a table, not 3"),
        ("project", 'urls = { Home = "x" }', "urls.Home: 'x' is not an address"),
        ("project", f'urls = {{ {"x" * 33} = "http://x" }}', "is longer than 32 characters"),
        ("project", 'dependencies = ["what ever"]', "dependencies[0]: 'what ever' is not a requ"),
        ("project", 'dependencies = ["a @ http://x"]', "names an address, which the public index"),
        ("source", 'files = ["/src/*.cu"]', f"files[0]: '/src/*.cu' {ASTRAY}"),
        ("source", 'files = ["src/*.cpp"]', "files[0]: no file matches src/*.cpp"),
        ("source", 'files = ["src"]', "files[0]: no file matches src"),
        ("source", 'files = ["."]', "files[0]: '.' is a folder, not a pattern of files"),
        ("source", 'files = [""]', "files[0]: '' is not a path"),
        ("source", 'files = ["src\\\\a.cu"]', "files[0]: 'src\\\\a.cu' is not a path"),
        ("source", 'files = ["src/**.cu"]', "files[0]: in 'src/**.cu', '**' is only a part of a"),
        ("source", "files = [3]", "files[0]: must be text, not 3"),
        ("source", 'defines = ["X=`x`"]', "defines[0]: 'X=`x`' has a ` in it, which the shell"),
        ("source", 'include = ["includes"]', "include[0]: the folder includes is not there"),
        (
            "source",
            'defines = ["1X"]',
            "defines[0]: '1X' is not a define, such as NAME or NAME=VALUE",
        ),
        (
            "source",
            'header = "x.h"',
            "header: unknown key\n    hint: did you me",
        ),
        ("compile", 'std = "17"', "std: '17' is not a C++ standard, such as c++17"),
        (
            "compile",
            'nvcc-flags = ["-arch=sm_90"]',
            "-arch=sm_90 can't be set here\n    hint: targ",
        ),
        (
            "compile",
            'nvcc-flags = ["-Isrc"]',
            "-Isrc can't be set here\n    hint: write the folder",
        ),
        ("compile", 'nvcc-flags = ["-lcurl"]', "-lcurl can't be set here"),
        (
            "compile",
            'nvcc-flags = ["-time=y"]',
            "-time=y can't be set here\n    hint: leave it out",
        ),
        ("compile", 'nvcc-flags = ["-march=native"]', "hint: write it in compile.host-flags"),
        ("compile", 'nvcc-flags = ["-optf=f"]', "hint: write the options themselves, so that the"),
        ("compile", 'nvcc-flags = ["@f"]', "@f is a file of flags\n    hint: write the options"),
        (
            "compile",
            'nvcc-flags = ["cu"]',
            "nvcc-flags[0]: 'cu' is not a flag\n    hint: write one",
        ),
        ("compile", 'nvcc-flags = ["-O3 \\n"]', r"'-O3 \n' is not a flag"),
        ("compile", 'host-flags = ["-march=native"]', "hint: name the processor, such as -march="),
        ("compile", 'host-flags = ["-isystemx"]', "hint: write the folder in source.include"),
        ("compile", 'host-flags = ["@f"]', "@f is a file of flags\n    hint: write the options"),
        ("compile", 'host-flags = ["-std=c++20"]', "hint: write it as compile.std"),
        ("compile", 'host-flags = ["-c"]', "-c can't be set here\n    hint: archsplit decides it"),
        ("compile", 'host-flags = ["Wall"]', "host-flags[0]: 'Wall' is not a flag"),
        ("compile", 'host-flags = ["-Wl,-x"]', "-Wl,-x has a comma in it, at which nvcc's"),
        (
            "compile",
            'host-pass = "twice"',
            "host-pass: must be 'once' or 'per-target', not 'twice'",
        ),
        (
            "compile",
            'nvcc-flags = ["-rdc=false"]',
            "-rdc=false can't be set here\n    hint: leave it out, or write compile.rdc = true",
        ),
        ("compile", 'nvcc-flags = ["-dlto"]', "hint: optimisation at the device link is not"),
        ("compile", 'rdc = "yes"', "rdc: must be true or false, not 'yes'"),
        ("compile", "zzz = 1", "hint: known here: std, nvcc-flags, host-flags, host-pass"),
        ("link", 'library = "../x.so"', "library: '../x.so' is not the file name of a library"),
        ("link", 'libraries = ["-lm"]', "libraries[0]: '-lm' is not the name of a library"),
        ("link", 'library-folders = ["lib"]', "library-folders[0]: the folder lib is not there"),
        ("targets", "sass = []", "targets: names no target"),
        ("targets", "sass = [90]", "sass[0]: must be text, not 90"),
        (
            "targets",
            'sass = ["compute_90"]',
            "compute_90 is PTX, not SASS\n    hint: write it in targ",
        ),
        (
            "targets",
            'ptx = ["sm_90"]',
            "ptx[0]: sm_90 is SASS, not PTX\n    hint: write it in targets",
        ),
        ("targets", 'sass = ["sm_90", "sm_90"]', "sass[1]: sm_90 is listed twice"),
        ("interface", 'header = "vec.h"', "header: can't read vec.h: No such file or directory"),
        ("interface", "symbols = []", "symbols: must have at least one entry"),
        ("interface", 'symbols = ["vec-sort"]', "symbols[0]: 'vec-sort' is not a C identifier"),
        (
            "interface",
            'symbols = ["sort"]',
            "symbols[0]: sort does not occur in include/vec.h",
        ),
        ("python", 'package = "class"', "package: 'class' can't be imported"),
        ("python", 'package = "é"', "package: 'é' can't be imported"),
        ("python", 'package = "other"', "vec_sort/__init__.py is outside of other"),
        ("python", 'root = "py"', "root: the folder py is not there"),
        ("python", "root = 3", "root: must be text, not 3"),
        ("install", 'mode = "all"', "mode: must be 'core' or 'meta', not 'all'"),
    ],
)
def test_a_fault_is_said_in_plain_words(
    tmp_path: Path, table: str, line: str, message: str
) -> None:
    content = loads(MINIMAL)
    content.setdefault(table, {}).update(loads(line))
    text = message_for(fill_folder(tmp_path, as_toml(content)))
    assert message in text
    assert f": {table}" in text


def test_a_name_without_package_asks_for_one(tmp_path: Path) -> None:
    message = message_for(fill_folder(tmp_path, MINIMAL.replace("vec-sort", "7vec")))
    assert "python.package: '7vec' can't be imported\n    hint: set python.package" in message


def test_the_cores_files_make_up_its_package(tmp_path: Path) -> None:
    fill_folder(tmp_path)
    (tmp_path / "python/vec_sort/__init__.py").rename(tmp_path / "python/vec_sort/doctor.py")
    (tmp_path / "python/setup.py").touch()
    (tmp_path / "python/vec_sort/_archsplit").mkdir()
    (tmp_path / "python/vec_sort/_archsplit/x.py").touch()
    message = message_for(tmp_path)
    assert "setup.py is outside of vec_sort\n    hint: move it to python/vec_sort" in message
    for name in ("doctor.py", "_archsplit/x.py"):
        assert f"vec_sort/{name} has the name of a file that archsplit makes" in message
    assert "vec_sort/__init__.py is not among the core's files" in message


def test_no_python_folder_is_a_fault_of_the_root(tmp_path: Path) -> None:
    fill_folder(tmp_path)
    (tmp_path / "python").rename(tmp_path / "py")
    message = message_for(tmp_path)
    assert message.splitlines()[0] == "recipe.toml has 1 fault"
    assert "python.root: the folder python is not there" in message


def test_a_readme_is_text(tmp_path: Path) -> None:
    fill_folder(tmp_path, MINIMAL.replace("[source]", 'readme = "README.md"\n[source]'))
    (tmp_path / "README.md").write_bytes(b"caf\xe9\n")
    assert "project.readme: README.md is not UTF-8" in message_for(tmp_path)


def test_unprintable_file_name_is_refused(tmp_path: Path) -> None:
    fill_folder(tmp_path)
    (tmp_path / "src/a\nb.cu").touch()
    assert r"the file name 'src/a\nb.cu' can't be printed" in message_for(tmp_path)


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("src/a,b.cu", ","),
        ('src/a"b.cu', '"'),
        ("src/a$b.cu", "$"),
        ("src/a`b.cu", "`"),
        ("src/a\\b.cu", "\\"),
        ("-a.cu", "-"),
        ("@a.cu", "@"),
    ],
)
def test_names_beyond_nvcc_are_refused(tmp_path: Path, name: str, odd: str) -> None:
    fill_folder(tmp_path, MINIMAL.replace('"src/*.cu"', '"src/a.cu", "**/*a*.cu"'))
    (tmp_path / name).touch()
    text = f"recipe.toml:9: source.files[1]: nvcc can't have the {odd} in {name!r}"
    assert f"{text}\n    hint: rename the file" in message_for(tmp_path)


def test_include_folder_beyond_nvcc_is_refused(tmp_path: Path) -> None:
    fill_folder(tmp_path, MINIMAL.replace("[targets]", 'include = ["a,b"]\n[targets]'))
    (tmp_path / "a,b").mkdir()
    text = "recipe.toml:11: source.include[0]: nvcc can't have the , in 'a,b'"
    assert f"{text}\n    hint: rename the folder" in message_for(tmp_path)


def test_odd_names_are_accepted(tmp_path: Path) -> None:
    fill_folder(tmp_path)
    for name in ("src/a;b.cu", "src/a&b <c> 'd'.cu", "src/é@-.cu"):
        (tmp_path / name).touch()
    assert len(load_recipe(tmp_path).source.files) == 5


def test_a_recipe_without_device_code_is_refused(tmp_path: Path) -> None:
    fill_folder(tmp_path, MINIMAL.replace("*.cu", "*.cpp"))
    (tmp_path / "src/a.cpp").touch()
    message = message_for(tmp_path)
    assert "recipe.toml:9: source.files: no source has device code\n    hint: nvcc" in message


def test_a_key_of_another_table_is_recognized(tmp_path: Path) -> None:
    message = message_for(fill_folder(tmp_path, MINIMAL.replace("[source]", "[source]\nroot = 1")))
    assert "hint: did you mean python.root?" in message


def test_odd_keys_are_quoted(tmp_path: Path) -> None:
    message = message_for(fill_folder(tmp_path, '"a b" = 1\n' + MINIMAL))
    assert 'recipe.toml:1: "a b": unknown key' in message


def as_toml(content: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in content.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan"
    return str(value).lower()


keys = st.sampled_from(
    [
        *RECIPE_TABLES,
        "name",
        "version",
        "license",
        "files",
        "license-files",
        "root",
        "symbols",
        "authors",
    ]
) | st.text(st.characters(codec="utf-8"), max_size=4)
values = st.recursive(
    st.integers()
    | st.floats()
    | st.booleans()
    | st.dates()
    | st.text(st.characters(codec="utf-8"), max_size=6)
    | st.sampled_from(["**", "*", "src/*.cu", "..", "/", "sm_90", "vec_sort", "1.0", "[", "a\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def load_or_refuse(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = fill_folder(Path(name), "")
        (folder / "recipe.toml").write_text(as_toml(content), encoding="utf-8")
        try:
            load_recipe(folder)
        except RecipeError as error:
            assert ": " in str(error)  # noqa: PT017 (either outcome is right)


@settings(deadline=None)  # an example writes files
@given(st.dictionaries(keys, values, max_size=5))
def test_arbitrary_content_is_read_or_refused(content: dict[str, Any]) -> None:
    load_or_refuse(content)


@settings(deadline=None)  # the same
@given(st.data())
def test_a_good_recipe_with_one_value_replaced_is_read_or_refused(data: st.DataObject) -> None:
    content = deepcopy(loads(MINIMAL))
    table = data.draw(st.sampled_from(sorted(RECIPE_TABLES)))
    key = data.draw(st.sampled_from(sorted(content.get(table, {}))) if table in content else keys)
    content.setdefault(table, {})[key] = data.draw(values)
    load_or_refuse(content)
