from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import parse_tag
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from archsplit.errors import WheelError
from archsplit.wheels.filename import (
    WheelName,
    distribution_name,
    extra_name,
    plugin_distribution,
    plugin_path,
    plugins_package,
)

spelled_names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", fullmatch=True)
projects = spelled_names.map(canonicalize_name)
numbers = st.integers(0, 2030)
versions = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "1!"]),
    st.lists(numbers, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts))),
    st.sampled_from(["", "a1", "b2", "rc13"]),
    st.sampled_from(["", ".post1", ".post1.dev2", ".dev3"]),
    st.sampled_from(["", "+cu130", "+cu130.abi1"]),
)
tag_sets = st.lists(
    st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), min_size=1, max_size=3, unique=True
).map(lambda tags: tuple(sorted(tags)))
wheel_names = st.builds(
    WheelName,
    project=projects,
    version=versions,
    platforms=tag_sets,
    pythons=tag_sets,
    abis=tag_sets,
    build=st.sampled_from(["", "0", "1", "007", "12local_1"]),
)


@given(wheel_names)
def test_a_file_name_reads_back(name: WheelName) -> None:
    assert WheelName.parse(str(name)) == name


@given(wheel_names)
def test_packaging_reads_the_same_from_a_file_name(name: WheelName) -> None:
    project, version, build, tags = parse_wheel_filename(str(name))
    assert (project, version) == (name.project, Version(name.version))
    assert sorted(map(str, tags)) == list(name.tags)
    assert bool(build) == bool(name.build)


@given(wheel_names)
def test_the_parts_of_a_file_name_are_escaped(name: WheelName) -> None:
    dashes = 5 if name.build else 4
    assert str(name).count("-") == dashes
    assert name.dist_info.removesuffix(".dist-info").count("-") == 1
    assert str(name).startswith(name.dist_info.removesuffix(".dist-info") + "-")


@given(wheel_names, spelled_names, versions)
def test_is_release_compares_normalized_names(name: WheelName, project: str, version: str) -> None:
    expected = canonicalize_name(project) == name.project and Version(version) == Version(
        name.version
    )
    assert name.is_release(project, version) is expected
    assert name.is_release(name.project.upper().replace("-", "_"), f"v{name.version}")
    assert not name.is_release(name.project, "no version")


def test_compressed_set_of_platforms_expands_to_its_tags() -> None:
    name = WheelName(
        project=distribution_name("my-lib"),
        version="1.0",
        platforms=("manylinux2014_x86_64", "manylinux_2_17_x86_64"),
    )
    text = "my_lib-1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert str(name) == text
    assert name.dist_info == "my_lib-1.0.dist-info"
    assert name.tags == ("py3-none-manylinux2014_x86_64", "py3-none-manylinux_2_17_x86_64")
    assert {str(tag) for tag in parse_tag(text.removesuffix(".whl").split("-", 2)[2])} == {
        *name.tags
    }


def test_other_spellings_of_a_file_name_are_normalized() -> None:
    name = WheelName.parse("My.Lib-1.0.RC1-PY3.py2-none-any.whl")
    assert str(name) == "my_lib-1.0rc1-py2.py3-none-any.whl"


@pytest.mark.parametrize(
    "text",
    [
        "toy-1.0-py3-none-any.zip",
        "toy-1.0-py3-none.whl",
        "toy-1.0-1-2-py3-none-any.whl",
        "toy-one-py3-none-any.whl",
        "toy-1.0-b1-py3-none-any.whl",
        "toy__lib-1.0-py3-none-any.whl",
        "-1.0-py3-none-any.whl",
        "toy-1.0-py3-none-a/y.whl",
        "toy-1.0-py3..py2-none-any.whl",
        "toy-1.0-1/2-py3-none-any.whl",
    ],
)
def test_invalid_file_name_of_a_wheel_is_refused(text: str) -> None:
    with pytest.raises(WheelError, match=r"is not the file name|can't be a|not a project name"):
        WheelName.parse(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("project", "My-Lib"),
        ("project", "a--b"),
        ("version", "1.0.RC1"),
        ("version", "one"),
        ("build", "b1"),
        ("platforms", ()),
        ("platforms", ("b", "a")),
        ("platforms", ("a", "a")),
        ("pythons", ("Py3",)),
        ("abis", ("a-b",)),
    ],
)
def test_unparsable_name_is_refused(field: str, value: object) -> None:
    sound = {"project": "toy", "version": "1.0", "platforms": ("any",)}
    with pytest.raises(WheelError):
        WheelName(**{**sound, field: value})  # type: ignore[arg-type]


@given(spelled_names)
def test_distribution_names_are_the_index_s(text: str) -> None:
    assert distribution_name(text) == canonicalize_name(text)
    assert distribution_name(distribution_name(text)) == distribution_name(text)


@pytest.mark.parametrize("text", ["", "-", "a b", "ä", "a\n", "a/b", "_a"])
def test_invalid_project_name_is_refused(text: str) -> None:
    with pytest.raises(WheelError, match="not a project name"):
        distribution_name(text)


@pytest.mark.parametrize(
    ("target", "extra"),
    [
        ("sm_90", "sm90"),
        ("sm_90a", "sm90a"),
        ("sm_120f", "sm120f"),
        ("compute_120", "compute120"),
        ("compute_100a", "compute100a"),
    ],
)
def test_target_determines_extra_distribution_and_path(target: str, extra: str) -> None:
    assert extra_name(target) == extra
    assert plugin_distribution("Vec.Sort", target) == f"vec-sort-{extra}"
    path = f"vec_sort_plugins/cuda/{target}/libvecsort.so"
    assert plugin_path("vec_sort", target, "libvecsort.so") == path
    assert plugins_package("vec_sort") == "vec_sort_plugins"


@given(st.lists(st.from_regex(r"(sm|compute)_[0-9]{2,3}[af]?", fullmatch=True), unique=True))
def test_two_targets_never_share_a_name(targets: list[str]) -> None:
    extras: set[NormalizedName] = {extra_name(target) for target in targets}
    assert len(extras) == len(targets)


@pytest.mark.parametrize("target", ["", "SM_90", "sm_90/..", "sm-90", "..", "sm_", "90"])
def test_invalid_target_in_a_name_is_refused(target: str) -> None:
    with pytest.raises(WheelError, match="can't be a target"):
        plugin_path("vecsort", target, "lib.so")
    with pytest.raises(WheelError, match="can't be a target"):
        plugin_distribution("vecsort", target)


@pytest.mark.parametrize("package", ["", "vec-sort", "a.b", "1a", "a/b"])
def test_invalid_import_package_is_refused(package: str) -> None:
    with pytest.raises(WheelError, match="import package"):
        plugins_package(package)


@pytest.mark.parametrize("library", ["", "a/b.so", "a\\b.so", "a b.so", "ä.so"])
def test_invalid_library_in_a_path_is_refused(library: str) -> None:
    with pytest.raises(WheelError, match="file name of a library"):
        plugin_path("vecsort", "sm_90", library)


def test_a_local_label_joins_the_others() -> None:
    name = WheelName(project=distribution_name("foo"), version="1.0", platforms=("any",))
    labeled = name.add_local_label("slim.sm90")
    assert labeled.version == "1.0+slim.sm90"
    assert labeled.add_local_label("again").version == "1.0+slim.sm90.again"
    with pytest.raises(WheelError, match="is not a local version label"):
        name.add_local_label("a b")
