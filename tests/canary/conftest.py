"""The toolkit that the machine has, not only the one of the test environment."""

from __future__ import annotations

import os
import site
from pathlib import Path

import pytest
from canary_probes import Workbench, clean_environment

from archsplit.nvcc.toolkit import choose_toolkit, nvcc_candidates, probe_toolkits
from archsplit.system.process import SubprocessRunner


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    explicit = os.environ.get("CANARY_NVCC")
    candidates = nvcc_candidates(
        explicit=Path(explicit) if explicit else None,
        environment=os.environ,
        site_folders=[Path(folder) for folder in site.getsitepackages()],
    )
    toolkit = choose_toolkit(probe_toolkits(candidates, SubprocessRunner()))
    return Workbench(
        nvcc=toolkit.nvcc,
        folder=tmp_path_factory.mktemp("canary"),
        environment=clean_environment(),
    )
