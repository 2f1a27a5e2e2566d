"""Plans of a publication: rules, days, order, and their text."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from publish_samples import artifact

from archsplit.errors import ConflictError, IndexRefusedError, VerifyError
from archsplit.index.client import IndexFile, IndexPage, Repository, comparable
from archsplit.index.plan import (
    DAY,
    Action,
    IndexState,
    NameStatus,
    PublishPlan,
    Rules,
    plan_document,
    plan_publish,
    plan_text,
)
from archsplit.index.publish import LiveFile, Publication, refuse
from archsplit.index.release import CORE, META, PLUGIN, SOURCE, Artifact, UploadRelease
from archsplit.index.retry import retry_after_seconds

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
PLACE = Repository(
    upload="https://upload.pypi.org/legacy/", index="https://pypi.org/simple/", is_public=True
)
PUBLIC = Rules()


def release(plugins: int, *more: Artifact) -> UploadRelease:
    own = [artifact(f"foo-sm{number}", PLUGIN) for number in range(plugins)]
    artifacts = (*own, artifact("foo", CORE), *more)
    return UploadRelease(project="foo", version="1.0", artifacts=artifacts, builds={})


def served(one: Artifact, **more: object) -> IndexFile:
    own = {"digests": {"sha256": one.sha256}, "size": one.size, **more}
    return IndexFile(name=one.path.name, url="https://host/file", **own)  # type: ignore[arg-type] # fields by name


def view(
    what: UploadRelease, *there: Artifact, old: tuple[str, ...] = (), **more: object
) -> IndexState:
    """An index that has some files, and some projects with files of other versions alone."""
    projects = {name: IndexPage(name=name, exists=name in old) for name in what.projects}
    for one in there:
        projects[one.project] = IndexPage(
            name=one.project, exists=True, files={one.path.name: served(one)}
        )
    same = {one.path.name: True for one in there}
    fields = {"registered": {}, "same": same, "projects": projects, **more}
    return IndexState(**fields)  # type: ignore[arg-type] # fields by name


def plan(what: UploadRelease, seen: IndexState, rules: Rules = PUBLIC) -> PublishPlan:
    return plan_publish(what, seen, repository=PLACE, rules=rules, now=NOW)


def roles(made: PublishPlan) -> list[str]:
    return [step.artifact.role for step in made.steps]


def hours(made: PublishPlan) -> list[float]:
    return [(step.when - NOW).total_seconds() / 3600 for step in made.steps]


def test_the_core_comes_after_its_plugins_and_before_the_meta_wheel() -> None:
    source = replace(artifact("foo", SOURCE), path=Path("/dist/foo-1.0.tar.gz"))
    what = release(2, artifact("foo-all", META), source)
    made = plan(what, view(what), replace(PUBLIC, names_a_day=None))
    assert roles(made) == ["plugin", "plugin", "core", "source", "meta"]
    assert hours(made) == [0] * 5
    assert made.later == ()


def test_nine_new_names_take_three_days() -> None:
    made = plan(release(8), view(release(8)))
    assert hours(made) == [0] * 4 + [24] * 4 + [48]
    assert made.later == (NOW + DAY, NOW + 2 * DAY)
    assert "the index allows 4 new names in 24 hours: go on at 2026-11-22T12:00:00Z" in plan_text(
        made
    )


def test_names_that_are_there_cost_nothing_and_go_first() -> None:
    what = release(5)
    made = plan(what, view(what, old=("foo-sm4", "foo")))
    assert made.steps[0].artifact.project == "foo-sm4"
    assert hours(made) == [0] * 6
    assert [step.standing for step in made.steps][::5] == [NameStatus.TAKEN] * 2
    assert "foo-sm4 is on the index already; whether you may upload to it" in plan_text(made)


def test_core_whose_name_is_there_waits_for_its_plugins() -> None:
    what = release(5)
    assert hours(plan(what, view(what, old=("foo",)))) == [0, 0, 0, 0, 24, 24]


def test_owners_are_told_where_the_index_tells() -> None:
    what = release(0)
    made = plan(what, view(what, old=("foo",), owners={"foo": ("alice", "bob")}))
    assert made.notes[0].startswith("foo belongs to alice, bob; whether")


def test_what_was_registered_a_moment_ago_counts() -> None:
    what = release(4)
    there = what.artifacts[:2]
    ago = NOW - timedelta(hours=20)
    seen = view(what, *there, registered={"foo-sm0": ago, "foo-sm1": ago, "bar": ago})
    assert hours(plan(what, seen)) == [0, 0, 0, 4, 4]


def test_index_itself_says_when_names_were_registered() -> None:
    what = release(4)
    seen = view(what)
    projects = dict(seen.projects)
    for one in what.artifacts[:3]:
        times = [served(one, uploaded=NOW - timedelta(hours=age)) for age in (1, 23)]
        files = {str(number): file for number, file in enumerate(times)}
        projects[one.project] = IndexPage(name=one.project, exists=True, files=files)
    # The three of yesterday leave one place; it is free again an hour from now.
    assert hours(plan(what, replace(seen, projects=projects))) == [0, 0, 0, 0, 1]


def test_attempt_that_left_nothing_has_its_turn_again() -> None:
    what = release(3)
    names = [one.project for one in what.artifacts]
    seen = view(what, registered=dict.fromkeys(names, NOW - timedelta(minutes=1)))
    assert hours(plan(what, seen)) == [0] * 4


@given(st.lists(st.integers(0, 48), max_size=8), st.integers(0, 12), st.integers(1, 5))
def test_no_day_has_more_names_than_allowed(ages: list[int], count: int, limit: int) -> None:
    created = [NOW - timedelta(hours=age) for age in ages]
    names = [str(number) for number in range(count)]
    when = Rules(names_a_day=limit).days(names, created, NOW)
    moments = sorted([*when.values(), *created])
    assert list(when) == names
    assert list(when.values()) == sorted(when.values())
    for time in when.values():
        recent = [each for each in moments if time - DAY < each <= time]
        assert len(recent) <= max(limit, sum(time - DAY < each for each in created))


def test_other_content_and_what_was_yanked_are_conflicts() -> None:
    what = release(2)
    one, two, _ = what.artifacts
    seen = view(what, one, two)
    projects = {**seen.projects}
    for why in ("", "it is broken"):
        files = {two.path.name: served(two, yanked=why)}
        projects[two.project] = IndexPage(name=two.project, exists=True, files=files)
        made = plan(
            what, replace(seen, projects=projects, same={**seen.same, one.path.name: False})
        )
        actions = [step.action for step in made.steps]
        assert actions == [Action.STOP, Action.SKIP, Action.UPLOAD]
        assert len(made.conflicts) == 2
        assert made.conflicts[1].endswith(f"was yanked ({why})" if why else "was yanked")
        assert "CONFLICT" in plan_text(made)
        with pytest.raises(ConflictError, match="nothing was uploaded"):
            refuse(made)


def test_what_the_rules_forbid() -> None:
    what = release(1)
    big, core = what.artifacts
    big = replace(big, size=100_000_001, platforms=("linux_x86_64",))
    what = replace(what, version="1.0+cu130", artifacts=(big, core))
    full = served(core, size=10_000_000_000 - 999, uploaded=NOW - 9 * DAY)
    seen = view(what)
    projects = {
        **seen.projects,
        "foo": IndexPage(name="foo", exists=True, files={"x": full}, status="archived"),
    }
    made = plan(what, replace(seen, projects=projects))
    assert made.refused == (
        "version 1.0+cu130 has a local label (+cu130), which the index refuses",
        "foo_sm0-1.0-py3-none-manylinux_2_17_x86_64.whl is tagged linux_x86_64, and the index wants"
        " manylinux",
        "foo would have 10.00 GB on the index, 1 B more than the 10.00 GB allowed to a project",
        "foo_sm0-1.0-py3-none-manylinux_2_17_x86_64.whl has 100.0 MB,"
        " 1 B more than the 100.0 MB allowed to a file",
        "foo is archived on the index, and takes no files",
    )
    with pytest.raises(IndexRefusedError, match="nothing was uploaded"):
        refuse(made)
    allowed = Rules(
        file_bytes=10**9,
        project_bytes=10**11,
        names_a_day=None,
        local_versions=True,
        linux_wheels=True,
    )
    assert len(plan(what, replace(seen, projects=projects), allowed).refused) == 1


@pytest.mark.parametrize("wrong", [{"file_bytes": 0}, {"project_bytes": 0}, {"names_a_day": 0}])
def test_limits_are_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Rules(**wrong)  # type: ignore[arg-type] # fields by name


def test_live_core_without_its_plugins_is_told() -> None:
    what = release(2)
    made = plan(what, view(what, what.artifacts[0], what.artifacts[2]))
    assert made.notes[-1] == "the core is live already, and not all of its plugins are"


def test_plan_is_told_to_programs() -> None:
    attested = artifact("foo-sm0", PLUGIN, attestations=(Path("/dist/a.publish.attestation"),))
    what = UploadRelease(
        project="foo", version="1.0", artifacts=(attested, artifact("foo", CORE)), builds={}
    )
    made = plan(what, view(what, what.artifacts[1]))
    content = json.loads(json.dumps(plan_document(made)))
    assert content["files"][0]["attestations"] == ["a.publish.attestation"]
    assert content["files"][0]["when"] == "2026-11-21T12:00:00Z"
    assert content["files"][1]["when"] is None
    assert content["rules"]["names_a_day"] == 4
    assert "upload, a new name, attested" in plan_text(made)
    assert "is there" in plan_text(made)


def test_index_that_says_no_sizes_is_told() -> None:
    what = release(0)
    (core,) = what.artifacts
    unmeasured = IndexPage(name="foo", exists=True, files={"x": served(core, size=None)})
    seen = replace(view(what), projects={"foo": unmeasured})
    assert "the index doesn't say how big 1 of its files are" in plan(what, seen).notes[1]
    assert unmeasured.created is None


def test_publication_is_told() -> None:
    what = release(1, artifact("foo-all", META))
    made = plan(what, view(what))
    live = tuple(
        LiveFile(artifact=one, served=served(one), uploaded_now=one.role == CORE)
        for one in what.artifacts
    )
    done = Publication(plan=made, live=live, resolved=("foo[all,cc80]==1.0", "foo[all]==1.0"))
    assert done.text().count("pip install") == 1
    assert "foo 1.0 is live: 3 files, 1 uploaded now" in done.text()
    assert 'pip install --index-url https://pypi.org/simple/ "foo[all]==1.0"' in done.text()
    assert json.loads(done.as_json())["complete"]
    part = Publication(plan=made, live=live[:1], next=NOW + DAY)
    assert "2 files wait for new names: run it again at 2026-11-22T12:00:00Z" in part.text()
    assert "until then nobody gets foo 1.0" in part.text()
    assert not json.loads(part.as_json())["core_is_live"]
    assert "until then" not in Publication(plan=made, live=live[:2], next=NOW + DAY).text()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:30"}, 30),
        ({"Retry-After": "Fri, 20 Nov 2026 12:00:30 GMT"}, 0),
        ({"Retry-After": "soon"}, None),
        (
            {"RateLimit": '"project.create.ip";r=0;t=55569, "project.create.user";r=2;t=60000'},
            55569,
        ),
        ({"RateLimit": '"a";r=3;t=9', "Retry-After": "2"}, 2),
    ],
)
def test_seconds_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


def test_strongest_digest_is_compared() -> None:
    assert comparable({"md5": "", "sha256": ""}) == "sha256"
    assert comparable({"crc32": ""}) is None


def test_new_names_are_grouped_as_pending_publishers_may_be() -> None:
    assert list(PUBLIC.first_release(["a", "b", "c", "d"])) == [("a", "b", "c"), ("d",)]
    assert list(Rules(pending_publishers=None).first_release(["a"])) == []


def test_a_private_core_and_an_index_without_pending_publishers_are_noted() -> None:
    what = release(1)
    made = plan(what, view(what), Rules(pending_publishers=None))
    assert made.first == ()
    assert "trusted publishing" not in plan_text(made)
    (core,) = what.of(CORE)
    private = replace(core, path=core.path.with_name("foo-1.0-0split-py3-none-any.whl"))
    own = UploadRelease(project="foo", version="1.0", artifacts=(private,), builds={})
    (note,) = plan(own, view(own)).notes
    assert "has a build tag, for private use beside the fat wheel" in note


def test_each_new_name_has_a_command_of_its_own() -> None:
    what = release(3)
    text = plan_text(plan(what, view(what)))
    assert "1. register pending publishers for foo-sm0, foo-sm1, foo-sm2; then, in the" in text
    commands = [line.strip() for line in text.splitlines() if "publish --only" in line]
    assert commands == [
        f"archsplit publish --only {name}" for name in ("foo-sm0", "foo-sm1", "foo-sm2", "foo")
    ]


def test_a_core_alone_names_the_plugins_that_it_needs_first() -> None:
    what = release(2)
    there, missing = what.of(PLUGIN)

    def core_alone(seen: IndexState) -> PublishPlan:
        only = frozenset({"foo"})
        return plan_publish(what, seen, repository=PLACE, rules=PUBLIC, now=NOW, only=only)

    made = core_alone(view(what, there))
    assert made.missing == ("foo-sm1",)
    assert plan_document(made)["missing"] == ["foo-sm1"]
    assert "missing before the core: foo-sm1" in plan_text(made)
    with pytest.raises(VerifyError, match="foo needs foo-sm1 on the index first"):
        refuse(made)
    assert core_alone(view(what, there, missing)).missing == ()
    # A core that is there needs nothing from this run.
    assert core_alone(view(what, *what.of(CORE))).missing == ()
