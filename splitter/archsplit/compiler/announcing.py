"""Say beforehand what a longer list of targets costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.cache.keys import KeyComponent
from archsplit.cache.miss_log import MissLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.cache.config import Settings

_TARGET = "target"


def cache_summary(
    project: str, targets: Sequence[str], *, sources: int, settings: Settings
) -> str | None:
    """What a person should know before a build whose recipe has targets that its last one hadn't.

    The list is remembered for the next build. Which of its targets are built makes no difference.

    Args:
        targets: all of the recipe's.
        sources: how many files are compiled for all targets at once; 0 where each is compiled for
            each target by itself.
    """
    notebook = MissLog(settings.folder)
    subject = f"targets of {project}"
    earlier = notebook.earlier(subject)
    if settings.mode != "read-only":
        notebook.add(subject, tuple(KeyComponent(_TARGET, target) for target in targets))
    if not earlier or not sources:
        return None
    before = {value for _, value in earlier[0]}
    new = [target for target in targets if target not in before]
    if not new:
        return None
    return (
        f"the recipe has new targets: {', '.join(new)}. Up to {sources} sources are compiled again"
        " for every target: the list of all targets (__CUDA_ARCH_LIST__) is a part of CUB's"
        ' namespaces. With host-pass = "per-target" in the recipe, targets know nothing of each'
        " other"
    )
