"""Fixtures of the loader's tests: programs and libraries, compiled once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, SANITIZERS, STRICT, Workbench, compile_c

from archsplit.release.loader import copy_loader
from loader_objects import loader_objects
from made_once import made_once

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def workbench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return made_once(tmp_path_factory, "workbench", make_workbench)


def make_workbench(folder: Path) -> Workbench:
    shared = ("-shared", "-fPIC", *STRICT)
    small = ("-Os", "-s", "-Wl,-z,noseparate-code")  # every byte is a test
    stub = compile_c(folder / "stub.so", *shared, *small, str(HERE / "stub_plugin.c"))
    compile_c(folder / "libnvidia-ml.so.1", *shared, str(HERE / "stand_in_nvml.c"))
    probe = str(HERE / "loader_probe.c")
    objects = loader_objects(*STRICT, *SANITIZERS)
    compile_c(folder / "probe", *STRICT, *SANITIZERS, probe, *objects, "-ldl", "-lpthread")
    return Workbench(
        folder=folder,
        template=stub.read_bytes(),
        library=copy_loader(folder=folder),
    )
