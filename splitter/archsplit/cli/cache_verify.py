"""``archsplit cache verify``: is what the cache knows right?"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.cache.cache import Cache
from archsplit.cache.checking import verify_store
from archsplit.cache.local import StoreKind
from archsplit.errors import VerifyError
from archsplit.system.cores import job_count

if TYPE_CHECKING:
    from archsplit.cache.checking import StoreCheck
    from archsplit.cache.config import Settings
    from archsplit.cache.local import LocalStore
    from archsplit.compiler.sampling import ReplaySample

_SAMPLE = 10


def add_sample_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how much is made again."""
    parser.add_argument(
        "--sample",
        type=_number,
        default=_SAMPLE,
        metavar="N",
        help="make so many results again: 0 for none, all for all (default: %(default)s)",
    )
    parser.add_argument("--seed", metavar="TEXT", help="choose the same sample as another time")
    parser.add_argument("--jobs", "-j", type=job_count, metavar="N", help="programs at a time")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _number(text: str) -> float:
    if text == "all":
        return math.inf
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found out."""

    folder: str
    checked: StoreCheck
    sample: ReplaySample

    def as_json(self) -> str:
        """For a program."""
        facts = {
            "schema": 1,
            "folder": self.folder,
            "files": self.checked.files,
            "damaged": self.checked.damaged,
            "written_down": self.sample.written_down,
            "same": self.sample.same,
            "different": dict(self.sample.different),
            "not_made_again": [
                {"compilation": subject, "why": why} for subject, why in self.sample.why_not
            ],
        }
        return json.dumps(facts, indent=2)

    def as_text(self) -> str:
        """For a person."""
        sample = self.sample
        good = self.checked.files - len(self.checked.damaged)
        lines = [
            f"{good} of {self.checked.files} files are as they should be in {self.folder}",
            f"{len(sample.same)} of {sample.size} results that were made again are the same;"
            f" {sample.written_down} compilations are written down",
        ]
        if sample.why_not:
            lines.append("not made again:")
            lines += [f"  {subject}: {why}" for subject, why in sample.why_not]
        return "\n".join(lines)

    def check(self) -> None:
        """Refuse what isn't right.

        Raises:
            VerifyError: names the files and the steps.
        """
        faults = [f"{key} is damaged" for key in self.checked.damaged]
        faults += [f"{name} makes something else now" for name, _ in self.sample.different]
        if faults:
            raise VerifyError(
                "the cache isn't right; what is wrong in it was removed:\n  " + "\n  ".join(faults),
                hint="a disk or memory may be faulty, or a tool makes something else each time",
            )


def verified(arguments: argparse.Namespace, settings: Settings, store: LocalStore) -> Verified:
    """Check every file, and make a sample of the results again."""
    from archsplit.compiler.sampling import ReplaySampler
    from archsplit.scheduler.find_pool import find_pool
    from archsplit.system.process import SubprocessRunner
    from archsplit.system.progress import Silent

    checked = verify_store(store)
    only_looking = dataclasses.replace(settings, mode="verify", remote=())
    cache = Cache(only_looking, warn=lambda _: None)
    runner = SubprocessRunner()
    with contextlib.closing(find_pool(os.environ, jobs=arguments.jobs, memory=None).pool) as pool:
        sampler = ReplaySampler(
            cache=cache,
            chance=random.Random(arguments.seed),  # noqa: S311 - a sample is no secret
            pool=pool,
            runner=runner,
            progress=Silent(),
        )
        sample = sampler.sample(arguments.sample)
    for key in {key for _, keys in sample.different for key in keys}:
        store.drop(StoreKind.ACTION, key)
    return Verified(folder=str(settings.folder), checked=checked, sample=sample)
