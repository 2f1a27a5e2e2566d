"""What is wrong with wheels, as records: the cases that real wheels can hardly be put into."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from packaging.metadata import Metadata

from splitter.arch.target import Target
from splitter.binfmt.note import Descriptor, Shape
from splitter.devicecode.library import Library
from splitter.errors import InputError, WheelError
from splitter.identity import Identity, parse_identity
from splitter.promises import Seen, plugin_faults, release_faults
from splitter.report import read_report

if TYPE_CHECKING:
    from pathlib import Path

SM_90 = Target.parse("sm_90")
SM_80 = Target.parse("sm_80")
IDENTITY = Identity(
    package="foo",
    version="1.0",
    build_id="ab" * 32,
    interface_hash="cd" * 32,
    library="libfoo.so",
    plugins_package="foo_plugins",
    distribution="foo",
    targets={"sm_90": "foo-sm90"},
)
PLUGIN = Library(
    descriptor=Descriptor(
        package="foo",
        version="1.0",
        build_id=bytes.fromhex("ab" * 32),
        interface_hash=bytes.fromhex("cd" * 32),
        cuda_version=13000,
        shape=Shape.LIBRARY,
        targets=(SM_90,),
    ),
    containers=(frozenset({SM_90}),),
    exports=frozenset(),
)
LOADER = Library(descriptor=None, containers=(), exports=frozenset())


def metadata(project: str, version: str, *lines: str) -> Metadata:
    head = ("Metadata-Version: 2.4", f"Name: {project}", f"Version: {version}")
    return Metadata.from_email("\n".join([*head, *lines, ""]))


def wheel(project: str, version: str = "1.0", *lines: str, **libraries: Library) -> Seen:
    return Seen(
        file=f"{project}.whl",
        project=project,
        tags=("any",),
        metadata=metadata(project, version, *lines),
        identity=None,
        libraries={name.replace("__", "/"): held for name, held in libraries.items()},
        platforms=(),
    )


def core() -> Seen:
    lines = ["Provides-Extra: sm90", "Provides-Extra: all"]
    lines += [f'Requires-Dist: foo-sm90==1.0; extra == "{extra}"' for extra in ("sm90", "all")]
    return replace(wheel("foo", "1.0", *lines), identity=IDENTITY, libraries={"l.so": LOADER})


def plugin() -> Seen:
    path = "foo_plugins/cuda/sm_90/libfoo.so"
    return replace(wheel("foo-sm90", "1.0", "Requires-Dist: foo==1.0"), libraries={path: PLUGIN})


def faults(*seen: Seen) -> list[str]:
    return list(release_faults(seen, IDENTITY, None))


def test_a_sound_release_has_no_faults() -> None:
    meta = wheel("foo-all", "1.0", "Requires-Dist: foo[all]==1.0")
    assert faults(core(), plugin(), meta) == []


def test_two_wheels_of_one_project() -> None:
    assert faults(core(), plugin(), plugin()) == ["foo-sm90: 2 wheels"]


def test_another_version() -> None:
    other = replace(plugin(), metadata=metadata("foo-sm90", "1.1", "Requires-Dist: foo==1.0"))
    assert faults(core(), other) == ["foo-sm90.whl: is version 1.1, expected 1.0"]


def test_a_core_with_device_code_and_under_another_name() -> None:
    fat = replace(core(), project="bar", libraries={"l.so": PLUGIN})
    assert faults(fat, plugin()) == [
        "foo.whl: is bar, but its core.json says foo",
        "foo.whl: l.so has device code; a core has none",
    ]


def test_a_plugin_without_its_library() -> None:
    expected = "foo_plugins/cuda/sm_90/libfoo.so"
    empty = replace(plugin(), libraries={})
    assert faults(core(), empty) == [f"foo-sm90.whl: has no library, expected {expected} alone"]


def test_a_meta_wheel_that_requires_less() -> None:
    meta = wheel("foo-all", "1.0", "Requires-Dist: foo==1.0")
    assert faults(core(), plugin(), meta) == [
        "foo-all.whl: requires foo==1.0, expected foo[all]==1.0"
    ]


def test_requirements_under_conditions_are_not_those_of_an_extra() -> None:
    conditional = 'Requires-Dist: numpy; python_version > "2"'
    lines = str(core().metadata.as_rfc822()).strip().splitlines()
    with_numpy = replace(core(), metadata=Metadata.from_email("\n".join([*lines, conditional, ""])))
    assert faults(with_numpy, plugin()) == []


def test_a_library_without_descriptor_or_code() -> None:
    assert list(plugin_faults(LOADER, SM_90, IDENTITY)) == [
        "has no descriptor",
        "has no device code, expected sm_90",
    ]


def test_a_library_for_another_target() -> None:
    assert list(plugin_faults(PLUGIN, SM_80, IDENTITY)) == [
        "its descriptor says targets sm_90, expected sm_80",
        "container 0 has foreign code for sm_90, expected sm_80 alone",
        "container 0 has no code for sm_80",
    ]


def test_an_identity_needs_real_hashes() -> None:
    with pytest.raises(ValueError, match="build_id is not a SHA-256"):
        replace(IDENTITY, build_id="short")


def test_an_identity_is_read_back_and_nothing_else_is() -> None:
    content = IDENTITY.as_json().encode()
    assert parse_identity(content, where="core.json") == IDENTITY
    with pytest.raises(WheelError, match=r"core\.json has schema 2, not 1"):
        parse_identity(content.replace(b'"schema": 1', b'"schema": 2'), where="core.json")
    with pytest.raises(WheelError, match="not a core's identity"):
        parse_identity(content.replace(b'"version"', b'"verison"'), where="core.json")


def test_a_report_of_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "archsplit-report.json"
    path.write_text('{"schema": 7}')
    with pytest.raises(InputError, match="another schema than 1"):
        read_report(path)
