"""The effects that a whole build works with, in one place."""

from __future__ import annotations

import site
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.system.run import SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from splitter.system.progress import ProgressSink
    from splitter.system.run import Runner


def _site_folders() -> tuple[Path, ...]:
    return tuple(map(Path, [*site.getsitepackages(), site.getusersitepackages()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What stages do things with; the command line fills it, tests may.

    Attributes:
        environment: the caller's own, from which the tools' clean one is made.
        jobs: how many programs run at a time.
        site_folders: where the index's ``nvidia-*`` wheels may be installed.
    """

    progress: ProgressSink
    environment: Mapping[str, str] = field(repr=False)
    jobs: int
    runner: Runner = field(default_factory=SubprocessRunner)
    site_folders: tuple[Path, ...] = field(default_factory=_site_folders)

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("at least one job is needed")
