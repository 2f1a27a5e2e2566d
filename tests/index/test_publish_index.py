"""Publish to a real index, through a server that misbehaves on order."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from publish_samples import SECRET, USER, Asked, Fault, Scene, make_python_release

from archsplit.errors import (
    ArchsplitError,
    ConflictError,
    IndexRefusedError,
    IndexUnreachableError,
    TryLaterError,
    UsageError,
    VerifyError,
)
from archsplit.index.preflight import preflight_check
from archsplit.index.release import CORE, PLUGIN, read_release
from archsplit.release.completeness import CheckOptions
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.index.plan import PublishPlan
    from archsplit.index.publish import Publication, Publisher


def publish(scene: Scene, publisher: Publisher | None = None) -> Publication:
    publisher = publisher or scene.publisher()
    scene.server.after = lambda _: scene.check_invariant()
    return publisher.publish(read_release([scene.dist]), scene.plans.append)


def uploads(*faults: Fault | None) -> Callable[[Asked], Fault | None]:
    """The faults of the first uploads, one by one."""
    left = list(faults)
    return lambda asked: left.pop(0) if asked.is_upload and left else None


def refusal(scene: Scene, kind: type[ArchsplitError], publisher: Publisher | None = None) -> str:
    with pytest.raises(kind) as caught:
        publish(scene, publisher)
    return str(caught.value)


def test_plugins_go_first_and_a_second_run_uploads_nothing(scene: Scene) -> None:
    publication = publish(scene)
    assert publication.is_complete
    assert publication.requirement == "toyfat[all]==1.0"
    names = [scene.wheel(part).name for part in ("_cc80", "_cc90", "")]
    assert scene.server.uploads() == names
    again = publish(scene)
    assert again.is_complete
    assert not any(one.uploaded_now for one in again.live)
    assert scene.server.uploads() == names
    content = json.loads(again.as_json())
    assert content["core_is_live"]
    assert [row["file"] for row in content["live"]] == names


@pytest.mark.parametrize(
    "tags",
    [
        ("cp310", "cp311"),
        pytest.param(("cp310", "cp311", "cp312", "cp313", "cp314"), marks=pytest.mark.stress),
    ],
)
def test_release_with_different_images_per_python_is_complete(
    scene: Scene, tmp_path: Path, tags: tuple[str, ...]
) -> None:
    """A pack has a file for each Python: the index needs all of them before a core."""
    scene.dist = make_python_release(tmp_path / "pythons", *tags)
    release = read_release([scene.dist])
    projects = [one.project for one in release.of(PLUGIN)]
    assert len(projects) > len(set(projects))
    preflight_check(release, scene.publisher().effects, CheckOptions(install=False))
    publication = scene.publisher().publish(release, scene.plans.append)
    assert publication.is_complete
    roles = [one.artifact.role for one in publication.live]
    assert roles == [PLUGIN] * len(projects) + [CORE] * len(tags)
    # Only `join` needs the images that no GPU takes.
    unused = {path.name for path in scene.dist.glob("toyfat_rest-*.whl")}
    assert unused
    assert scene.names() == {path.name for path in scene.dist.glob("*.whl")} - unused


def test_projects_are_published_one_by_one_with_the_core_last(scene: Scene) -> None:
    def only(*names: str) -> Publication:
        return publish(scene, replace(scene.publisher(), only=frozenset(names)))

    first = only("toyfat-cc80")
    assert scene.server.uploads() == [scene.wheel("_cc80").name]
    assert "live files: 1; --only left out toyfat-cc90, toyfat" in first.text()
    assert not json.loads(first.as_json())["complete"]
    only_core = replace(scene.publisher(), only=frozenset({"toyfat"}))
    assert "toyfat-cc90" in refusal(scene, VerifyError, only_core)
    assert scene.wheel("").name not in scene.server.uploads()
    only("toyfat-cc90")
    assert only("toyfat").core_is_live
    with pytest.raises(UsageError, match=r"toyfat-cc70 is not a project of toyfat 1\.0"):
        only("toyfat-cc70")


def test_other_content_under_a_name_stops_before_anything_is_uploaded(scene: Scene) -> None:
    other = scene.wheel("_cc90")
    (scene.files / other.name).write_bytes(b"something else")
    text = refusal(scene, ConflictError)
    assert f"{other.name} is on the index with other content" in text
    assert scene.server.uploads() == []


def test_file_changed_after_the_plan_is_not_uploaded(scene: Scene) -> None:
    release = read_release([scene.dist])
    publisher = scene.publisher()

    def change(_: PublishPlan) -> None:
        scene.wheel("_cc90").write_text("changed")

    with pytest.raises(VerifyError, match="has changed since it was verified"):
        publisher.publish(release, change)
    assert scene.names() == {scene.wheel("_cc80").name}


def test_temporary_failures_are_retried(scene: Scene) -> None:
    """A busy index, a connection that breaks, and an answer that gets lost on its way."""
    busy = Fault(status=429, reason="Too Many Requests", headers={"Retry-After": "17"})
    faults = (busy, None, Fault(drop="before"), None, Fault(drop="after"))
    scene.server.before = uploads(*faults)
    assert publish(scene).is_complete
    assert scene.clock.slept == [17, 1]
    assert "429 Too Many Requests; retrying in 17 s" in scene.notes[0]
    assert len(scene.server.uploads()) == len(faults)


def test_failing_index_is_retried(scene: Scene) -> None:
    # twine itself asks five times when it gets a 5xx.
    scene.server.before = uploads(*[Fault(status=500)] * 5, *[Fault(status=503)] * 5)
    assert publish(scene).is_complete
    assert scene.clock.slept == [1, 2]


def test_permanently_failing_index_is_given_up(scene: Scene) -> None:
    scene.server.before = lambda asked: Fault(status=502) if asked.is_upload else None
    text = refusal(scene, IndexUnreachableError, scene.publisher(patience=2))
    assert "502" in text
    assert "run the same command again" in text
    assert scene.names() == set()


class ImpatientOnce(SubprocessRunner):
    """Gives the first upload two seconds; a slow machine gets all the time for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.is_first = True

    def run(self, command: Command) -> CompletedProcess:
        if "upload" in command.argv and self.is_first:
            self.is_first = False
            command = command._replace(timeout=2.0)
        return super().run(command)


def test_hanging_index_times_out(scene: Scene) -> None:
    scene.server.before = lambda asked: (
        Fault(hang=True) if asked.is_upload and not scene.notes else None
    )
    publisher = scene.publisher()
    hasty = replace(publisher, twine=replace(publisher.twine, runner=ImpatientOnce()))
    assert publish(scene, hasty).is_complete
    assert "no reply within" in scene.notes[0]


def test_reading_is_tried_again_too(scene: Scene) -> None:
    left = [
        Fault(status=503),
        Fault(drop="before"),
        Fault(status=429, headers={"Retry-After": "9"}),
    ]
    scene.server.before = lambda _: left.pop() if left else None
    assert publish(scene).is_complete
    assert scene.clock.slept[:3] == [9, 2, 4]


def test_no_more_names_today_is_not_tried_again(scene: Scene) -> None:
    limit = {"RateLimit": '"project.create.user";r=0;t=55569, "project.create.ip";r=1;t=3'}
    full = Fault(status=429, reason="Too many new projects created", headers=limit)
    scene.server.before = uploads(None, full)
    text = refusal(scene, TryLaterError)
    assert "2026-11-22T03:26:09Z" in text
    assert len(scene.server.uploads()) == 2
    assert scene.clock.slept == []


def test_core_live_before_its_plugins_is_noted(scene: Scene) -> None:
    (scene.files / scene.wheel("").name).write_bytes(scene.wheel("").read_bytes())
    publication = scene.publisher().publish(read_release([scene.dist]), scene.plans.append)
    assert publication.is_complete
    assert scene.plans[0].notes[-1] == "the core is already live, but some of its plugins are not"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"file_bytes": 1000}, "more than the 1.00 kB allowed to a file"),
        ({"project_bytes": 1000}, "allowed to a project"),
    ],
)
def test_upload_over_the_index_limits_is_not_begun(
    scene: Scene, rules: dict[str, int], text: str
) -> None:
    assert text in refusal(scene, IndexRefusedError, scene.publisher(**rules))
    assert scene.server.uploads() == []


def test_refusal_is_explained_without_secrets(scene: Scene) -> None:
    def echo(asked: Asked) -> Fault | None:
        told = f"no: {asked.headers.get('Authorization')} {USER}:{SECRET} http://a:b@host/"
        return (
            Fault(status=403, reason="Forbidden", body=told.encode()) if asked.is_upload else None
        )

    scene.server.before = echo
    text = refusal(scene, IndexRefusedError)
    assert "403 Forbidden: no: Basic *** release-engineer:*** http://host/" in text
    assert "may not upload to toyfat-cc80" in text
    assert SECRET not in text
    assert scene.server.uploads() == [scene.wheel("_cc80").name]


def test_late_conflict_stops_the_upload(scene: Scene) -> None:
    """Somebody else publishes the same version at the same time."""

    def race(asked: Asked) -> Fault | None:
        if asked.is_upload and asked.file == scene.wheel("_cc90").name:
            (scene.files / asked.file).write_bytes(b"somebody else's")
        return None

    scene.server.before = race
    assert "on the index with other content" in refusal(scene, ConflictError)
    assert scene.wheel("").name not in scene.names()


def test_core_waits_until_the_index_shows_its_plugins(scene: Scene) -> None:
    hidden = 3

    def cached(asked: Asked) -> Fault | None:
        """An old page of one plugin, for some time."""
        nonlocal hidden
        page = asked.path == "/simple/toyfat-cc90/" and scene.wheel("_cc90").name in scene.names()
        if page and hidden and not asked.headers["User-Agent"].startswith("pip"):
            hidden -= 1
            return Fault(status=404)
        return None

    scene.server.before = cached
    assert publish(scene).is_complete
    assert scene.clock.slept == [1, 2, 4]
    assert "not there: toyfat_cc90" in scene.notes[0]


def test_core_stays_here_when_a_plugin_never_shows(scene: Scene) -> None:
    def blind(asked: Asked) -> Fault | None:
        return Fault(status=404) if asked.path == "/simple/toyfat-cc90/" else None

    scene.server.before = blind
    refusal(scene, IndexUnreachableError, scene.publisher(patience=5))
    assert scene.wheel("").name not in scene.names()


def test_core_stays_here_when_the_index_serves_other_bytes(scene: Scene) -> None:
    def spoiled(asked: Asked) -> Fault | None:
        other = asked.method == "GET" and asked.path.startswith("/packages/toyfat_cc90")
        return Fault(corrupt=True) if other else None

    scene.server.before = spoiled
    assert "has different bytes than were uploaded" in refusal(scene, VerifyError)
    assert scene.wheel("").name not in scene.names()


def test_other_file_of_the_version_on_the_same_index_is_a_failure(scene: Scene, made: Path) -> None:
    (fat,) = made.with_name("made").glob("*.whl")
    other = scene.files / fat.name.replace("-1.0-", "-1.0-7-")
    with zipfile.ZipFile(fat) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            end = b"Build: 7\n" if name.endswith("/WHEEL") else b""
            new.writestr(name, old.read(name) + end)
    text = refusal(scene, ConflictError)
    assert f"pip takes {other.name}, which is on the index, and not {scene.wheel('').name}" in text
    assert scene.server.uploads() == []


def test_fat_wheel_with_reordered_tags_is_a_conflict(scene: Scene, made: Path) -> None:
    """An index compares normalized names: both spellings are one file to it."""
    (fat,) = made.with_name("made").glob("*.whl")
    tags = ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
    core = scene.wheel("")
    ours, theirs = (core.name.replace(tags[1], ".".join(each)) for each in (tags, tags[::-1]))
    core.rename(core.with_name(ours))
    report = scene.dist / "archsplit-report.json"
    report.write_text(report.read_text().replace(core.name, ours))
    (scene.files / theirs).write_bytes(fat.read_bytes())
    text = refusal(scene, ConflictError)
    assert f"{ours} is on the index as {theirs} with other content" in text
    assert scene.server.uploads() == []
