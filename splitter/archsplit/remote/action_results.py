"""Results of actions in the compile cache, for engines that keep none themselves.

In: a step. Out: its outputs, if the cache has them by the content of the whole action: program,
arguments, variables, inputs and tools. A dask cluster forgets all results with its scheduler. The
next build finds those that were done here, and so does a build of another machine with the cache.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from archsplit.cache.entry import CacheEntry, KeyComponent
from archsplit.remote.action import action_spec
from archsplit.system.fs import sha256, write_file
from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from archsplit.cache.cache import Cache
    from archsplit.remote.action import ActionSpec, PathMap, ToolFile
    from archsplit.scheduler.graph import Step


class ActionResults:
    """A `ResultCache` of actions, whose outputs are written here.

    Args:
        cache: the store.
        paths: the folders of the build.
        tools: returns the files of the tools of a step.

    Attributes:
        hits: number of steps whose results the cache had.
    """

    def __init__(
        self, cache: Cache, paths: PathMap, tools: Callable[[Step], Iterable[ToolFile]]
    ) -> None:
        self.hits = 0
        self._cache = cache
        self._paths = paths
        self._tools = tools
        self._digests: dict[Path, str] = {}
        self._missed: dict[str, tuple[ActionSpec, tuple[KeyComponent, ...]]] = {}

    def restore(self, step: Step) -> CompletedProcess | None:
        """See `ResultCache.restore`."""
        spec = action_spec(step, self._paths, self._tools(step))
        components = tuple(self._components(spec))
        found = self._cache.find(components)
        names = {str(name): path for name, path in spec.outputs.items()}
        if found is None or found.entry.files.keys() != names.keys():
            self._missed[step.name] = spec, components
            return None
        for name, path in names.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, found.entry.files[name])
        self.hits += 1
        return CompletedProcess(
            returncode=0, stdout=found.entry.stdout, stderr=found.entry.stderr, seconds=0.0
        )

    def store(self, step: Step, done: CompletedProcess) -> None:
        """See `ResultCache.store`."""
        spec, components = self._missed.pop(step.name)
        # An output that is gone again must not fail the build.
        with contextlib.suppress(OSError):
            entry = CacheEntry(
                components=components,
                files={str(name): path.read_bytes() for name, path in spec.outputs.items()},
                stdout=done.stdout,
                stderr=done.stderr,
                # Workers measure no CPU time.
                cpu_seconds=done.cpu_seconds or done.seconds,
            )
            self._cache.store(entry)

    def _components(self, spec: ActionSpec) -> Iterator[KeyComponent]:
        yield KeyComponent("action", json.dumps([spec.argv, spec.environment]))
        for name, text in sorted(spec.texts.items()):
            yield KeyComponent(f"text {name}", text.decode(errors="surrogateescape"))
        for name, path in sorted(spec.inputs.items()):
            # Sources include the same headers, and no file changes during a build.
            if path not in self._digests:
                self._digests[path] = sha256(path)
            yield KeyComponent(f"input {name}", self._digests[path])
        yield KeyComponent("outputs", " ".join(sorted(map(str, spec.outputs))))
