"""A publication: the upload of a release, and its result.

In: a release, an index and twine. Out: a `Publication`. The one idea: the index is the state. Each
run reads the index anew, and each uploaded file is downloaded again before a file that requires it
is uploaded. So a publication can be stopped and repeated at any point, and the index never has a
core without its plugins.

    release + state of the index ──> PublishPlan ──> confirmed by the caller
                                                        │
    plugins        upload ──> read back                 │
    core, source   upload ──> read back                 │
    meta wheel     upload ──> read back ──> Publication

No installer runs here: ``archsplit verify --release`` installs each core with pip and uv before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import ConflictError, IndexRefusedError, UsageError, VerifyError
from archsplit.index.client import Index
from archsplit.index.plan import Action, plan_publish
from archsplit.index.release import CORE, META, PLUGIN, SOURCE
from archsplit.index.requirements import dropped_targets, install_requirement, missing_dependencies
from archsplit.index.state import ReadBack, read_index_state
from archsplit.index.upload import Uploader
from archsplit.system.units import count_text, short_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.index.client import IndexFile, Repository
    from archsplit.index.plan import PublishPlan, Rules
    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.index.retry import RetryPolicy
    from archsplit.index.upload import Twine
    from archsplit.release.context import Effects

PUBLICATION_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file that the index serves with the same bytes as the local file."""

    artifact: Artifact
    served: IndexFile
    uploaded_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Result of a publication.

    Attributes:
        live: in the order of the uploads; all were read back.
        requirement: brings the core with all plugins.
    """

    plan: PublishPlan = field(repr=False)
    live: tuple[LiveFile, ...]
    requirement: str = ""

    @property
    def is_complete(self) -> bool:
        """True if all files are live."""
        return len(self.live) == len(self.plan.steps)

    @property
    def core_is_live(self) -> bool:
        """True if installers choose this version."""
        return any(one.artifact.role == CORE for one in self.live)

    def as_json(self) -> str:
        """Return the result for programs; ``schema`` changes with the fields."""
        content = {
            "schema": PUBLICATION_SCHEMA,
            "project": self.plan.project,
            "version": self.plan.version,
            "repository": self.plan.repository.upload,
            "index": self.plan.repository.index,
            "complete": self.is_complete and not self.plan.left_out,
            "core_is_live": self.core_is_live,
            "requirement": self.requirement,
            "live": [
                {
                    "file": one.artifact.path.name,
                    "project": one.artifact.project,
                    "role": one.artifact.role,
                    "sha256": one.artifact.sha256,
                    "size": one.artifact.size,
                    "url": one.served.url,
                    "uploaded_now": one.uploaded_now,
                    "attested": one.served.is_attested,
                }
                for one in self.live
            ],
        }
        return json.dumps(content, indent=2) + "\n"

    def text(self) -> str:
        """Return the result for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        plan = self.plan
        for one in self.live:
            how = "uploaded" if one.uploaded_now else "on the index"
            yield f"{short_size(one.artifact.size):>9}  {how:12}  {one.served.url}"
        if not self.core_is_live:
            others = ", ".join(plan.left_out)
            yield f"live files: {len(self.live)}; --only left out {others}"
            return
        now = sum(one.uploaded_now for one in self.live)
        files = count_text(len(self.live), "file")
        yield f"{plan.project} {plan.version} is live: {files}, {now} uploaded now"
        yield f'next: pip install --index-url {plan.repository.index} "{self.requirement}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publisher of releases to one index.

    Attributes:
        extra_indexes: addresses of the indexes that users have for other dependencies.
        retry: for each request.
        download: True to compare all bytes of each uploaded file; False trusts the index's digest.
        only: the projects whose files are uploaded; empty for all.
    """

    effects: Effects = field(repr=False)
    twine: Twine = field(repr=False)
    repository: Repository
    rules: Rules
    retry: RetryPolicy
    extra_indexes: tuple[str, ...] = ()
    download: bool = True
    only: frozenset[str] = frozenset()

    def plan(self, release: UploadRelease) -> PublishPlan:
        """Return the plan for the current state of the index, and change nothing.

        Raises:
            IndexUnreachableError: the index can't be read.
            IndexRefusedError: the index denies access.
            UsageError: `only` names a project that is not of the release.
        """
        # A misspelled --only would otherwise upload nothing and report success.
        if unknown := sorted(self.only - set(release.projects)):
            raise UsageError(
                f"{', '.join(unknown)} is not a project of {release.project} {release.version}",
                hint=f"--only takes {', '.join(release.projects)}",
            )
        read_back = self._read_back
        index = read_back.index
        state = read_index_state(release, read_back)
        indexes = (index, *(Index(address, self.retry) for address in self.extra_indexes))
        notes = (
            *missing_dependencies(release, indexes),
            *dropped_targets(release, state.projects[release.project], index),
        )
        return plan_publish(
            release,
            state,
            repository=self.repository,
            rules=self.rules,
            now=self.retry.clock.now(),
            only=self.only,
            notes=notes,
        )

    def publish(
        self, release: UploadRelease, confirm: Callable[[PublishPlan], None]
    ) -> Publication:
        """Plan the uploads, and run the plan.

        Args:
            confirm: called with the plan before the first upload; raises to stop.

        Raises:
            ConflictError: the index has something else under a name; nothing was uploaded.
            IndexRefusedError: the index refuses something, or its rules would.
            ArchsplitError: see `Uploader.upload` and `ReadBack.verify`.
        """
        plan = self.plan(release)
        confirm(plan)
        refuse(plan)
        live: list[LiveFile] = []
        for roles in ((PLUGIN,), (CORE, SOURCE), (META,)):
            live += self._publish_roles(plan, roles)
        return Publication(plan=plan, live=tuple(live), requirement=install_requirement(release))

    def _publish_roles(self, plan: PublishPlan, roles: tuple[str, ...]) -> list[LiveFile]:
        """Upload the files of some roles, and read them back before the next roles begin."""
        steps = [step for step in plan.steps if step.artifact.role in roles]
        uploads = [step for step in steps if step.action is Action.UPLOAD]
        progress, clock = self.effects.progress, self.retry.clock
        uploader = Uploader(twine=self.twine, read_back=self._read_back, retry=self.retry)
        if uploads:
            kinds = " and ".join(dict.fromkeys(step.artifact.role for step in uploads))
            progress.begin_stage(f"uploading {kinds}", len(uploads), "Uploaded {} files")
        for step in uploads:
            began, name = clock.monotonic(), step.artifact.path.name
            progress.start_step(f"{name}, {short_size(step.artifact.size)}")
            uploader.upload(step)
            progress.finish_step(name, clock.monotonic() - began)
        if steps:
            progress.begin_stage("reading back", 0, "Read the files back from the index")
        served = self._read_back.verify([step.artifact for step in steps])
        return [
            LiveFile(
                artifact=step.artifact,
                served=served[step.artifact.path.name],
                uploaded_now=step.action is Action.UPLOAD,
            )
            for step in steps
        ]

    @property
    def _read_back(self) -> ReadBack:
        index = Index(self.repository.index, self.retry)
        return ReadBack(index=index, retry=self.retry, download=self.download)


def refuse(plan: PublishPlan) -> None:
    """Refuse a plan with obstacles.

    Raises:
        ConflictError: the index has something else under a name.
        IndexRefusedError: its rules forbid something.
        VerifyError: the core would be live before its plugins.
    """
    # Conflicts first: an option can change a limit, but nothing can exchange a file.
    if plan.conflicts:
        raise ConflictError(
            "\n  ".join(["nothing was uploaded:", *plan.conflicts]),
            hint="a file on an index can't be replaced: publish another version",
        )
    if plan.refused:
        raise IndexRefusedError(
            "\n  ".join(["nothing was uploaded; the index would refuse:", *plan.refused]),
            hint="for a higher limit that the index gave you: --max-file-size, --max-project-size",
        )
    if plan.missing:
        needed = ", ".join(plan.missing)
        raise VerifyError(
            f"nothing was uploaded: {plan.project} needs {needed} on the index first",
            hint=f"--only {plan.missing[0]} uploads one of them; without --only all go in order",
        )
