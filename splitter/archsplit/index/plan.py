"""What is uploaded, in which order and when, and what stands against it; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - a record's field
from typing import TYPE_CHECKING

from archsplit.index.release import CORE, META, ORDER, PLUGIN, SOURCE, Artifact
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.index.release import UploadRelease
    from archsplit.index.repository import Repository
    from archsplit.index.rules import Rules
    from archsplit.index.served import IndexPage

__pure__ = True
_PRIVATE = "split"
"""How the build tag of a core ends that was not made with `split --release`."""

_CLOSED = {"archived", "quarantined"}
"""Projects that take no files. Source: PEP 792."""


class Action(enum.Enum):
    """What is done with a file."""

    UPLOAD = "upload"
    SKIP = "skip"
    """It is on the index already, with the same content."""

    STOP = "stop"
    """The index has something else under that name."""


class NameStatus(enum.Enum):
    """Whose a project's name is, as far as one can know before an upload."""

    NEW = "new"
    """Nobody's: the first upload registers it."""

    YOURS = "yours"
    """It was registered from here, or has a file of this release."""

    TAKEN = "taken"
    """It is there. Whether it is yours, the index says when something is uploaded to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """What was found on the index.

    Attributes:
        projects: all of the release's, by name.
        same: for each file of the release that is there, whether its content is the same.
        registered: when projects were registered from here, of this release or not.
        owners: who the index says a project belongs to, where it says so.
    """

    projects: Mapping[str, IndexPage]
    same: Mapping[str, bool]
    registered: Mapping[str, datetime]
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def standing(self, name: str) -> NameStatus:
        """Whose a name is."""
        project = self.projects[name]
        if not project.exists:
            return NameStatus.NEW
        own = any(self.same.get(file) for file in project.files)
        return NameStatus.YOURS if own or name in self.registered else NameStatus.TAKEN

    def created(self) -> list[datetime]:
        """When names that are there now were registered, as far as anybody knows."""
        known = {
            name: project.created
            for name, project in self.projects.items()
            if project.exists and project.created is not None
        }
        # An attempt that left nothing has its turn again: its name is among the new ones.
        new = {name for name, project in self.projects.items() if not project.exists}
        here = {name: time for name, time in self.registered.items() if name not in new}
        return [*{**here, **known}.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStep:
    """One file.

    Attributes:
        when: the first moment at which it may be uploaded.
    """

    artifact: Artifact
    action: Action
    standing: NameStatus
    when: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """All that will be done.

    Attributes:
        made: the moment for which it holds.
        steps: in their order; one starts when all before it are done, and the core's only when what
            its extras need was proven to be there.
        refused: what the index's rules forbid.
        conflicts: what is on the index and is something else.
        notes: what is good to know.
        left_out: projects of the release that were not asked for.
        first: new projects, in groups that may have pending trusted publishers at a time.
    """

    project: str
    version: str
    repository: Repository
    rules: Rules
    made: datetime
    steps: tuple[UploadStep, ...]
    refused: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    first: tuple[tuple[str, ...], ...] = ()

    @property
    def uploads(self) -> tuple[UploadStep, ...]:
        """What isn't there yet."""
        return tuple(step for step in self.steps if step.action is Action.UPLOAD)

    @property
    def later(self) -> tuple[datetime, ...]:
        """The moments, after this one, at which something more may be uploaded."""
        return tuple(sorted({step.when for step in self.uploads if step.when > self.made}))


def plan_publish(
    release: UploadRelease,
    view: IndexState,
    *,
    repository: Repository,
    rules: Rules,
    now: datetime,
    only: frozenset[str] = frozenset(),
) -> PublishPlan:
    """Decide everything.

    Args:
        only: the projects whose files go up; empty for all.
    """
    ranked = sorted(release.artifacts, key=lambda one: _rank(one, view))
    ordered = [one for one in ranked if not only or one.project in only]
    new = [name for name in _names(ordered) if view.standing(name) is NameStatus.NEW]
    days = rules.days(new, view.created(), now)
    steps: list[UploadStep] = []
    for one in ordered:
        before = [step.when for step in steps if _waits(one, step.artifact)]
        steps.append(
            UploadStep(
                artifact=one,
                action=_action(one, view),
                standing=view.standing(one.project),
                when=max([now, days.get(one.project, now), *before]),
            )
        )
    return PublishPlan(
        project=release.project,
        version=release.version,
        repository=repository,
        rules=rules,
        made=now,
        steps=tuple(steps),
        refused=tuple(_refused(release, steps, view, rules)),
        conflicts=tuple(_conflicts(release, view)),
        notes=tuple(_notes(steps, view)),
        left_out=tuple(name for name in _names(ranked) if only and name not in only),
        first=tuple(rules.first_release(new)),
    )


def _rank(one: Artifact, view: IndexState) -> tuple[int, int, str, str]:
    """Names that may be somebody else's go first: a refusal comes before new names are used up."""
    doubt = [NameStatus.TAKEN, NameStatus.YOURS, NameStatus.NEW].index(view.standing(one.project))
    return ORDER.index(one.role), doubt, one.project, one.path.name


def _names(artifacts: list[Artifact]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.project for one in artifacts))


def _waits(one: Artifact, other: Artifact) -> bool:
    """Whether a file may only go up after another one."""
    before = {PLUGIN: (), CORE: (PLUGIN,), SOURCE: (PLUGIN, CORE), META: (PLUGIN, CORE, SOURCE)}
    return other.role in before[one.role]


def _action(one: Artifact, view: IndexState) -> Action:
    same = view.same.get(one.path.name)
    if same is None:
        return Action.UPLOAD
    return Action.SKIP if same else Action.STOP


def _refused(
    release: UploadRelease, steps: list[UploadStep], view: IndexState, rules: Rules
) -> Iterator[str]:
    if fault := rules.version_fault(release.version):
        yield fault
    sizes: dict[str, dict[str, int]] = {name: {} for name in release.projects}
    for step in steps:
        if step.action is Action.UPLOAD:
            one = step.artifact
            sizes[one.project][one.path.name] = one.size
            if fault := rules.tag_fault(one.platforms):
                yield f"{one.path.name} {fault}"
    there = {name: project.size for name, project in view.projects.items()}
    yield from rules.size_faults(sizes, there)
    for name, project in sorted(view.projects.items()):
        if project.status in _CLOSED and sizes[name]:
            yield f"{name} is {project.status} on the index, and takes no files"


def _conflicts(release: UploadRelease, view: IndexState) -> Iterator[str]:
    for one in release.artifacts:
        if one.path.name not in view.same:
            continue
        served = view.projects[one.project].files[one.path.name]
        if not view.same[one.path.name]:
            found = served.digests.get("sha256", "another digest")
            yield f"{one.path.name} is on the index with other content: {found}, here {one.sha256}"
        elif served.yanked is not None:
            why = f" ({served.yanked})" if served.yanked else ""
            yield f"{one.path.name} is on the index, but was yanked{why}"


def _notes(steps: list[UploadStep], view: IndexState) -> Iterator[str]:
    taken = {step.artifact.project for step in steps if step.standing is NameStatus.TAKEN}
    for name in sorted(taken):
        owners = view.owners.get(name)
        whose = f"belongs to {', '.join(owners)}" if owners else "is on the index already"
        yield f"{name} {whose}; whether you may upload to it shows when you do"
    for name, project in sorted(view.projects.items()):
        if project.unmeasured:
            yield f"{name}: the index doesn't say how big {project.unmeasured} of its files are"
    for step in steps:
        one = step.artifact
        if one.role == CORE and WheelName.parse(one.path.name).build.endswith(_PRIVATE):
            yield (
                f"{one.path.name} has a build tag, for private use beside the fat wheel;"
                " `archsplit split --release` makes the core that takes its place"
            )
    live = {step.artifact.role for step in steps if step.action is Action.SKIP}
    if CORE in live and any(s.action is Action.UPLOAD for s in steps if s.artifact.role == PLUGIN):
        yield "the core is live already, and not all of its plugins are"
