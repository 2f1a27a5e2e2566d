"""Merge of a release that was built part by part."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build_notes import BuildNotes

from archsplit.arch.target import Target
from archsplit.build import pipeline
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.cli.main import main
from archsplit.errors import InputError, VerifyError
from archsplit.recipe.load import load_recipe
from archsplit.release.merge import gather
from archsplit.release.verify import verify_release
from archsplit.system.file_lock import LockedFolder
from archsplit.system.fs import sha256
from archsplit.wheels.reader import open_wheel
from changed_wheels import rewrite

if TYPE_CHECKING:
    from archsplit.release.context import Effects

TINYVEC = Path(__file__).parents[1] / "tinyvec"
NAMES = ("archsplit-report.json", "archsplit-manifest.json")


def part(dist: Path, folder: Path, *keep: str, **changes: object) -> Path:
    """Make a folder as a job leaves it that builds only these wheels."""
    folder.mkdir()
    for name in NAMES:
        content = json.loads((dist / name).read_text())
        wheels = [each for each in content["wheels"] if each["file"].startswith(keep)]
        details = content.get("build")
        for key, value in changes.items():
            # The report has what only a build knows in a part of its own.
            (details if details and key in details else content)[key] = value
        (folder / name).write_text(json.dumps({**content, "wheels": wheels}))
        for wheel in wheels:
            shutil.copyfile(dist / wheel["file"], folder / wheel["file"])
    return folder


@pytest.fixture
def parts(dist: Path, tmp_path: Path) -> list[Path]:
    prefixes = ("tinyvec-", "tinyvec_sm80", "tinyvec_sm90", "tinyvec_compute90")
    return [part(dist, tmp_path / f"part{prefix}", prefix) for prefix in prefixes]


def test_gathered_parts_equal_one_complete_build(
    dist: Path, parts: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "whole"
    assert main(["gather", *map(str, parts), "--out", str(out)]) == 0
    assert sorted(os.listdir(out)) == sorted(os.listdir(dist))
    assert all((out / name).read_bytes() == (dist / name).read_bytes() for name in os.listdir(dist))


def test_a_part_built_at_once_with_another_lists_its_wheels_too(
    parts: list[Path], tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, notes = tmp_path / "out", BuildNotes()

    class Other(LockedFolder):
        """Lock that is free once the other build's wheels are in the folder."""

        def __enter__(self) -> None:
            for path in parts[1].iterdir():
                shutil.copyfile(path, out / path.name)
            super().__enter__()

    monkeypatch.setattr(pipeline, "LockedFolder", Other)
    order = BuildRequest(recipe=load_recipe(TINYVEC), targets=(Target.parse("sm_90"),))
    build_recipe(order, replace(effects, progress=notes), out=out)
    assert any(line.startswith("a part of a release: 1 of 3 targets") for line in notes.lines)
    for name in NAMES:
        listed = {
            one["file"].split("-")[0] for one in json.loads((out / name).read_text())["wheels"]
        }
        assert {"tinyvec_sm80", "tinyvec_sm90"} <= listed


def test_a_part_of_another_build_is_refused(dist: Path, parts: list[Path], tmp_path: Path) -> None:
    other = part(dist, tmp_path / "other", "tinyvec_sm90", build_id="0" * 64, epoch=1)
    with pytest.raises(VerifyError, match="different builds: build_id, epoch differ"):
        gather([*parts, other], out=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_two_wheels_of_one_name_must_be_the_same(
    dist: Path, parts: list[Path], tmp_path: Path
) -> None:
    again = part(dist, tmp_path / "again", "tinyvec_sm90")
    assert gather([*parts, again], out=tmp_path / "whole").wheels
    path = again / NAMES[0]
    content = json.loads(path.read_text())
    content["wheels"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(VerifyError, match="differs from the wheel of that name in another"):
        gather([*parts, again], out=tmp_path / "whole")


def test_changed_or_missing_wheel_of_a_report_is_refused(parts: list[Path], tmp_path: Path) -> None:
    (wheel,) = parts[1].glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-1])
    with pytest.raises(VerifyError, match=r"is not the file that archsplit-report\.json lists"):
        gather(parts, out=tmp_path / "whole")
    wheel.unlink()
    with pytest.raises(InputError, match=r"which its archsplit-report\.json lists"):
        gather(parts, out=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_builds_for_two_machines_are_two_releases(dist: Path, tmp_path: Path) -> None:
    other = part(dist, tmp_path / "other", "tinyvec", build_id="0" * 64)
    for name in NAMES:
        text = (other / name).read_text()
        (other / name).write_text(text.replace("_x86_64.whl", "_aarch64.whl"))
    with pytest.raises(VerifyError, match="different builds") as caught:
        gather([dist, other], out=tmp_path / "out")
    assert caught.value.hint is not None
    assert "builds for aarch64 and x86_64 are a release each" in caught.value.hint


def retag(folder: Path, plugin: str, glibc: str) -> None:
    """Let a plugin promise a glibc, as if its part was built in another image."""
    old = next(folder.glob(f"{plugin}-*.whl"))
    new = folder / re.sub(r"(none-).*(_x86_64)", rf"\1manylinux_{glibc}\2", old.name)
    tag = new.stem.removeprefix(f"{plugin}-1.2.3-").encode()

    def change(name: str, content: bytes) -> bytes:
        lines = re.sub(rb"(Tag: .*\n)+", b"Tag: " + tag + b"\n", content)
        return lines if name.endswith(".dist-info/WHEEL") else content

    rewrite(old, change)
    old.rename(new)
    for name in NAMES:
        content = json.loads((folder / name).read_text())
        for row in content["wheels"]:
            if row["file"] == old.name:
                row.update(file=new.name, size=new.stat().st_size, sha256=sha256(new))
        (folder / name).write_text(json.dumps(content))


def test_core_of_a_part_gets_the_digests_of_all_plugins(
    dist: Path, effects: Effects, tmp_path: Path
) -> None:
    first, rest, out = (tmp_path / name for name in ("first", "rest", "whole"))
    sm_80, *others = map(Target.parse, ("sm_80", "sm_90", "compute_90"))
    build_recipe(BuildRequest(recipe=load_recipe(TINYVEC), targets=(sm_80,)), effects, out=first)
    more = BuildRequest(recipe=load_recipe(TINYVEC), targets=tuple(others), core=False)
    build_recipe(more, effects, out=rest)
    core = next(dist.glob("tinyvec-1*"))
    assert (first / core.name).read_bytes() != core.read_bytes()
    gather([first], out=out, partial=True)
    assert (out / core.name).read_bytes() == (first / core.name).read_bytes()
    gather([rest], out=out)
    for path in sorted(dist.iterdir()):
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    # The same parts again change nothing.
    gather([first, rest], out=out)
    assert (out / core.name).read_bytes() == core.read_bytes()
    verify_release(out)


def test_core_promises_the_latest_glibc_of_its_parts(effects: Effects, tmp_path: Path) -> None:
    folders = []
    for target, glibc in (("sm_80", "2_28"), ("sm_90", "2_34"), ("compute_90", "2_28")):
        folders.append(tmp_path / target)
        order = BuildRequest(recipe=load_recipe(TINYVEC), targets=(Target.parse(target),))
        build_recipe(replace(order, core=target == "sm_80"), effects, out=folders[-1])
        retag(folders[-1], f"tinyvec_{target.replace('_', '')}", glibc)
    gather(folders[:2], out=tmp_path / "whole", partial=True)
    gather(folders[2:], out=tmp_path / "whole")
    (core,) = (tmp_path / "whole").glob("tinyvec-1*")
    assert "manylinux_2_34_x86_64" in core.name
    with open_wheel(core) as wheel:
        assert wheel.info.tags == wheel.name.tags
    verify_release(tmp_path / "whole")
