"""File servers and disks that fail, at every call: NFS forgets files (ESTALE), disks die (EIO)."""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import HERE, STRICT, Workbench, compile_c, run

from loader_objects import loader_objects

if TYPE_CHECKING:
    from pathlib import Path

ERRORS = (errno.ESTALE, errno.EIO)
FINISHED = "opened, the answer is 42"


@pytest.fixture(scope="module")
def programs(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("disk")
    end = ("-ldl", "-lpthread")
    compile_c(folder / "disk.so", "-shared", "-fPIC", str(HERE / "failing_disk.c"), "-ldl")
    objects = loader_objects(*STRICT, "-fvisibility=hidden")
    compile_c(folder / "probe", *STRICT, str(HERE / "loader_probe.c"), *objects, *end)
    compile_c(folder / "host", *STRICT, str(HERE / "pack_host.c"), *end)
    return folder


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    core = split_site(workbench, tmp_path / "site")
    core.add("cc90", "sm_90")
    return core


def failing(workbench: Workbench, programs: Path, call: str, error: int, path: str, after: int = 0
            ) -> dict[str, str]:  # fmt: skip
    fail = {"CALL": call, "ERROR": str(error), "PATH": path, "AFTER": str(after)}
    told = {f"FAIL_{name}": value for name, value in fail.items()}
    return {**workbench.environment("9.0"), "LD_PRELOAD": str(programs / "disk.so"), **told}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("open", "libvecsort.so can't be opened: "),
        ("opendir", "cuda can't be listed: "),
        ("readdir", "cuda can't be listed: "),
        ("pread", "libvecsort.so can't be read: "),
    ],
)
def test_failing_call_is_unreadable_with_the_systems_words(
    workbench: Workbench, programs: Path, tmp_path: Path, call: str, words: str, error: int
) -> None:
    workbench.plugin(tmp_path, "sm_90")
    child = failing(workbench, programs, call, error, "vecsort_plugins")
    done = run([str(programs / "probe"), str(tmp_path / "vecsort_plugins"), "--open", "0"], child)
    assert "candidate unreadable: " in done.stdout
    assert f"{words}{os.strerror(error)}" in done.stdout
    assert done.returncode == 4


@pytest.mark.parametrize("error", [*ERRORS, 0])
def test_every_single_read_may_fail(
    workbench: Workbench, programs: Path, tmp_path: Path, error: int
) -> None:
    workbench.plugin(tmp_path, "sm_90")
    command = [str(programs / "probe"), str(tmp_path / "vecsort_plugins"), "--open", "0"]
    for after in itertools.count():
        child = failing(workbench, programs, "pread", error, "libvecsort.so", after)
        done = run(command, child)
        if FINISHED in done.stdout:
            break
        verdict = "truncated" if error == 0 else "unreadable"
        assert f"candidate {verdict}: " in done.stdout
        assert ("became shorter while its " in done.stdout) is (error == 0)
    assert after > 5


def test_short_read_is_continued(workbench: Workbench, programs: Path, tmp_path: Path) -> None:
    workbench.plugin(tmp_path, "sm_90")
    command = [str(programs / "probe"), str(tmp_path / "vecsort_plugins"), "--open", "0"]
    done = run(command, failing(workbench, programs, "pread", -1, "libvecsort.so"))
    assert FINISHED in done.stdout, done.stderr


@pytest.mark.parametrize("error", [*ERRORS, 0])
@pytest.mark.parametrize("file", ["device.pack", "core.pack"])
def test_every_read_of_a_pack_may_fail(
    workbench: Workbench, programs: Path, core: SplitSite, file: str, error: int
) -> None:
    for after in itertools.count():
        child = failing(workbench, programs, "pread", error, file, after)
        done = run([str(programs / "host"), str(core.library)], child)
        if done.stdout == "hH\n":
            break
        assert (done.stdout, done.returncode) == ("--\n", 0)
        words = "became shorter" if error == 0 else f"can't be read: {os.strerror(error)}"
        assert words in done.stderr
        assert "hint: python -m toy.doctor" in done.stderr
    assert after > 1


@pytest.mark.parametrize("call", ["open", "mmap"])
def test_pack_removed_after_its_index_is_reported(
    workbench: Workbench, programs: Path, core: SplitSite, call: str
) -> None:
    after = 1 if call == "open" else 0
    child = failing(workbench, programs, call, errno.ESTALE, "device.pack", after)
    done = run([str(programs / "host"), str(core.library)], child)
    assert done.stdout == "--\n"
    assert os.strerror(errno.ESTALE) in done.stderr
    assert str(core.path("cc90")) in done.stderr


FULL = """
from toy._archsplit import PluginError, require
try:
    require(verify="full")
    print("fine")
except PluginError as error:
    print(str(error).replace("\\n", " "))
"""


def test_pack_truncated_during_verification_is_reported(
    workbench: Workbench, programs: Path, core: SplitSite
) -> None:
    """Mapped memory of a truncated file would end the process by SIGBUS."""
    for after in itertools.count():
        child = failing(workbench, programs, "pread", 0, "device.pack", after)
        del child["LD_LIBRARY_PATH"], child["STAND_IN_GPUS"]
        done = workbench.python(core.site, FULL, gpus="9.0", **child)
        assert (done.returncode, done.stderr) == (0, "")
        if done.stdout == "fine\n":
            break
        assert "became shorter" in done.stdout or "no plugin of vecsort" in done.stdout
    assert after > 4  # head, index, the header of each container, each image
