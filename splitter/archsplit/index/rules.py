"""What a package index allows; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from packaging.version import Version

from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

__pure__ = True

FILE_BYTES = 100_000_000
PROJECT_BYTES = 10_000_000_000
NAMES_A_DAY = 4
PENDING_PUBLISHERS = 3
"""Trusted publishers of an account for projects that don't exist yet. Each needs a workflow and an
environment that no other pending one has. Source: warehouse, ``manage/views``, and
https://docs.pypi.org/trusted-publishers/creating-a-project-through-oidc/
"""

DAY = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """An index's rules.

    Attributes:
        file_bytes: how big one file may be.
        project_bytes: how big all files of one project may be together.
        names_a_day: how many projects may be new within 24 hours; None for any number.
        local_versions: whether ``1.0+cu130`` may be uploaded.
        pending_publishers: how many trusted publishers an account may have for projects that don't
            exist yet; None where there are none.
        linux_wheels: whether a wheel may be tagged ``linux_x86_64``, which promises nothing.
    """

    file_bytes: int = FILE_BYTES
    project_bytes: int = PROJECT_BYTES
    names_a_day: int | None = NAMES_A_DAY
    local_versions: bool = False
    linux_wheels: bool = False
    pending_publishers: int | None = PENDING_PUBLISHERS

    def __post_init__(self) -> None:
        amounts = (self.file_bytes, self.project_bytes)
        if min(amounts) < 1 or (self.names_a_day is not None and self.names_a_day < 1):
            raise ValueError("a limit is at least 1")

    def first_release(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Take new names apart into groups that may have pending publishers at a time, in order."""
        size = self.pending_publishers
        if size is not None:
            for start in range(0, len(names), size):
                yield tuple(names[start : start + size])

    def version_fault(self, version: str) -> str | None:
        """Why the index refuses a version."""
        local = Version(version).local
        if local is None or self.local_versions:
            return None
        return f"version {version} has a local label (+{local}), which the index refuses"

    def tag_fault(self, platforms: Iterable[str]) -> str | None:
        """Why the index refuses a wheel with these platform tags."""
        plain = sorted(tag for tag in platforms if tag.startswith("linux_"))
        if not plain or self.linux_wheels:
            return None
        return f"is tagged {', '.join(plain)}, and the index wants manylinux"

    def size_faults(
        self, sizes: Mapping[str, Mapping[str, int]], there: Mapping[str, int]
    ) -> Iterator[str]:
        """What is too big.

        Args:
            sizes: bytes of the files to upload, by project and name.
            there: bytes of each project on the index.
        """
        for project, files in sorted(sizes.items()):
            for name, size in sorted(files.items()):
                if size > self.file_bytes:
                    yield f"{name} has {size_text(size)}, {_excess(size, self.file_bytes)} a file"
            total = there.get(project, 0) + sum(files.values())
            if files and total > self.project_bytes:
                more = _excess(total, self.project_bytes)
                yield f"{project} would have {size_text(total)} on the index, {more} a project"

    def days(
        self, names: Iterable[str], created: Sequence[datetime], now: datetime
    ) -> dict[str, datetime]:
        """When each new name may be registered, in the given order, each as soon as may be.

        PyPI counts the last 24 hours, not calendar days: its answers say ``q=4;w=86400``, for each
        user and for each address. Source: https://github.com/pypi/support/issues/11827

        Args:
            created: when names were registered, as far as anybody knows; what a clock that was
                wrong has put into the future counts as now.
        """
        taken = sorted(min(time, now) for time in created if time > now - DAY)
        when: dict[str, datetime] = {}
        for name in names:
            time = now
            if self.names_a_day is not None and len(taken) >= self.names_a_day:
                time = max(now, taken[-self.names_a_day] + DAY)
            taken.append(time)
            when[name] = time
        return when


def _excess(size: int, limit: int) -> str:
    return f"{size_text(size - limit)} more than the {size_text(limit)} allowed to"
