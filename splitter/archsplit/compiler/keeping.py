"""Write down what was run for a compilation, while its files are still there."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from archsplit.compiler.replay import Recording, encode_recording
from archsplit.compiler.step_key import step_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from archsplit.cache.cache import Cache
    from archsplit.scheduler.graph import Step


def save_recording(
    cache: Cache,
    steps: Iterable[Step],
    *,
    subject: str,
    private: Path,
    before: Iterable[Path],
    precise: bool,
    spread: bool = False,
    cores: Mapping[str, int] | None = None,
    wholes: Mapping[str, Mapping[str, Path]] | None = None,
) -> None:
    """Write down what was run; what can't be read any more isn't.

    Args:
        subject: what a person calls it; another one of the same folder takes its place.
        before: files in the private folder that were there before the steps.
        cores: on how many cores steps were told to work, where that is known.
        wholes: see `Recording.wholes`.
    """
    todo = tuple(steps)
    if not cache.writable or not todo:
        return
    try:
        done = Recording(
            subject=subject,
            steps=todo,
            cached=frozenset(
                step.name for step in todo if step_key(step, private, precise=precise) is not None
            ),
            cores=cores or {},
            texts={path: path.read_bytes().decode(errors="surrogateescape") for path in before},
            precise=precise,
            spread=spread,
            wholes=wholes or {},
        )
    except OSError:
        return
    folder = str(todo[0].command.cwd)
    name = [folder, subject, *map(str, done.outputs(private))]
    cache.notebook.keep(
        hashlib.sha256(json.dumps(name).encode()).hexdigest(),
        encode_recording(done, private=private),
    )
