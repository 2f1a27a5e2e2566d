"""Have a sample of what the cache knows made again, by what is written down of compilations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.compiler.replay import decode_recording
from archsplit.compiler.replay_check import Replayer
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    import random

    from archsplit.cache.cache import Cache
    from archsplit.compiler.replay import Recording
    from archsplit.scheduler.pool import Pool
    from archsplit.system.process import Starter
    from archsplit.system.progress import ProgressSink


@dataclass(slots=True, kw_only=True)
class ReplaySample:
    """What came of it.

    Attributes:
        written_down: how many compilations could be chosen from.
        same: what was made again as the cache knows it.
        different: what wasn't, each with the keys of the entries that are wrong then.
        why_not: compilations that couldn't be made again, and why.
    """

    written_down: int = 0
    same: list[str] = field(default_factory=list)
    different: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    why_not: list[tuple[str, str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many results were compared."""
        return len(self.same) + len(self.different)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySampler:
    """Chooses compilations at random, and steps of them, and has them run again.

    Attributes:
        cache: what is compared with; nothing is stored in it.
        chance: decides.
    """

    cache: Cache
    chance: random.Random
    pool: Pool
    runner: Starter
    progress: ProgressSink
    _compared: dict[str, set[str]] = field(default_factory=dict)

    def sample(self, most: float) -> ReplaySample:
        """Compare so many results, or a few more, or all that can be had."""
        found = ReplaySample()
        names = list(self.cache.notebook.kept())
        self.chance.shuffle(names)
        found.written_down = len(names)
        while names and found.size < most:
            for name in tuple(names):
                if found.size < most and not self._add(name, found):
                    names.remove(name)
        return found

    def _add(self, name: str, found: ReplaySample) -> bool:
        """Have a part of a compilation run again; False if nothing was learned from it."""
        blob = self.cache.notebook.read_kept(name)
        compared = self._compared.setdefault(name, set())
        with temporary_dir() as private, temporary_dir() as made:
            done = None if blob is None else decode_recording(blob, private=private)
            chosen = None if done is None else self._chosen(done, compared)
            if chosen is None:
                return False
            ran = Replayer(
                cache=self.cache,
                pool=self.pool,
                runner=self.runner,
                progress=self.progress,
                private=private,
                made=made,
            ).run(chosen)
        new = {*ran.same, *ran.different} - compared
        compared |= new
        found.same += [chosen.called(step) for step in ran.same if step in new]
        found.different += [
            (chosen.called(step), keys) for step, keys in ran.different.items() if step in new
        ]
        if ran.why_not and not compared:
            found.why_not.append((chosen.subject, ran.why_not))
        return bool(new)

    def _chosen(self, done: Recording, compared: set[str]) -> Recording | None:
        """A step that wasn't compared yet, with what leads to it; or all steps."""
        everything = {""} if done.wholes else set[str]()
        left = sorted((done.cached | everything) - compared)
        if not left:
            return None
        step = self.chance.choice(left)
        return done.leading_to(step) if step else done
