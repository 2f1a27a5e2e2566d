"""A plan of a publication: files, order, obstacles; pure.

In come a release, the state of the index and the index's rules; out comes a plan, also as text and
as JSON. Plugins go before their core.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from archsplit.index.client import wheel_key
from archsplit.index.release import CORE, ORDER, PLUGIN, SOURCE, Artifact
from archsplit.index.retry import utc_text
from archsplit.system.units import short_size
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from archsplit.index.client import IndexPage, Repository
    from archsplit.index.release import UploadRelease

__pure__ = True

_PRIVATE = "split"
"""End of the build tag of a core from a split without ``--release``."""

_CLOSED = {"archived", "quarantined"}
"""Projects that take no files. Source: PEP 792."""

FILE_BYTES = 100_000_000
PROJECT_BYTES = 10_000_000_000
NAMES_A_DAY = 4
PENDING_PUBLISHERS = 3
"""Trusted publishers of an account for projects that don't exist yet. Each needs a workflow and an
environment that no other pending one has. Source: warehouse, ``manage/views``, and
https://docs.pypi.org/trusted-publishers/creating-a-project-through-oidc/
"""

PUBLISH_PLAN_SCHEMA = 1


class Action(enum.Enum):
    """Action for a file."""

    UPLOAD = "upload"
    SKIP = "skip"
    """The index has the file already, with the same content."""

    STOP = "stop"
    """The index has something else under that name."""


class NameStatus(enum.Enum):
    """Owner of a project's name, as far as known before an upload."""

    NEW = "new"
    """Free: the first upload registers the name."""

    YOURS = "yours"
    """The index has a file of this release."""

    TAKEN = "taken"
    """Registered by an unknown account. Only an upload shows if it is yours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """State of the index.

    Attributes:
        projects: all projects of the release, by name.
        same: by file name, for files that the index has; True for the same content.
    """

    projects: Mapping[str, IndexPage]
    same: Mapping[str, bool]

    def status(self, name: str) -> NameStatus:
        """Return the owner of a name, as far as the index shows one."""
        project = self.projects[name]
        if not project.exists:
            return NameStatus.NEW
        # No other user has these bytes before they are live, so this user uploaded them.
        own = any(self.same.get(file) for file in project.files)
        return NameStatus.YOURS if own else NameStatus.TAKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStep:
    """A file of the plan."""

    artifact: Artifact
    action: Action
    status: NameStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """Plan of a publication.

    Attributes:
        made: the time at which the index was read.
        steps: in order; each starts after the previous one, and the core only after all plugins
            of its extras were read back.
        refused: violations of the index's rules.
        conflicts: files that the index has with other content.
        notes: warnings that stop nothing.
        left_out: projects of the release that `only` leaves out.
        missing: projects of `left_out` that the index needs before the core of this plan.
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
    missing: tuple[str, ...] = ()

    @property
    def uploads(self) -> tuple[UploadStep, ...]:
        """Files that are not on the index."""
        return tuple(step for step in self.steps if step.action is Action.UPLOAD)

    @property
    def new_names(self) -> tuple[str, ...]:
        """Projects that the uploads register, in order."""
        new = (step for step in self.uploads if step.status is NameStatus.NEW)
        return tuple(dict.fromkeys(step.artifact.project for step in new))


def plan_publish(
    release: UploadRelease,
    state: IndexState,
    *,
    repository: Repository,
    rules: Rules,
    now: datetime,
    only: frozenset[str] = frozenset(),
    notes: Sequence[str] = (),
) -> PublishPlan:
    """Plan the publication of a release.

    Args:
        only: the projects to upload; empty for all.
        notes: warnings that the plan repeats.
    """
    ranked = sorted(release.artifacts, key=lambda one: _rank(one, state))
    ordered = [one for one in ranked if not only or one.project in only]
    steps = [
        UploadStep(artifact=one, action=_action(one, state), status=state.status(one.project))
        for one in ordered
    ]
    left_out = [one for one in ranked if one not in ordered]
    return PublishPlan(
        project=release.project,
        version=release.version,
        repository=repository,
        rules=rules,
        made=now,
        steps=tuple(steps),
        refused=tuple(_refused(release, steps, state, rules)),
        conflicts=tuple(_conflicts(release, state)),
        notes=(*_notes(release, steps, state, rules), *notes),
        left_out=_names(left_out),
        missing=_missing_plugins(ordered, left_out, state),
    )


def _rank(one: Artifact, state: IndexState) -> tuple[int, int, str, str]:
    """Sort key: existing projects first; a refusal then costs no new name."""
    doubt = [NameStatus.TAKEN, NameStatus.YOURS, NameStatus.NEW].index(state.status(one.project))
    return ORDER.index(one.role), doubt, one.project, one.path.name


def _names(artifacts: list[Artifact]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.project for one in artifacts))


def _missing_plugins(
    ordered: list[Artifact], left_out: list[Artifact], state: IndexState
) -> tuple[str, ...]:
    """Return the plugins of a new core that plan and index lack."""
    cores = [one for one in ordered if one.role == CORE]
    if all(_action(one, state) is not Action.UPLOAD for one in cores):
        return ()
    plugins = [one for one in left_out if one.role == PLUGIN]
    return _names([one for one in plugins if one.path.name not in state.same])


def _action(one: Artifact, state: IndexState) -> Action:
    same = state.same.get(one.path.name)
    if same is None:
        return Action.UPLOAD
    return Action.SKIP if same else Action.STOP


def _refused(
    release: UploadRelease, steps: list[UploadStep], state: IndexState, rules: Rules
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
    # The limit counts all versions of a project, yanked ones too.
    sizes_on_index = {name: project.size for name, project in state.projects.items()}
    yield from rules.size_faults(sizes, sizes_on_index)
    for name, project in sorted(state.projects.items()):
        if project.status in _CLOSED and sizes[name]:
            yield f"{name} is {project.status} on the index, and accepts no files"


def _conflicts(release: UploadRelease, state: IndexState) -> Iterator[str]:
    for one in release.artifacts:
        served = state.projects[one.project].find(one.path.name)
        if served is None or one.path.name not in state.same:
            continue
        place = "on the index" if served.name == one.path.name else f"on the index as {served.name}"
        if not state.same[one.path.name]:
            found = served.digests.get("sha256", "another digest")
            yield f"{one.path.name} is {place} with other content: {found}, here {one.sha256}"
        elif served.yanked is not None:
            # An installer would skip it, and the release would lack a file.
            why = f" ({served.yanked})" if served.yanked else ""
            yield f"{one.path.name} is {place}, but was yanked{why}"
    for core, other, is_preferred in _rivals(release, state):
        if is_preferred:
            yield f"pip takes {other}, which is on the index, and not {core}"


def _rivals(release: UploadRelease, state: IndexState) -> Iterator[tuple[str, str, bool]]:
    """Yield each core, a foreign wheel of its version, and True if installers prefer it.

    An installer prefers the higher build tag.
    """
    own = {wheel_key(one.path.name) for one in release.artifacts if one.role != SOURCE}
    for core in release.of(CORE):
        _, version, build, tags = parse_wheel_filename(core.path.name)
        for served in state.projects[core.project].files.values():
            other = wheel_key(served.name)
            if other is None or other in own or served.yanked is not None:
                continue
            if version == other[1] and tags & other[3]:
                yield core.path.name, served.name, other[2] > build


def _notes(
    release: UploadRelease, steps: list[UploadStep], state: IndexState, rules: Rules
) -> Iterator[str]:
    if taken := {step.artifact.project for step in steps if step.status is NameStatus.TAKEN}:
        names = ", ".join(sorted(taken))
        yield f"on the index already: {names}; only the upload shows whether you have permission"
    for name, project in sorted(state.projects.items()):
        if project.unmeasured and rules.project_bytes is not None:
            yield f"{name}: the index lists no size for {project.unmeasured} of its files"
    for step in steps:
        one = step.artifact
        if one.role == CORE and WheelName.parse(one.path.name).build.endswith(_PRIVATE):
            yield (
                f"{one.path.name} has a build tag, for private use beside the fat wheel;"
                " `archsplit split --release` makes the core that takes its place"
            )
    for core, other, is_preferred in _rivals(release, state):
        if not is_preferred:
            yield f"{other} is also on the index; some installers may choose it instead of {core}"
    # After an upload by another tool, or in the wrong order: users of the core lack plugins now.
    live = {step.artifact.role for step in steps if step.action is Action.SKIP}
    if CORE in live and any(s.action is Action.UPLOAD for s in steps if s.artifact.role == PLUGIN):
        yield "the core is already live, but some of its plugins are not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of an index.

    Attributes:
        is_public: True for PyPI and TestPyPI: no local versions such as ``1.0+cu130``, no tag
            ``linux_x86_64``, which names no glibc, and few new names a day. Another index answers
            for itself.
        file_bytes: limit for one file; None if only the index knows it.
        project_bytes: limit for all files of one project together; None likewise.
    """

    is_public: bool = True
    file_bytes: int | None = None
    project_bytes: int | None = None

    def version_fault(self, version: str) -> str | None:
        """Return the reason why the index refuses a version, or None."""
        # Source: https://packaging.python.org/specifications/version-specifiers, local versions
        # are not for public indexes.
        local = Version(version).local
        if local is None or not self.is_public:
            return None
        return f"version {version} has a local label (+{local}), which the index refuses"

    def tag_fault(self, platforms: Iterable[str]) -> str | None:
        """Return the reason why the index refuses platform tags, or None."""
        plain = sorted(tag for tag in platforms if tag.startswith("linux_"))
        if not plain or not self.is_public:
            return None
        return f"is tagged {', '.join(plain)}, and the index wants manylinux"

    def size_faults(
        self, sizes: Mapping[str, Mapping[str, int]], there: Mapping[str, int]
    ) -> Iterator[str]:
        """Return the files and projects over the limits of size.

        Args:
            sizes: bytes of the files to upload, by project and name.
            there: bytes of each project on the index.
        """
        for project, files in sorted(sizes.items()):
            for name, size in sorted(files.items()):
                if self.file_bytes is not None and size > self.file_bytes:
                    yield f"{name} has {short_size(size)}, {_excess(size, self.file_bytes)} a file"
            total = there.get(project, 0) + sum(files.values())
            if files and self.project_bytes is not None and total > self.project_bytes:
                more = _excess(total, self.project_bytes)
                yield f"{project} would have {short_size(total)} on the index, {more} a project"


def _excess(size: int, limit: int) -> str:
    return f"{short_size(size - limit)} more than the {short_size(limit)} allowed to"


def plan_text(plan: PublishPlan) -> str:
    """Return the plan for people: one line a file, in the order of uploads."""
    return "\n".join(_lines(plan))


def plan_document(plan: PublishPlan) -> dict[str, object]:
    """Return the plan for programs; ``schema`` changes when a field is renamed or removed."""
    return {
        "schema": PUBLISH_PLAN_SCHEMA,
        "project": plan.project,
        "version": plan.version,
        "repository": plan.repository.upload,
        "index": plan.repository.index,
        "made": utc_text(plan.made),
        "rules": asdict(plan.rules),
        "files": [_file(step) for step in plan.steps],
        "new_names": list(plan.new_names),
        "refused": list(plan.refused),
        "conflicts": list(plan.conflicts),
        "notes": list(plan.notes),
        "left_out": list(plan.left_out),
        "missing": list(plan.missing),
    }


def _file(step: UploadStep) -> dict[str, object]:
    one = step.artifact
    return {
        "file": one.path.name,
        "project": one.project,
        "role": one.role,
        "size": one.size,
        "sha256": one.sha256,
        "action": step.action.value,
        "name": step.status.value,
        "attestations": [path.name for path in one.attestations],
    }


def _lines(plan: PublishPlan) -> Iterator[str]:
    where = plan.repository
    yield f"{plan.project} {plan.version} to {where.upload}, read at {where.index}"
    widths = [max(len(step.artifact.path.name) for step in plan.steps)]
    widths.append(max(len(step.artifact.role) for step in plan.steps))
    for number, step in enumerate(plan.steps, 1):
        one = step.artifact
        name, role = one.path.name.ljust(widths[0]), one.role.ljust(widths[1])
        yield f"{number:3}. {role}  {name} {short_size(one.size):>9}  {_action_text(step)}"
    uploads = plan.uploads
    total = sum(step.artifact.size for step in uploads)
    yield f"{len(uploads)} to upload, {short_size(total)}{_limits_text(plan.rules)}"
    if plan.rules.is_public and len(plan.new_names) > NAMES_A_DAY:
        yield (
            f"warning: the release has {len(plan.new_names)} new names, and the index takes"
            f" {NAMES_A_DAY} in 24 hours:"
            " it stops the upload with exit code 23, and names the time at which the same command"
            " continues"
        )
    if plan.rules.is_public and plan.new_names:
        yield (
            f"first release by trusted publishing: register {PENDING_PUBLISHERS} pending publishers"
            " at a time, each with an environment of its own; then run in each environment"
            f" `archsplit publish --only NAME`, for {', '.join(plan.new_names)}"
        )
    yield from (f"error: {text}" for text in (*plan.refused, *plan.conflicts))
    yield from (f"error: the core needs {name} on the index first" for name in plan.missing)
    yield from (f"warning: {text}" for text in plan.notes)


def _limits_text(rules: Rules) -> str:
    """Return the known limits of an index, as the end of a sentence."""
    limits = []
    if rules.file_bytes is not None:
        limits.append(f"{rules.file_bytes / 1e6:g} MB a file")
    if rules.project_bytes is not None:
        limits.append(f"{rules.project_bytes / 1e9:g} GB a project")
    return f"; allowed are {', '.join(limits)}" if limits else ""


def _action_text(step: UploadStep) -> str:
    if step.action is Action.SKIP:
        return "on the index"
    if step.action is Action.STOP:
        return "CONFLICT"
    new = ", a new name" if step.status is NameStatus.NEW else ""
    signed = ", attested" if step.artifact.attestations else ""
    return f"upload{new}{signed}"
