from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from release_samples import TINYVEC

from archsplit.arch.target import Target
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.errors import InputError
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import open_file
from archsplit.recipe.load import load_recipe
from archsplit.release.manifest import (
    MANIFEST_FILE,
    read_manifest,
)
from archsplit.system.fs import sha256
from changed_wheels import member

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects
    from archsplit.release.report import Release

pytestmark = pytest.mark.nvcc

SCHEMA = Path(__file__).parents[2] / "docs" / "manifest.schema.json"


def test_every_wheel_is_listed_with_its_digest(built: tuple[Path, Release]) -> None:
    folder, report = built
    manifest = read_manifest(folder / MANIFEST_FILE)
    assert [(one.file, one.size, one.sha256) for one in manifest.wheels] == [
        (path.name, path.stat().st_size, sha256(path)) for path in sorted(folder.glob("*.whl"))
    ]
    assert {one.distribution: (one.role, one.targets) for one in manifest.wheels} == {
        "tinyvec": ("core", ()),
        "tinyvec-sm80": ("plugin", ("sm_80",)),
        "tinyvec-sm90": ("plugin", ("sm_90",)),
        "tinyvec-compute90": ("plugin", ("compute_90",)),
    }
    assert manifest.build_id == report.build_id


def test_images_match_the_wheels(built: tuple[Path, Release], tmp_path: Path) -> None:
    for wheel in read_manifest(built[0] / MANIFEST_FILE).wheels:
        if wheel.role == "core":
            assert wheel.images == ()
            continue
        library = tmp_path / "lib.so"
        library.write_bytes(member(built[0] / wheel.file, wheel.images[0].library))
        content = library.read_bytes()
        entries = [
            (index, entry)
            for index, (_, container) in enumerate(host_containers(Elf(open_file(library))))
            for entry in container.entries()
        ]
        assert [(one.container, one.target, one.size, one.sha256) for one in wheel.images] == [
            (
                index,
                wheel.targets[0],
                entry.size,
                hashlib.sha256(content[entry.offset : entry.offset + entry.size]).hexdigest(),
            )
            for index, entry in entries
        ]


def test_manifest_records_sources_tools_and_flags(
    built: tuple[Path, Release], toolkit: Toolkit
) -> None:
    manifest = read_manifest(built[0] / MANIFEST_FILE)
    sources = {source.path: source.sha256 for source in manifest.sources}
    assert sources["src/add.cu"] == sha256(TINYVEC / "src" / "add.cu")
    assert "recipe.toml" in sources
    tools = {tool.name: tool for tool in manifest.toolchain}
    assert tools["ptxas"].sha256 == sha256(toolkit.root / "bin" / "ptxas")
    assert tools["ptxas"].version == toolkit.release
    assert tools["libcudart_static.a"].version == "13.0"
    assert {"archsplit", "host compiler", "linker", "deflate", "ziglang"} <= set(tools)
    assert manifest.flags["nvcc-flags"] == ("-O2",)
    assert manifest.flags["targets"] == ("sm_80", "sm_90", "compute_90")


def test_manifest_has_no_path_of_this_machine(built: tuple[Path, Release], split: Path) -> None:
    for folder in (built[0], split):
        text = (folder / MANIFEST_FILE).read_text()
        for place in (folder, TINYVEC, Path.home(), Path.cwd()):
            assert str(place) not in text


@pytest.mark.parametrize("which", ["built", "split"])
def test_manifest_fits_its_schema(which: str, request: pytest.FixtureRequest) -> None:
    # Half a second and more, and each worker imports all files of tests.
    import jsonschema  # type: ignore[import-untyped] # noqa: PLC0415 (no types; see above)

    made = request.getfixturevalue(which)
    folder = made if isinstance(made, Path) else made[0]
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads((folder / MANIFEST_FILE).read_text())
    jsonschema.Draft202012Validator(schema).validate(content)
    content["wheels"][0]["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="colour"):
        jsonschema.Draft202012Validator(schema).validate(content)


def test_split_manifest_names_its_source(split: Path, fat: Path) -> None:
    manifest = read_manifest(split / MANIFEST_FILE)
    assert manifest.origin == "wheel"
    (source,) = manifest.sources
    assert (source.path, source.sha256) == (fat.name, sha256(fat))
    assert manifest.flags["by"] == ("capability",)
    roles = {one.distribution: (one.role, one.targets) for one in manifest.wheels}
    assert roles["toy"] == ("core", ())
    assert ("plugin", ("compute_80",)) in roles.values()
    images = [image for one in manifest.wheels for image in one.images]
    assert {image.library for image in images} == {"toy/it.so"}
    assert {image.target for image in images} == {"compute_80", "compute_90"}
    for one in manifest.wheels:
        assert one.sha256 == sha256(split / one.file)


def test_separately_built_plugins_are_listed_together(
    tmp_path: Path, effects: Effects, built: tuple[Path, Release]
) -> None:
    out = tmp_path / "out"
    for targets, core in (("sm_80", False), ("sm_90", False), ("", True)):
        wanted = tuple(Target.parse(name) for name in targets.split())
        build_recipe(
            BuildRequest(recipe=load_recipe(TINYVEC), targets=wanted, core=core), effects, out=out
        )
    whole, parts = read_manifest(built[0] / MANIFEST_FILE), read_manifest(out / MANIFEST_FILE)
    some = tuple(one for one in whole.wheels if one.targets != ("compute_90",))
    # A core that is built without its plugins can't have their digests.
    (with_digests, *_), (without, *plugins) = some, parts.wheels
    assert with_digests.role == without.role == "core"
    known = replace(without, sha256=with_digests.sha256, size=with_digests.size)
    assert replace(parts, wheels=(known, *plugins)) == replace(whole, wheels=some)


def test_a_manifest_of_another_build_is_replaced(built: tuple[Path, Release], dist: Path) -> None:
    own = read_manifest(built[0] / MANIFEST_FILE)
    other = replace(own, build_id="0" * 64)
    assert other.together_with(dist / MANIFEST_FILE) == other
    assert own.together_with(dist / "gone.json") == own


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "has schema None, expected 1"),
        ('{"schema": 2}', "has schema 2, expected 1"),
        ('{"schema": 1}', "is not a release's manifest: origin: Field required; project"),
        ("[", "is not a release's manifest: Invalid JSON"),
    ],
)
def test_damaged_manifest_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / MANIFEST_FILE
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_manifest(path)
