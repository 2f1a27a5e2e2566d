"""Fixtures that several parts share; everything is real, and small."""

from __future__ import annotations

import os
import site
from pathlib import Path

import pytest
from hypothesis import settings

from splitter.nvcc.host import HostTools, find_host_tools
from splitter.nvcc.toolkit import Toolkit, candidates, chosen, probe_all
from splitter.system.run import SubprocessRunner

# Machines are noisy: how long an example takes says nothing about the code.
settings.register_profile("archsplit", deadline=None)
settings.load_profile("archsplit")


@pytest.fixture(scope="session")
def toolkit() -> Toolkit:
    places = candidates(
        explicit=None,
        environment=os.environ,
        site_folders=[Path(folder) for folder in site.getsitepackages()],
    )
    return chosen(probe_all(places, SubprocessRunner()))


@pytest.fixture(scope="session")
def host() -> HostTools:
    return find_host_tools(os.environ, SubprocessRunner())
