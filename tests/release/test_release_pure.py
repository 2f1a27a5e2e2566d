"""Pins and kernels, without wheels."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from release_samples import ptx, sass

from archsplit.errors import WheelError
from archsplit.formats.reader import Window
from archsplit.release.completeness import KernelReader, _short_name
from archsplit.release.identity import (
    CoreFiles,
    Identity,
    PackIdentity,
    hook_entry_points,
    parse_identity,
)
from archsplit.release.requirements import dropped_extras, plugin_extras, plugin_pins
from archsplit.release.wheel_checks import duplicate_faults, meta_faults, pin_faults
from archsplit.wheels.metadata import CoreMetadata, decode_metadata, encode_metadata
from archsplit_loader._core import Core

IDENTITY = Identity(
    package="toy",
    version="2",
    build_id="1" * 64,
    interface_hash="2" * 64,
    library="device.pack",
    distribution="toy",
    targets={},
    plugins_package="toy_plugins",
    packs={
        "cc80": PackIdentity(distribution="toy-cc80", serves=("8.0",)),
        "ptx": PackIdentity(distribution="toy-ptx", serves=()),
        "rest": PackIdentity(distribution="toy-rest", serves=()),
    },
    needs={"8.0": ("cc80",)},
    source="0" * 64,
)
RIGHT = {
    "cc80": ("toy-cc80==2",),
    "ptx": ("toy-ptx==2",),
    "all": ("toy-cc80==2", "toy-ptx==2"),
    "more": ("toy-tools==1", "numpy>=1"),
}


def faults(requires: tuple[str, ...] = (), **extras: tuple[str, ...]) -> list[str]:
    core = CoreMetadata(name="toy", version="2", requires=requires, extras={**RIGHT, **extras})
    metadata = decode_metadata(encode_metadata(core))
    return list(map(str, pin_faults("toy.whl", metadata, IDENTITY)))


def test_only_the_core_of_a_complete_build_has_digests() -> None:
    built = replace(IDENTITY, packs={}, needs={}, source="", targets={"sm_90": "toy-sm90"})
    assert "digests" not in json.loads(built.as_json())
    whole = replace(built, digests={"sm_90": "3" * 64})
    assert parse_identity(whole.as_json().encode(), where="core.json") == whole
    assert parse_identity(built.as_json().encode(), where="core.json") == built
    with pytest.raises(ValueError, match="digests are not SHA-256"):
        replace(built, digests={"sm_90": "3" * 63})


def test_a_digest_of_an_identity_has_64_digits() -> None:
    with pytest.raises(ValueError, match="build_id is not a SHA-256"):
        replace(IDENTITY, build_id="1" * 63)
    with pytest.raises(ValueError, match="interface_hash is not a SHA-256"):
        replace(IDENTITY, interface_hash="1" * 63)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", r"core\.json is not a core's identity: Invalid JSON"),
        (b'{"schema": 99}', r"core\.json has schema 99, not \d"),
        (b'{"schema": 1, "package": "toy"}', r"core\.json is not a core's identity: .*version"),
    ],
)
def test_invalid_identity_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(WheelError, match=message):
        parse_identity(content, where="core.json")


def test_a_distribution_with_two_wheels_and_a_meta_wheel_with_files_are_faults() -> None:
    projects = ["toy", "toy-cc80", "toy-cc80"]
    (twice,) = duplicate_faults(projects)
    assert (twice.code, twice.subject) == ("duplicate-wheel", "toy-cc80")
    meta = CoreMetadata(name="toy-all", version="2", requires=("toy[all]==2",), extras={})
    metadata = decode_metadata(encode_metadata(meta))
    assert not list(meta_faults("toy_all.whl", metadata, [], IDENTITY))
    (file,) = meta_faults("toy_all.whl", metadata, ["toy_all.py"], IDENTITY)
    assert (file.code, file.subject) == ("wrong-files", "toy_all.whl")


def test_correct_pins_have_no_faults() -> None:
    assert faults() == []
    assert faults(requires=("numpy>=2", "toy-cc80==2", "toy-ptx==2")) == []


def test_incomplete_extra_is_a_fault() -> None:
    assert faults(all=("toy-cc80==2",)) == [
        "toy.whl: [all] doesn't bring toy-ptx; make the core again"
    ]


def test_ptx_brings_and_requires_its_shared_part() -> None:
    names = ("cc80", "ptx", "shared_ptx", "common_ptx")
    packs = {name: PackIdentity(distribution=f"toy-{name}", serves=()) for name in names}
    whole = replace(IDENTITY, packs=packs, needs={"8.0": ("cc80", "shared_ptx")})
    assert plugin_extras(whole)["ptx"] == ("ptx", "shared_ptx", "common_ptx")
    assert plugin_pins(whole, "ptx") == ("toy==2", "toy-shared_ptx==2", "toy-common_ptx==2")
    loader = Core(**{name: getattr(whole, name) for name in Core._fields})
    assert loader.packs_for("13.0") == plugin_extras(whole)["ptx"]
    assert (loader.packs_for("8.0"), loader.packs_for("7.5")) == (("cc80", "shared_ptx"), ())


def test_a_split_without_ptx_has_no_extra_for_it() -> None:
    packs = {"cc80": IDENTITY.packs["cc80"]}
    extras = plugin_extras(replace(IDENTITY, packs=packs))
    assert extras == {"cc80": ("cc80",), "all": ("cc80",)}


def test_loose_pin_is_a_fault() -> None:
    assert faults(cc80=("toy-cc80>=2",)) == [
        'toy.whl: requires toy-cc80>=2; extra == "cc80", expected exactly ==2;'
        " make that wheel again: only archsplit should write these pins"
    ]


def window(image: bytes) -> Window:
    return Window(memoryview(image), source="a test")


def test_the_kernels_of_ptx_are_its_entries() -> None:
    reader = KernelReader()
    image = ptx("compute_90", "_Z5firstv", "second")
    assert reader.read_image(window(image), b"digest") == {"_Z5firstv", "second"}
    # The same content is not read again.
    assert reader.read_image(window(b""), b"digest") == {"_Z5firstv", "second"}
    assert reader.unread == []


def test_unreadable_image_is_listed_and_other_data_is_not() -> None:
    reader = KernelReader()
    assert reader.read_image(window(sass("sm_90", b"no cubin")), b"1") == frozenset()
    (line,) = reader.unread
    assert "a test, image at 0x0" in line
    assert reader.read_image(window(sass("sm_90", b"no code.", kind=8)), b"2") == frozenset()
    assert len(reader.unread) == 1


def test_unconditional_loose_pin_is_a_fault() -> None:
    (loose,) = faults(requires=("toy-cc80>=2",))
    assert "requires toy-cc80>=2, expected exactly ==2" in loose


def test_a_project_keeps_its_own_doctor_and_hooks() -> None:
    files = CoreFiles(identity=IDENTITY, existing=["toy/doctor.py"])
    assert "toy/doctor.py" not in files.members()
    assert "toy/doctor.py" in replace(files, existing=()).members()
    assert hook_entry_points("toy", b"[pyinstaller40]\nhook-dirs = toy:hooks\n") is None
    console = b"[console_scripts]\ntoy = toy:main\n"
    points = hook_entry_points("toy", console)
    assert points is not None
    assert points.startswith(console)
    assert b"hook-dirs = toy_pyinstaller:hook_dirs" in points


def test_undeclared_extra_is_a_fault() -> None:
    core = CoreMetadata(name="toy", version="2", extras=RIGHT)
    text = encode_metadata(core).replace(b"Provides-Extra: ptx\n", b"")
    (fault,) = pin_faults("toy.whl", decode_metadata(text), IDENTITY)
    assert (fault.code, fault.found) == ("undeclared-extra", "doesn't declare the extra ptx")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void cub::scan<int, 4>(int*, long)", "cub::scan"),
        ("(anonymous namespace)::fill(float*)", "fill"),
        ("a" * 80, "a" * 59 + "…"),
    ],
)
def test_kernel_of_a_note_has_a_short_name(name: str, short: str) -> None:
    assert _short_name(name) == short


def test_dropped_extra_requires_a_missing_plugin() -> None:
    dropped = dropped_extras(["cc70"], "toy", "2")
    assert dropped == {"cc70": ("toy-cc70==2",)}
    assert faults(**dropped) == []
