"""The check of a farm before a build: this machine's tools, and the checks that fit an address."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.build.toolkits import find_toolkit
from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.file_resolver import PROGRAM_GROUP
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.host_tools import find_host_tools
from archsplit.nvcc.toolkit import choose_toolkit
from archsplit.remote.action import ToolFile
from archsplit.remote.connect import missing_library_error
from archsplit.remote.endpoint import DaskEndpoint
from archsplit.system.fs import cache_folder, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.context import Effects
    from archsplit.remote.endpoint import Endpoint
    from archsplit.remote.farm_check import FarmCheck


def build_tools(effects: Effects, nvcc: Path | None) -> tuple[ToolFile, ...]:
    """Return the programs and device libraries that steps of each build run with.

    Raises:
        ToolNotFoundError: there is no toolkit or host compiler, or a part of it is gone.
    """
    toolkit = choose_toolkit(find_toolkit(effects, nvcc))
    host = find_host_tools(effects.environment, effects.runner)
    digests = FileDigests(cache_folder(effects.environment) / "digests")
    digests.load(PROGRAM_GROUP)
    identities = ToolIdentities(runner=effects.runner, digests=digests, cwd=Path("/"))
    parts = identities.files((str(host.compiler),), effects.environment)
    # No step runs nvcc itself: it is the planner's.
    paths = [*(path for path in toolkit.tools if path != toolkit.nvcc), host.objcopy, *parts]
    paths += sorted((toolkit.root / "nvvm" / "libdevice").glob("*.bc"))
    found = []
    for path in paths:
        digest = None if path is None else digests.digest(str(path), group=PROGRAM_GROUP)
        if path is None or digest is None:
            raise ToolNotFoundError(f"a part of the tools is gone: {path or 'a compiler'}")
        found.append(ToolFile(path=str(path), sha256=digest))
    digests.save()
    return tuple(found)


@contextlib.contextmanager
def open_checks(
    endpoint: Endpoint | DaskEndpoint, tools: tuple[ToolFile, ...]
) -> Iterator[Iterator[FarmCheck]]:
    """Yield the checks of a farm or a cluster.

    Raises:
        ToolNotFoundError: the libraries for it are not installed.
    """
    with temporary_dir() as folder:
        if isinstance(endpoint, DaskEndpoint):
            try:
                # An optional dependency, and a second of a start.
                from archsplit.remote.dask_check import DaskChecks  # noqa: PLC0415
            except ImportError as error:
                raise missing_library_error(error, "dask") from None
            cluster = DaskChecks(endpoint, tools=tools, folder=folder)
            with contextlib.closing(cluster):
                yield cluster.checks()
        else:
            try:
                # An optional dependency, and 0.2 s of a start.
                from archsplit.remote.reapi_check import ReapiChecks  # noqa: PLC0415
            except ImportError as error:
                raise missing_library_error(error, "reapi") from None
            farm = ReapiChecks(endpoint, tools=tools, folder=folder)
            with contextlib.closing(farm):
                yield farm.checks()
