"""NVML that fails at every call, in every way, on machines of every size; or lacks a function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, STRICT, Workbench, compile_c

from loader_objects import LOADER

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = (LOADER / "src" / "nvml.c").read_text()
FUNCTIONS = tuple(re.findall(r'^    "(nvml\w+)",$', SOURCE, re.MULTILINE))
SILENT = ("nvmlErrorString",)  # it can't fail
OPTIONAL = FUNCTIONS[-3:]
ERRORS = (1, 2, 3, 4, 6, 9, 12, 15, 16, 17, 18, 28, 999, -1)
"""Not initialised, bad argument, not supported, no permission, …, lost, unknown, and none."""
MACHINES = ("", "9.0", "7.5;9.0", "8.0/7", "8.0;8.0/2;9.0/0", ";".join(["9.0"] * 8))
READY, MISSING, NO_GPU, HIDDEN, FAILED = 0, 2, 3, 4, 5


def state(output: str) -> int:
    return int(output.split()[1])


def test_all_functions_are_known() -> None:
    assert len(FUNCTIONS) == 14
    assert FUNCTIONS[0] == "nvmlInit_v2"


@pytest.mark.parametrize("gpus", MACHINES)
@pytest.mark.parametrize("function", [each for each in FUNCTIONS if each not in SILENT])
def test_every_error_of_every_call_is_a_result(
    workbench: Workbench, function: str, gpus: str
) -> None:
    for error in ERRORS if gpus in {"9.0", "8.0/7"} else ERRORS[::5]:
        done = workbench.probe(gpus=gpus, STAND_IN_FAIL=f"{function}={error}")
        assert done.returncode == 0
        found = state(done.stdout)
        shown = len(re.findall("^device ", done.stdout, re.MULTILINE))
        assert found in {READY, MISSING, NO_GPU, HIDDEN, FAILED}
        assert (found == READY) is (shown > 0)
        assert (" reason []" in done.stdout) is (found == READY)


@pytest.mark.parametrize("gpu", [0, 1, 2])
@pytest.mark.parametrize("function", [each for each in FUNCTIONS if "Device" in each][1:])
def test_failed_call_for_one_gpu_keeps_the_others(
    workbench: Workbench, function: str, gpu: int
) -> None:
    done = workbench.probe(gpus="9.0;9.0/2;9.0", STAND_IN_FAIL=f"{function}=15:{gpu}")
    assert done.returncode == 0
    assert state(done.stdout) == READY


@pytest.mark.parametrize("function", FUNCTIONS)
def test_missing_function_is_a_result(workbench: Workbench, tmp_path: Path, function: str) -> None:
    source, library = str(HERE / "stand_in_nvml.c"), tmp_path / "libnvidia-ml.so.1"
    renamed = f"-D{function}=nothing_like_that"
    compile_c(library, *STRICT, "-shared", "-fPIC", renamed, source)
    done = workbench.probe(gpus="9.0/2;8.0", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0
    assert state(done.stdout) == (READY if function in OPTIONAL else FAILED)
    assert (f"libnvidia-ml.so.1 has no {function}" in done.stdout) is (function not in OPTIONAL)


def test_impossible_count_is_a_failure(workbench: Workbench) -> None:
    failure = "nvmlDeviceGetHandleByIndex_v2=2"
    done = workbench.probe(gpus="9.0", STAND_IN_COUNT="4294967295", STAND_IN_FAIL=failure)
    assert state(done.stdout) == FAILED


def test_control_characters_in_the_name_of_each_gpu_are_escaped(workbench: Workbench) -> None:
    found = workbench.probe(gpus="9.0;8.0", STAND_IN_NAME="\x1b[31m").stdout
    assert "\x1b" not in found
    assert "\\x1b[31m 1" in found


def test_part_of_an_unprivileged_containers_gpus_is_seen(workbench: Workbench) -> None:
    # NVML counts GPUs that the container's own cgroup hides, and refuses to talk about them.
    failures = ",".join(f"nvmlDeviceGetHandleByIndex_v2=4:{gpu}" for gpu in (0, 2, 3))
    done = workbench.probe(gpus=";".join(["9.0"] * 4), STAND_IN_FAIL=failures)
    assert re.findall(r"^device (\d+): 9.0 nvml (\d+)", done.stdout, re.MULTILINE) == [("0", "1")]
