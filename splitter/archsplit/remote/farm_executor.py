"""Part of an executor that all farms share: settings, faults and counts of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from typing_extensions import Unpack

    from archsplit.remote.action import PathMap, ToolFile
    from archsplit.scheduler.graph import Step

CANCELED = CompletedProcess(returncode=-15, stdout="", stderr="canceled", seconds=0.0)
"""Exit of a step that was canceled."""


class ExecutorSettings(TypedDict):
    """The arguments that all executors share.

    Attributes:
        paths: the folders of the build.
        tools: returns the files of the tools of a step.
        wanted: files that are written here; all others stay on the farm.
        priorities: the number of each step by its name; the lowest starts first.
    """

    paths: PathMap
    tools: Callable[[Step], Iterable[ToolFile]]
    wanted: Iterable[Path]
    priorities: Mapping[str, int]


class Traffic:
    """Bytes of files that were sent to other machines, and received from them."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    def __str__(self) -> str:
        return f"{self.sent / 1e6:.1f} MB sent, {self.received / 1e6:.1f} MB received"


class FarmExecutor:
    """The part of an `Executor` that all farms share.

    Attributes:
        runs: number of steps that workers have run.
        traffic: bytes that were moved.
    """

    is_local = False

    def __init__(self, **settings: Unpack[ExecutorSettings]) -> None:
        self.runs = 0
        self.traffic = Traffic()
        self._paths = settings["paths"]
        self._tools = settings["tools"]
        self._wanted = frozenset(settings["wanted"])
        self._priorities = settings["priorities"]
        self._missing: dict[str, str] = {}

    @property
    def moved(self) -> int:
        """See `Executor`."""
        return self.traffic.sent + self.traffic.received

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """See `Executor.find_fault`."""
        if done.returncode != 0:
            return f"failed with exit status {done.returncode}"
        return self._missing.get(step.name, "")

    def kill_unawaited(self) -> None:
        """See `Executor.kill_unawaited`; `close` ends all actions."""
