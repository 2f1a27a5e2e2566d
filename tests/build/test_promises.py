"""Findings about wheels, as records: cases that real wheels can hardly show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.metadata import Metadata

from archsplit.arch.target import Target
from archsplit.devicecode.registered import Library
from archsplit.errors import InputError, WheelError
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.release.checks import CheckScope, release_faults
from archsplit.release.device_checks import plugin_faults
from archsplit.release.identity import Identity, ReleaseKind, parse_identity
from archsplit.release.report import BuildDetails, Release, ReleaseWheel, read_report
from archsplit.release.wheel_set import WheelFacts, WheelSet
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.platform_tags import PlatformTags

if TYPE_CHECKING:
    from archsplit.system.finding import Finding

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


def wheel(project: str, version: str = "1.0", *lines: str) -> WheelFacts:
    return WheelFacts(
        path=Path(f"{project}.whl"),
        name=WheelName(project=distribution_name(project), version=version, platforms=("any",)),
        purelib=True,
        metadata=metadata(project, version, *lines),
        members=(),
        licenses=(),
        identity=None,
        libraries={},
        platforms=(),
    )


def core(*lines: str) -> WheelFacts:
    extras = [f'Requires-Dist: foo-sm90==1.0; extra == "{extra}"' for extra in ("sm90", "all")]
    extras += ["Provides-Extra: sm90", "Provides-Extra: all"]
    face = ("__init__.py", "core.json", "core.pack", "doctor.py", "libarchsplit_loader.so")
    return replace(
        wheel("foo", "1.0", *extras, *lines),
        identity=IDENTITY,
        purelib=False,
        members=("foo/__init__.py", "foo/doctor.py", *(f"foo/_archsplit/{name}" for name in face)),
        libraries={"foo/_archsplit/libarchsplit_loader.so": LOADER},
    )


def plugin() -> WheelFacts:
    path = "foo_plugins/cuda/sm_90/libfoo.so"
    plain = wheel("foo-sm90", "1.0", "Requires-Dist: foo==1.0")
    return replace(plain, purelib=False, members=(path,), libraries={path: PLUGIN})


def findings(*seen: WheelFacts, scope: CheckScope) -> list[Finding]:
    wheels = WheelSet(
        folder=Path(), kind=ReleaseKind.BUILT, identity=IDENTITY, wheels=seen, damaged=()
    )
    return list(release_faults(wheels, scope))


def faults(*seen: WheelFacts) -> list[str]:
    return [one.text for one in findings(*seen, scope=CheckScope())]


def test_a_sound_release_has_no_faults() -> None:
    meta = wheel("foo-all", "1.0", "Requires-Dist: foo[all]==1.0")
    assert faults(core(), plugin(), meta) == []


def tagged(facts: WheelFacts, glibc: tuple[int, int], needed: tuple[int, int]) -> WheelFacts:
    promised, real = (
        PlatformTags(architecture="x86_64", glibc=one).names for one in (glibc, needed)
    )
    return replace(facts, name=replace(facts.name, platforms=promised), platforms=real)


def test_plugin_with_a_later_glibc_than_its_core_is_found_if_published() -> None:
    """Published wheels must be installable on the same systems; local builds need not be."""
    old, new = (2, 17), (2, 34)
    seen = (tagged(core(), old, old), tagged(plugin(), new, new))
    assert faults(*seen) == []
    (found,) = findings(*seen, scope=CheckScope(published=True))
    assert (found.code, found.subject) == ("other-glibc", "foo-sm90.whl")
    assert found.found == "with glibc 2.17 to 2.33 pip finds the core, but no plugin"
    assert 'manylinux = "2_34" in [targets]' in found.hint
    # As after that: all wheels promise what the recipe says.
    for glibc in (new, (2, 39)):
        agreed = (tagged(core(), glibc, old), tagged(plugin(), glibc, new))
        assert findings(*agreed, scope=CheckScope(published=True)) == []
    # Without a core there is nothing to compare with; that is a finding of its own.
    lonely = findings(tagged(plugin(), new, new), scope=CheckScope(published=True))
    assert "other-glibc" not in {found.code for found in lonely}


def test_a_tag_of_an_earlier_glibc_than_its_libraries_need() -> None:
    wheel = tagged(plugin(), (2, 28), (2, 34))
    (found,) = faults(core(), wheel)
    assert "is tagged manylinux_2_28_x86_64, but auditwheel says manylinux_2_34_x86_64" in found


def test_two_wheels_of_one_project_are_found() -> None:
    assert faults(core(), plugin(), plugin()) == ["foo-sm90: 2 wheels"]


def test_plugin_of_another_version_is_found() -> None:
    other = replace(plugin(), metadata=metadata("foo-sm90", "1.1", "Requires-Dist: foo==1.0"))
    assert faults(core(), other) == ["foo-sm90.whl: is version 1.1, expected 1.0"]


def test_core_with_device_code_or_another_name_is_found() -> None:
    name = replace(core().name, project=distribution_name("bar"))
    fat = replace(core(), name=name, libraries={"foo/l.so": PLUGIN})
    assert faults(fat, plugin()) == [
        "foo.whl: is bar, but its core.json says foo",
        "foo.whl: foo/l.so has device code; a core has none",
    ]


def test_core_without_loader_or_with_foreign_files_is_found() -> None:
    members = [name for name in core().members if not name.endswith("loader.so")]
    odd = replace(core(), members=(*members, "foo_plugins/cuda/sm_90/libfoo.so"))
    assert faults(odd, plugin()) == [
        "foo.whl: has no foo/_archsplit/libarchsplit_loader.so",
        "foo.whl: installs foo_plugins/cuda/sm_90/libfoo.so, which is not below foo/",
    ]


def test_core_requiring_a_plugin_without_an_extra_is_found() -> None:
    loose = core("Requires-Dist: foo-sm90>=1")
    assert "foo.whl: requires foo-sm90>=1 always; only extras may" in faults(loose, plugin())


def test_plugin_with_foreign_files_is_found() -> None:
    expected = "foo_plugins/cuda/sm_90/libfoo.so"
    greedy = replace(plugin(), members=(expected, "numpy/__init__.py"))
    assert faults(core(), greedy) == [
        f"foo-sm90.whl: installs {expected}, numpy/__init__.py, expected only {expected}"
    ]


def test_plugin_tagged_for_one_python_or_as_pure_is_found() -> None:
    name = replace(plugin().name, pythons=("cp311",), abis=("cp311",))
    odd = replace(plugin(), name=name, purelib=True)
    assert faults(core(), odd) == [
        "foo-sm90.whl: is tagged cp311-cp311, expected py3-none",
        "foo-sm90.whl: says Root-Is-Purelib: True; its libraries: 1",
    ]


def test_missing_licence_named_in_metadata_is_found() -> None:
    named = metadata("foo-sm90", "1.0", "Requires-Dist: foo==1.0", "License-File: LICENSE")
    lacking = replace(plugin(), metadata=named)
    assert faults(core(), lacking) == [
        "foo-sm90.whl: has no LICENSE, but its metadata names it as a license"
    ]
    assert faults(core(), replace(lacking, licenses=("LICENSE",))) == []


def test_plugin_without_its_library_is_found() -> None:
    expected = "foo_plugins/cuda/sm_90/libfoo.so"
    empty = replace(plugin(), members=(), libraries={}, purelib=True)
    assert faults(core(), empty) == [f"foo-sm90.whl: installs nothing, expected only {expected}"]


def test_meta_wheel_with_wrong_requirement_or_files_is_found() -> None:
    meta = wheel("foo-all", "1.0", "Requires-Dist: foo==1.0")
    assert faults(core(), plugin(), meta) == [
        "foo-all.whl: requires foo==1.0, expected foo[all]==1.0"
    ]
    full = wheel("foo-all", "1.0", "Requires-Dist: foo[all]==1.0")
    assert faults(core(), plugin(), replace(full, members=("x.py",))) == [
        "foo-all.whl: installs x.py; a meta wheel has no files"
    ]


def test_conditional_requirements_are_not_part_of_an_extra() -> None:
    assert faults(core('Requires-Dist: numpy; python_version > "2"'), plugin()) == []


def test_library_without_descriptor_or_code_is_found() -> None:
    assert [one.text for one in plugin_faults(LOADER, SM_90, IDENTITY)] == [
        "has no descriptor",
        "has no device code, expected sm_90",
    ]


def test_library_for_another_target_is_found() -> None:
    assert [one.text for one in plugin_faults(PLUGIN, SM_80, IDENTITY)] == [
        "its descriptor says targets sm_90, expected sm_80",
        "container 0 has foreign code for sm_90, expected only sm_80",
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


def test_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archsplit-report.json"
    path.write_text('{"schema": 7}')
    with pytest.raises(InputError, match="has schema 7, expected 2"):
        read_report(path)


def report(build_id: str, *files: str) -> Release:
    entries = tuple(
        ReleaseWheel(file=file, role="plugin", distribution=file, size=1, sha256="0" * 64)
        for file in files
    )
    return Release(
        project="foo",
        version="1.0",
        build_id=build_id,
        interface_hash="",
        build=BuildDetails(epoch=0, targets=()),
        wheels=entries,
    )


def test_reports_of_one_build_add_up(tmp_path: Path) -> None:
    path = tmp_path / "archsplit-report.json"
    assert report("one", "b").together_with(tmp_path) == report("one", "b")
    path.write_text(report("one", "a", "gone").as_json())
    (tmp_path / "a").touch()
    assert report("one", "b").together_with(tmp_path) == report("one", "a", "b")
    assert report("two", "b").together_with(tmp_path) == report("two", "b")
