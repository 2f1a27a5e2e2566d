"""Child processes that are gone when their test is over, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def running(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:  # noqa: ANN401 - Popen's
    """Start a program; kill it at the end, so that its pipes are closed with this test."""
    with subprocess.Popen(argv, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
