"""What is live on an index after a run; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - a record's field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from archsplit.index.release import CORE
from archsplit.index.retry import utc_text
from archsplit.wheels.filename import ALL_EXTRA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.index.plan import PublishPlan
    from archsplit.index.release import Artifact
    from archsplit.index.served import IndexFile

__pure__ = True

PUBLICATION_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file that the index serves as it is here."""

    artifact: Artifact
    served: IndexFile
    uploaded_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What came of it.

    Attributes:
        live: in the order in which they went up; all were read back.
        resolved: what pip would install, from the index alone.
        next: when it can be gone on, or None where all is done.
    """

    plan: PublishPlan = field(repr=False)
    live: tuple[LiveFile, ...]
    resolved: tuple[str, ...] = ()
    next: datetime | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all files are live."""
        return len(self.live) == len(self.plan.steps)

    @property
    def core_is_live(self) -> bool:
        """Whether users get this version."""
        return any(one.artifact.role == CORE for one in self.live)

    def as_json(self) -> str:
        """For programs; ``schema`` changes when a field is renamed or removed."""
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
        """For people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        plan = self.plan
        for one in self.live:
            how = "uploaded" if one.uploaded_now else "was there"
            yield f"{one.artifact.path.name}: {how}, live at {one.served.url}"
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
        for requirement in dict.fromkeys(map(_typed, self.resolved)):
            yield f'pip install --index-url {plan.repository.index} "{requirement}"'


def _typed(requirement: str) -> str:
    """What a person types: of all extras that were resolved, the one that brings everything."""
    found = Requirement(requirement)
    if ALL_EXTRA in found.extras:
        found.extras = {ALL_EXTRA}
    return str(found)
