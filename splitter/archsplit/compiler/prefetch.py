"""Work for the cache that is done while tools run.

A cold compilation waits for cicc most of its time. Storing it asks the host compiler about itself,
and scans a few hundred headers: about a tenth of a small file's seconds. So both begin beside the
tools, and `DirectCache.store` finds the replies and the facts.

Nothing here decides: a file that changes afterwards has no facts, and is scanned again.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.sealed import load_compressor
from archsplit.compiler.preprocessed import included_files
from archsplit.nvcc.step_args import is_host_compiler

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
        scans: receives the facts about texts.
        cwd: the folder that included files are relative to.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        texts: Sequence[Path],
        *,
        tools: ToolIdentities,
        scans: TextScans,
        cwd: Path,
    ) -> None:
        self._tools = tools
        self._scans = scans
        self._cwd = cwd
        self._threads: list[threading.Thread] = []
        self._hosts = [step for step in steps if is_host_compiler(step.command.argv[0])]
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

    def wait(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        # A daemon: a signal ends the process without it.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _query_tools(self) -> None:
        load_compressor()
        for step in self._hosts:
            argv, environment = step.command.argv, step.command.env
            # The generator asks while it is consumed.
            for _ in self._tools.files(argv, environment):
                pass
            self._tools.includes(argv, environment)

    def _scan_texts(self) -> None:
        # A source that could not be preprocessed has no text.
        for path in filter(Path.is_file, self._texts):
            scan = self._scans.preprocessed(path.read_bytes())
            for name in included_files(scan.markers):
                self._scan_file(self._cwd / name)

    def _scan_file(self, path: Path) -> None:
        try:
            self._scans.source(path.read_bytes())
        except OSError:
            # The store reports nothing then, and no entry is made.
            return
