"""Work for the cache that is done while tools run.

A cold compilation waits for cicc most of its time. Storing it asks the host compiler about itself,
and scans a few hundred headers: about a tenth of a small file's seconds. So both begin beside the
tools, and `DirectCache.store` finds the replies and the facts.

Nothing here decides: a file that changes afterwards has no facts, and is scanned again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.sealed import load_compressor
from archsplit.compiler.direct_cache import foreign_folders
from archsplit.compiler.preprocessed import included_files
from archsplit.nvcc.dryrun import is_host_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from archsplit.compiler.include_scan import TextScans
    from archsplit.compiler.tool_identity import ToolIdentities
    from archsplit.scheduler.graph import Step


class StorePrefetch:
    """Threads that prepare the storage of one compilation.

    Args:
        steps: of the compilation.
        texts: the preprocessed texts, which some of the steps write.
        tools: receives the replies of host compilers.
        facts: this machine's folder of remembered facts; None for none.
        cwd: the folder that included files are relative to.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        texts: Sequence[Path],
        *,
        tools: ToolIdentities,
        facts: Path | None,
        cwd: Path,
    ) -> None:
        self._tools = tools
        self._facts = facts
        self._cwd = cwd
        self._scans: TextScans | None = None
        self._threads: list[threading.Thread] = []
        self._steps = tuple(steps)
        self._texts = tuple(texts)
        self._unfinished = set(texts)
        self._is_scanning = False

    def begin(self) -> None:
        """Ask the host compilers, while they preprocess."""
        self._start(self._query_tools)

    def finish_step(self, step: Step) -> None:
        """Scan all that was included, as soon as another step than the preprocessor's has ended.

        Before that, the steps that everything waits for are looked up in the cache, and a thread
        would only be in their way.
        """
        if not self._unfinished and not self._is_scanning:
            self._is_scanning = True
            self._start(self._scan_texts)
        self._unfinished.difference_update(step.writes)

    def scans(self) -> TextScans:
        """Wait until all threads have ended; return the facts about texts."""
        for thread in self._threads:
            thread.join()
        return self._open_scans()

    def _open_scans(self) -> TextScans:
        # Imported late, beside the preprocessor: its patterns take longer than the rest of a plan.
        from archsplit.compiler.include_scan import HeaderFacts, TextScans  # noqa: PLC0415

        # The second thread begins when the first one has long ended; if not, both find the same.
        if self._scans is None:
            foreign = foreign_folders(tuple(step.command.argv for step in self._steps))
            self._scans = TextScans(headers=HeaderFacts(self._facts, foreign=foreign))
        return self._scans

    def _start(self, work: Callable[[], None]) -> None:
        # A daemon: a signal ends the process without it.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _query_tools(self) -> None:
        for step in self._steps:
            if not is_host_compiler(step.command.argv[0]):
                continue
            argv, environment = step.command.argv, step.command.env
            # The generator asks while it is consumed.
            for _ in self._tools.files(argv, environment):
                pass
            self._tools.includes(argv, environment)
        load_compressor()
        self._open_scans()

    def _scan_texts(self) -> None:
        scans = self._open_scans()
        # A source that could not be preprocessed has no text.
        for path in filter(Path.is_file, self._texts):
            scan = scans.preprocessed(path.read_bytes())
            for name in included_files(scan.markers):
                # The store reports nothing of a file that is gone, and no entry is made.
                with contextlib.suppress(OSError):
                    scans.known(os.path.join(self._cwd, name))  # noqa: PTH118 - as resolved
