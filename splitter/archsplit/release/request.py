"""Options of a split."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import PackBy

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target


class InstallDefaults(enum.Enum):
    """What comes when the core is installed by its name alone, and whether a third name has all."""

    CORE = "core"
    ALL = "all"
    META = "meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """What is asked for.

    Attributes:
        source: a wheel; never changed.
        out: the folder for all that is written.
        name: the core's distribution, if it shall have another name than the fat wheel.
        by: what a pack stands for.
        targets: pack no more than what the GPUs of these need; None for everything.
        install: ``ALL``: the core requires every pack, so that who installs it gets what the fat
            wheel had; else packs come with extras. ``META``: and one more wheel, ``<name>-all``,
            requires the core and every pack.
        release: the core gets the fat wheel's file name, to be published in its place. Otherwise a
            core of the fat wheel's name and version has a build tag, which installers prefer.
    """

    source: Path
    out: Path
    name: str | None = None
    by: PackBy = PackBy.CAPABILITY
    targets: tuple[Target, ...] | None = None
    install: InstallDefaults = InstallDefaults.CORE
    release: bool = False
