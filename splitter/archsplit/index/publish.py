"""A publication: the upload of a release, and its result.

In: a release, an index and twine. Out: a `Publication`. The one idea: the index is the state. Each
run reads the index anew, and each uploaded file is downloaded again before a file that requires it
is uploaded. So a publication can be stopped and repeated at any point, and the index never has a
core without its plugins.

    release + state of the index ──> PublishPlan ──> confirmed by the caller
                                                        │
    plugins        upload ──> read back ──> pip resolves the local core with them
                                                        │
    core, source   upload ──> read back ──> pip resolves them from the index
                                                        │
    meta wheel     upload ──> read back ──> Publication
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - a record's field
from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003 - a record's field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from archsplit.errors import ConflictError, IndexRefusedError, UsageError, VerifyError
from archsplit.index import journal as lines
from archsplit.index.client import Index
from archsplit.index.journal import held_journal
from archsplit.index.pip_resolve import Resolver
from archsplit.index.plan import Action, plan_publish
from archsplit.index.release import CORE, META, PLUGIN, SOURCE
from archsplit.index.retry import utc_text
from archsplit.index.state import IndexStateReader, ReadBack
from archsplit.index.upload import Uploader
from archsplit.system.units import size_text
from archsplit.wheels.filename import ALL_EXTRA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from archsplit.index.client import IndexFile, Repository
    from archsplit.index.journal import PublishJournal
    from archsplit.index.plan import PublishPlan, Rules, UploadStep
    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.index.retry import RetryPolicy
    from archsplit.index.upload import Twine
    from archsplit.release.context import Effects
    from archsplit.system.terminal import ProgressSink

PUBLICATION_SCHEMA = 1

_SECONDS_FOR_PIP = 60.0
"""Longest wait in seconds for pip to see the uploads: a CDN may serve old pages for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file that the index serves with the same bytes as the local file."""

    artifact: Artifact
    served: IndexFile
    uploaded_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The result of a publication.

    Attributes:
        live: in the order of the uploads; all were read back.
        resolved: the requirements that pip resolved with this index.
        shadowed: the projects for which pip takes a file of another index, and its URL.
        next: when the next upload is allowed; None if nothing waits.
    """

    plan: PublishPlan = field(repr=False)
    live: tuple[LiveFile, ...]
    resolved: tuple[str, ...] = ()
    shadowed: Mapping[str, str] = field(default_factory=dict)
    next: datetime | None = None

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
            "next": None if self.next is None else utc_text(self.next),
            "resolved": list(self.resolved),
            "shadowed": [{"project": name, "by": url} for name, url in self.shadowed.items()],
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
            how = "uploaded " if one.uploaded_now else "was there"
            yield f"  {one.artifact.size / 1e6:8.2f} MB  {how}  {one.served.url}"
        if self.next is not None:
            left = len(plan.steps) - len(self.live)
            yield f"{left} files wait for new names: run it again at {utc_text(self.next)}"
            if not self.core_is_live:
                yield f"until then nobody gets {plan.project} {plan.version}: its core goes last"
            return
        if not self.core_is_live:
            others = ", ".join(plan.left_out)
            yield f"{len(self.live)} files are live; --only left out {others}"
            return
        now = sum(one.uploaded_now for one in self.live)
        yield f"{plan.project} {plan.version} is live: {len(self.live)} files, {now} uploaded now"
        for project, url in self.shadowed.items():
            yield f"warning: with all of these indexes pip takes {url}"
            yield f"  in place of {project} {plan.version} of this index"
        for requirement in dict.fromkeys(map(_shortest_requirement, self.resolved)):
            yield f'pip install --index-url {plan.repository.index} "{requirement}"'


def _shortest_requirement(requirement: str) -> str:
    """Return a requirement as users write it: with the extra ``all`` alone, if it has one."""
    shortest = Requirement(requirement)
    # The extra `all` contains every other one.
    if ALL_EXTRA in shortest.extras:
        shortest.extras = {ALL_EXTRA}
    return str(shortest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """The publisher of releases to one index.

    Attributes:
        others: extra indexes for the core's other dependencies.
        retry: for each request.
        journal: path of the journal.
        download: True to compare all bytes of each uploaded file; False trusts the index's digest.
        only: the projects whose files are uploaded; empty for all.
    """

    effects: Effects = field(repr=False)
    twine: Twine = field(repr=False)
    repository: Repository
    rules: Rules
    journal: Path
    retry: RetryPolicy
    others: tuple[str, ...] = ()
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
                f"{', '.join(unknown)} is no project of {release.project} {release.version}",
                hint=f"there are {', '.join(release.projects)}",
            )
        reader = IndexStateReader(
            index=self._index(),
            read_back=self._read_back_check(),
            journal=self.journal,
            tells_owners=self.repository.is_public,
        )
        return plan_publish(
            release,
            reader.at(release),
            repository=self.repository,
            rules=self.rules,
            now=self.retry.clock.now(),
            only=self.only,
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
            ArchsplitError: see `Uploader.upload`, `ReadBack.verify` and `Resolver`.
        """
        # Two runs at a time would both use up the names of a day.
        with held_journal(self.journal, self.retry.clock) as journal:
            plan = self.plan(release)
            confirm(plan)
            refuse(plan)
            publication = self._run(plan, journal).execute(release)
            journal.add(
                lines.LIVE,
                project=release.project,
                version=release.version,
                complete=publication.is_complete and not publication.plan.left_out,
            )
        return publication

    def _run(self, plan: PublishPlan, journal: PublishJournal) -> _Run:
        read_back = self._read_back_check()
        uploader = Uploader(
            twine=self.twine, read_back=read_back, journal=journal, retry=self.retry
        )
        return _Run(
            plan=plan,
            retry=self.retry,
            progress=self.effects.progress,
            read_back=read_back,
            uploader=uploader,
            resolver=self._resolver(),
        )

    def _resolver(self) -> Resolver:
        return Resolver(
            runner=self.effects.runner,
            environment=self.effects.environment,
            python_path=self.effects.python_path,
            client=self._index(),
            index=self.repository.index,
            others=self.others,
            # pip has retries of its own, so ours only bridge the index's caches.
            retry=replace(self.retry, seconds=min(self.retry.seconds, _SECONDS_FOR_PIP)),
        )

    def _index(self) -> Index:
        return Index(self.repository.index, self.retry)

    def _read_back_check(self) -> ReadBack:
        return ReadBack(index=self._index(), retry=self.retry, download=self.download)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run of a plan: plugins, then core and source, then the meta wheel."""

    plan: PublishPlan
    retry: RetryPolicy
    progress: ProgressSink
    read_back: ReadBack
    uploader: Uploader
    resolver: Resolver

    def execute(self, release: UploadRelease) -> Publication:
        live: list[LiveFile] = []
        pairs = [pair for build in release.builds.values() for pair in _core_plugin_pairs(build)]
        next_time = self._upload_roles(live, PLUGIN)
        # pip resolves the local core with live plugins: a fault shows before the core is live.
        if next_time is None and self._pending_uploads(CORE):
            for core, plugins in pairs:
                self.progress.note(
                    f"resolved: {self.resolver.with_local(core, plugins).requirement}"
                )
        next_time = next_time or self._upload_roles(live, CORE, SOURCE)
        if next_time is not None:
            # The result lists what is live from an earlier run, though its turn has not come.
            others = {CORE, SOURCE, META} - {one.artifact.role for one in live}
            live += self._verify_live([s for s in self._steps(*others) if s.action is Action.SKIP])
            return Publication(plan=self.plan, live=tuple(live), next=next_time)
        # With --only, plugins may be all that this run uploads.
        if not self._steps(CORE, META):
            return Publication(plan=self.plan, live=tuple(live))
        resolved = [self.resolver.from_index(core, plugins) for core, plugins in pairs]
        next_time = self._upload_roles(live, META)
        if next_time is None:
            # The meta wheel is the same for all platforms, so one of them is enough.
            core, plugins = pairs[0]
            resolved += [
                self.resolver.meta_from_index(meta, core, plugins) for meta in release.of(META)
            ]
        return Publication(
            plan=self.plan,
            live=tuple(live),
            resolved=tuple(one.requirement for one in resolved),
            shadowed={name: url for one in resolved for name, url in one.shadowed.items()},
            next=next_time,
        )

    def _steps(self, *roles: str) -> list[UploadStep]:
        return [step for step in self.plan.steps if step.artifact.role in roles]

    def _pending_uploads(self, *roles: str) -> list[UploadStep]:
        return [step for step in self._steps(*roles) if step.action is Action.UPLOAD]

    def _upload_roles(self, live: list[LiveFile], *roles: str) -> datetime | None:
        """Upload the files of these roles; return the time of the next one that must wait."""
        uploads = self._pending_uploads(*roles)
        if uploads:
            kinds = dict.fromkeys(step.artifact.role for step in uploads)
            self.progress.begin_stage(f"upload {' and '.join(kinds)}", len(uploads))
        not_due = [step for step in uploads if not self._upload_when_due(step)]
        live += self._verify_live([step for step in self._steps(*roles) if step not in not_due])
        return min((step.when for step in not_due), default=None)

    def _upload_when_due(self, step: UploadStep) -> bool:
        """Upload a file at its planned time; return False if the wait is too long."""
        clock = self.retry.clock
        left = (step.when - clock.now()).total_seconds()
        # A run waits for minutes, not for a day: the next run goes on from the index's state.
        if left > self.retry.seconds:
            return False
        # This run holds the journal's lock, so no other run of this user takes the name meanwhile.
        if left > 0:
            clock.sleep(left)
        began = clock.monotonic()
        self.progress.start_step(f"{step.artifact.path.name}, {size_text(step.artifact.size)}")
        self.uploader.upload(step)
        self.progress.finish_step(step.artifact.path.name, clock.monotonic() - began)
        return True

    def _verify_live(self, steps: list[UploadStep]) -> list[LiveFile]:
        if steps:
            self.progress.begin_stage("read back from the index", 0)
        served = self.read_back.verify([step.artifact for step in steps])
        return [
            LiveFile(
                artifact=step.artifact,
                served=served[step.artifact.path.name],
                uploaded_now=step.action is Action.UPLOAD,
            )
            for step in steps
        ]


def _core_plugin_pairs(
    build: tuple[Artifact, ...],
) -> Iterator[tuple[Artifact, tuple[Artifact, ...]]]:
    """Yield each core of a build with the build's plugins; a build has one platform."""
    plugins = tuple(one for one in build if one.role == PLUGIN)
    # Plugins of another platform have other tags: pip could not resolve them together.
    yield from ((one, plugins) for one in build if one.role == CORE)


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
            hint="a file can't be exchanged on an index: publish another version",
        )
    if plan.refused:
        raise IndexRefusedError(
            "\n  ".join(["nothing was uploaded; the index would refuse:", *plan.refused]),
            hint="--max-file-size, --max-project-size and --rules say what an index allows",
        )
    # A refusal now saves the minute in which pip would search for them.
    if plan.missing:
        needed = ", ".join(plan.missing)
        raise VerifyError(
            f"nothing was uploaded: {plan.project} needs {needed} on the index first",
            hint=f"--only {plan.missing[0]} uploads one of them; without --only all go in order",
        )
