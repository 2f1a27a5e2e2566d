"""A plan as text and as JSON; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.index.plan import Action, NameStatus
from archsplit.index.retry import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.index.plan import PublishPlan, UploadStep

__pure__ = True

PUBLISH_PLAN_SCHEMA = 1


def plan_text(plan: PublishPlan) -> str:
    """For people: one line a file, in the order in which they go up."""
    return "\n".join(_lines(plan))


def plan_document(plan: PublishPlan) -> dict[str, object]:
    """For programs; ``schema`` changes when a field is renamed or removed."""
    rules = plan.rules
    return {
        "schema": PUBLISH_PLAN_SCHEMA,
        "project": plan.project,
        "version": plan.version,
        "repository": plan.repository.upload,
        "index": plan.repository.index,
        "made": utc_text(plan.made),
        "rules": {
            "file_bytes": rules.file_bytes,
            "project_bytes": rules.project_bytes,
            "names_a_day": rules.names_a_day,
            "local_versions": rules.local_versions,
        },
        "files": [_file(step, plan) for step in plan.steps],
        "later": [utc_text(time) for time in plan.later],
        "refused": list(plan.refused),
        "conflicts": list(plan.conflicts),
        "notes": list(plan.notes),
        "left_out": list(plan.left_out),
        "first_release": list(map(list, plan.first)),
    }


def _file(step: UploadStep, plan: PublishPlan) -> dict[str, object]:
    one = step.artifact
    return {
        "file": one.path.name,
        "project": one.project,
        "role": one.role,
        "size": one.size,
        "sha256": one.sha256,
        "action": step.action.value,
        "name": step.standing.value,
        "when": utc_text(step.when) if step.action is Action.UPLOAD else None,
        "now": step.action is Action.UPLOAD and step.when <= plan.made,
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
        yield f"{number:3}. {role}  {name} {one.size / 1e6:8.2f} MB  {_what(step, plan)}"
    uploads = plan.uploads
    total = sum(step.artifact.size for step in uploads)
    file_limit = f"{plan.rules.file_bytes / 1e6:g} MB a file"
    limits = f"{file_limit}, {plan.rules.project_bytes / 1e9:g} GB a project"
    yield f"{len(uploads)} to upload, {total / 1e6:.2f} MB; allowed are {limits}"
    if plan.later:
        times = ", ".join(map(utc_text, plan.later))
        yield f"the index allows {plan.rules.names_a_day} new names in 24 hours: go on at {times}"
    yield from _first(plan)
    yield from (f"refused: {text}" for text in plan.refused)
    yield from (f"conflict: {text}" for text in plan.conflicts)
    yield from (f"note: {text}" for text in plan.notes)


def _first(plan: PublishPlan) -> Iterator[str]:
    """The order of a first release by trusted publishing."""
    if not plan.first:
        return
    most = plan.rules.pending_publishers
    yield (
        f"first release by trusted publishing (an account can have {most} pending publishers, each"
        " with a workflow and environment that no other pending one has):"
    )
    for number, names in enumerate(plan.first, 1):
        yield f"  {number}. register pending publishers for {', '.join(names)}; then, for each,"
        yield f"     publish {' '.join(f'--only {name}' for name in names)} from its environment"


def _what(step: UploadStep, plan: PublishPlan) -> str:
    if step.action is Action.SKIP:
        return "is there"
    if step.action is Action.STOP:
        return "CONFLICT"
    new = ", a new name" if step.standing is NameStatus.NEW else ""
    signed = ", attested" if step.artifact.attestations else ""
    when = "upload" if step.when <= plan.made else f"from {utc_text(step.when)}"
    return f"{when}{new}{signed}"
