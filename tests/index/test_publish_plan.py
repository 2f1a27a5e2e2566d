"""Plans of a publication: rules, days, order, and their text."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from publish_samples import artifact

from archsplit.errors import ConflictError, IndexRefusedError, VerifyError
from archsplit.index.client import IndexFile, IndexPage, Repository
from archsplit.index.plan import (
    FILE_BYTES,
    PROJECT_BYTES,
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
PUBLIC = Rules(file_bytes=FILE_BYTES, project_bytes=PROJECT_BYTES)


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
    """An index that has some files, and some projects with only files of other versions."""
    projects = {name: IndexPage(name=name, exists=name in old) for name in what.projects}
    for one in there:
        projects[one.project] = IndexPage(
            name=one.project, exists=True, files={one.path.name: served(one)}
        )
    same = {one.path.name: True for one in there}
    fields = {"same": same, "projects": projects, **more}
    return IndexState(**fields)  # type: ignore[arg-type] # fields by name


def plan(what: UploadRelease, seen: IndexState, rules: Rules = PUBLIC) -> PublishPlan:
    return plan_publish(what, seen, repository=PLACE, rules=rules, now=NOW)


def roles(made: PublishPlan) -> list[str]:
    return [step.artifact.role for step in made.steps]


def test_the_core_comes_after_its_plugins_and_before_the_meta_wheel() -> None:
    source = replace(artifact("foo", SOURCE), path=Path("/dist/foo-1.0.tar.gz"))
    what = release(2, artifact("foo-all", META), source)
    made = plan(what, view(what))
    assert roles(made) == ["plugin", "plugin", "core", "source", "meta"]


def test_existing_names_are_free_and_first() -> None:
    what = release(5)
    made = plan(what, view(what, old=("foo-sm4", "foo")))
    assert made.steps[0].artifact.project == "foo-sm4"
    assert [step.status for step in made.steps][::5] == [NameStatus.TAKEN] * 2
    # A line for each would be as long as the release, from the second version on.
    assert "warning: on the index already: foo, foo-sm4; only the upload" in plan_text(made)


def test_different_or_yanked_files_are_conflicts() -> None:
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


def test_foreign_wheels_of_the_version_are_conflicts_if_installers_prefer_them() -> None:
    what = release(1)
    core = what.artifacts[-1]
    begin, end = "foo-1.0-", "py3-none-manylinux_2_17_x86_64"
    names = (f"{begin}1-{end}.whl", f"{begin}{end}.manylinux2014_x86_64.whl", "foo-1.0.tar.gz")
    # Wheels of another version and for another machine are no rivals.
    others = (f"foo-0.9-{end}.whl", f"{begin}py3-none-manylinux_2_17_aarch64.whl")
    files = {name: replace(served(core), name=name) for name in (*names, *others)}
    seen = view(what)
    page = IndexPage(name="foo", exists=True, files=files)
    made = plan(what, replace(seen, projects={**seen.projects, "foo": page}))
    name = core.path.name
    assert made.conflicts == (f"pip takes {names[0]}, which is on the index, and not {name}",)
    warning = f"{names[1]} is also on the index; some installers may choose it instead of {name}"
    assert warning in made.notes
    assert f"warning: {warning}" in plan_text(made)


def test_plan_without_limits_names_none() -> None:
    what = release(1)
    unlimited = Rules(is_public=False)
    assert "allowed are" not in plan_text(plan(what, view(what), unlimited))
    only_files = Rules(is_public=False, file_bytes=1_000_000)
    assert "; allowed are 1 MB a file\n" in plan_text(plan(what, view(what), only_files)) + "\n"


def test_plan_lists_all_broken_rules() -> None:
    what = release(1)
    big, core = what.artifacts
    big = replace(big, size=100_000_001, platforms=("linux_x86_64",))
    what = replace(what, version="1.0+cu130", artifacts=(big, core))
    full = served(core, size=10_000_000_000 - 999)
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
        "foo would have 10.0 GB on the index, 1 B more than the 10.0 GB allowed to a project",
        "foo_sm0-1.0-py3-none-manylinux_2_17_x86_64.whl has 100 MB,"
        " 1 B more than the 100 MB allowed to a file",
        "foo is archived on the index, and accepts no files",
    )
    with pytest.raises(IndexRefusedError, match="nothing was uploaded"):
        refuse(made)
    allowed = Rules(is_public=False)
    assert len(plan(what, replace(seen, projects=projects), allowed).refused) == 1


def test_live_core_without_its_plugins_is_told() -> None:
    what = release(2)
    made = plan(what, view(what, what.artifacts[0], what.artifacts[2]))
    assert made.notes[-1] == "the core is already live, but some of its plugins are not"


def test_plan_is_told_to_programs() -> None:
    attested = artifact("foo-sm0", PLUGIN, attestations=(Path("/dist/a.publish.attestation"),))
    what = UploadRelease(
        project="foo", version="1.0", artifacts=(attested, artifact("foo", CORE)), builds={}
    )
    made = plan(what, view(what, what.artifacts[1]))
    content = json.loads(json.dumps(plan_document(made)))
    assert content["files"][0]["attestations"] == ["a.publish.attestation"]
    assert content["new_names"] == ["foo-sm0"]
    assert content["rules"]["is_public"]
    assert "upload, a new name, attested" in plan_text(made)
    assert "on the index" in plan_text(made)


def test_index_without_sizes_is_reported() -> None:
    what = release(0)
    (core,) = what.artifacts
    unmeasured = IndexPage(name="foo", exists=True, files={"x": served(core, size=None)})
    seen = replace(view(what), projects={"foo": unmeasured})
    assert "the index lists no size for 1 of its files" in plan(what, seen).notes[1]


def test_publication_is_told() -> None:
    what = release(1, artifact("foo-all", META))
    made = plan(what, view(what))
    live = tuple(
        LiveFile(artifact=one, served=served(one), uploaded_now=one.role == CORE)
        for one in what.artifacts
    )
    done = Publication(plan=made, live=live, requirement="foo[all]==1.0")
    assert "foo 1.0 is live: 3 files, 1 uploaded now" in done.text()
    assert 'next: pip install --index-url https://pypi.org/simple/ "foo[all]==1.0"' in done.text()
    assert json.loads(done.as_json())["complete"]
    part = Publication(plan=made, live=live[:1])
    assert not json.loads(part.as_json())["core_is_live"]


@pytest.mark.parametrize(("plugins", "is_warned"), [(3, False), (4, True)])
def test_more_new_names_than_a_day_has_are_one_warning(plugins: int, *, is_warned: bool) -> None:
    text = plan_text(plan(release(plugins), view(release(plugins))))
    assert ("warning: the release has 5 new names, and the index takes 4" in text) == is_warned


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


def test_core_for_private_use_is_noted() -> None:
    what = release(1)
    assert "trusted publishing" not in plan_text(plan(what, view(what), Rules(is_public=False)))
    (core,) = what.of(CORE)
    private = replace(core, path=core.path.with_name("foo-1.0-0split-py3-none-any.whl"))
    own = UploadRelease(project="foo", version="1.0", artifacts=(private,), builds={})
    (note,) = plan(own, view(own)).notes
    assert "has a build tag, for private use beside the fat wheel" in note


def test_new_names_are_listed_for_trusted_publishing() -> None:
    what = release(3)
    text = plan_text(plan(what, view(what)))
    assert "register 3 pending publishers at a time" in text
    assert "`archsplit publish --only NAME`, for foo-sm0, foo-sm1, foo-sm2, foo" in text


def test_core_without_plugins_names_its_missing_plugins() -> None:
    what = release(2)
    there, missing = what.of(PLUGIN)

    def plan_of_core(seen: IndexState) -> PublishPlan:
        only = frozenset({"foo"})
        return plan_publish(what, seen, repository=PLACE, rules=PUBLIC, now=NOW, only=only)

    made = plan_of_core(view(what, there))
    assert made.missing == ("foo-sm1",)
    assert plan_document(made)["missing"] == ["foo-sm1"]
    assert "error: the core needs foo-sm1 on the index first" in plan_text(made)
    with pytest.raises(VerifyError, match="foo needs foo-sm1 on the index first"):
        refuse(made)
    assert plan_of_core(view(what, there, missing)).missing == ()
    # A core that is there needs nothing from this run.
    assert plan_of_core(view(what, *what.of(CORE))).missing == ()
