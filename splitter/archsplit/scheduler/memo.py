"""What may know the result of a step, so that it needn't run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from archsplit.scheduler.graph import Step
    from archsplit.system.process import Completed


class ResultCache(Protocol):
    """Knows results of steps; never raises."""

    def recall(self, step: Step) -> Completed | None:
        """Put in place what the step would write, and return what it would say; None if unknown.

        All that the step reads is there. It may take a while, and is called from threads of its
        own; meanwhile the step holds neither cores nor memory.
        """
        ...

    def remember(self, step: Step, done: Completed) -> None:
        """A step of which nothing was known has run, and succeeded."""
        ...
