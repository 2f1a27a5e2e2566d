"""Memory that runs out, at each allocation of the loader: an error, and nothing is left behind."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from loader_packs import split_site
from loader_stubs import HERE, SANITIZERS, STRICT, Stub, Workbench, compile_c, run

from loader_objects import loader_objects

if TYPE_CHECKING:
    from pathlib import Path

WRAPPED = (
    *("malloc", "calloc", "realloc", "free", "strdup", "strndup", "asprintf", "realpath"),
    *("mmap", "munmap"),
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    source = str(HERE / "failing_memory.c")
    output = tmp_path_factory.mktemp("memory") / "failing_memory"
    objects = loader_objects(*STRICT, *SANITIZERS)
    flags = (*STRICT, *SANITIZERS, *wraps)
    return compile_c(output, *flags, source, *objects, "-ldl", "-lpthread")


@pytest.mark.parametrize("gpus", ["9.0", "8.0;9.0"])
def test_core_of_libraries_leaves_nothing(
    workbench: Workbench, program: Path, tmp_path: Path, gpus: str
) -> None:
    face = workbench.core(tmp_path)
    for target in ("sm_80", "sm_90"):
        workbench.plugin(tmp_path, target)
    # With a reason that depends on the driver.
    workbench.plugin(tmp_path, "sm_86", Stub(targets=("sm_86",), cuda_version=14000))
    done = run([str(program), str(face)], workbench.environment(gpus))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert int(done.stdout) > 20


def test_plugin_changed_since_reading_is_closed(
    workbench: Workbench, program: Path, tmp_path: Path
) -> None:
    face = workbench.core(tmp_path)
    plugin = workbench.plugin(tmp_path, "sm_90")
    done = run([str(program), str(face), str(plugin)], workbench.environment("9.0"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"{plugin} changed since it was read" in done.stdout


@pytest.mark.parametrize("gpus", ["9.0", "8.0;9.0"])
def test_core_of_packs_leaves_nothing(
    workbench: Workbench, program: Path, tmp_path: Path, gpus: str
) -> None:
    core = split_site(workbench, tmp_path / "site")
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    core.add("new", "sm_90", descriptor=Stub(shape=2, cuda_version=14000))
    done = run([str(program), str(core.face)], workbench.environment(gpus))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert int(done.stdout) > 20
    (core.face / "libarchsplit_loader.so").unlink()
    words = (str(core.face), core.stub, str(core.library))
    done = run([str(program), *words], workbench.environment(gpus))
    assert "Sanitizer" not in done.stderr
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 20
    assert os.strerror(errno.ENOMEM) in done.stderr or "out of memory" in done.stderr
