"""Ask what may know the results of steps, before they are started and after they have run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.memo import ResultCache
    from archsplit.system.process import Completed


class Lookup:
    """A step whose result is being looked for; it holds neither cores nor memory.

    Attributes:
        unwanted: whether an earlier step has failed meanwhile.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.unwanted = False

    def stop(self) -> None:
        """What is found is of no use any more."""
        self.unwanted = True


class PendingLookups:
    """What was asked in one run, and what is left to be remembered.

    Args:
        memo: what may know results; None where nothing does.
        answered: is told, in another thread, what came of each question.
    """

    def __init__(
        self,
        memo: ResultCache | None,
        answered: Callable[[tuple[Lookup, Completed | BaseException | None]], None],
    ) -> None:
        self.asking: dict[int, Lookup] = {}
        self._memo = memo
        self._answered = answered
        self._asked: set[int] = set()
        self._fresh: list[tuple[Step, Completed]] = []

    def ask(self, position: int, step: Step) -> bool:
        """Look for the result in a thread of its own; False if that was done, or is of no use."""
        if self._memo is None or position in self._asked:
            return False
        self._asked.add(position)
        self.asking[position] = asking = Lookup(position)
        threading.Thread(target=self._look, args=(self._memo, asking, step), daemon=True).start()
        return True

    def made(self, step: Step, done: Completed) -> None:
        """A step has run, and succeeded."""
        if self._memo is not None:
            self._fresh.append((step, done))

    def remember(self) -> None:
        """Have what was made remembered; to be called when there is time."""
        while self._memo is not None and self._fresh:
            self._memo.remember(*self._fresh.pop(0))

    def _look(self, memo: ResultCache, asking: Lookup, step: Step) -> None:
        try:
            found = memo.recall(step)
        except BaseException as error:  # noqa: BLE001 - raised again by who is told
            self._answered((asking, error))
        else:
            self._answered((asking, found))
