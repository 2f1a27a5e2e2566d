"""Devices of the loader, with a fake NVML and every form of CUDA's variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, STRICT, Stub, Workbench, compile_c

if TYPE_CHECKING:
    from pathlib import Path

THREE = "8.0;8.0;8.0"
MIXED = "7.5;9.0;8.0;9.0"  # on PCI buses 1 to 4
UUID = "GPU-a{:07x}-1111-2222-3333-444444444444"
MIG = "MIG-b{:03x}{:04x}-1111-2222-3333-444444444444"
READY, MISSING, NO_GPU, HIDDEN, FAILED = 0, 2, 3, 4, 5

VISIBLE = {
    "unset": (None, [0, 1, 2]),
    "empty": ("", []),
    "blank": (" ", []),
    "one": ("1", [1]),
    "order": ("2,0", [2, 0]),
    "all": ("0,1,2", [0, 1, 2]),
    "spaces": (" 1, 2", [1, 2]),
    "minus one": ("-1", []),
    "minus one inside": ("0,2,-1,1", [0, 2]),
    "too high": ("0,3,1", [0]),
    "low 32 bits": ("4294967297", [1]),
    "much too high": ("0,99999999999999999999,1", [0]),
    "signs": ("+1,-0", [1, 0]),
    "word": ("0,all,1", [0]),
    "no word": ("NoDevFiles", []),
    "twice": ("0,1,0", []),
    "twice after the end": ("0,7,0", [0]),
    "empty entry": ("1,,2", [1]),
    "last comma": ("1,", [1]),
    "no octal": ("02,1", [2, 1]),
    "text after numbers": ("1gpu,2 x,0x1", [1, 2, 0]),
    "uuid": (UUID.format(1), [1]),
    "uuids": (f"{UUID.format(2)},{UUID.format(0)}", [2, 0]),
    "short uuid": ("GPU-a0000002", [2]),
    "ambiguous uuid": ("GPU-a000", []),
    "only a prefix": ("GPU-", []),
    "upper-case uuid": ("GPU-A0000002", [2]),
    "lower-case prefix": ("gpu-a0000002", []),
    "bare uuid": ("a0000002-1111-2222-3333-444444444444", []),
    "text after a uuid": (f"{UUID.format(1)}0,{UUID.format(2)} x", [1, 2]),
    "text after a part of a uuid": ("GPU-a0000001x", []),
    "uuid without dashes": (f"GPU-{UUID.format(1)[4:].replace('-', '')}", [1]),
    "uuid with a last dash": ("GPU-a0000001-", [1]),
    "space before a uuid": (f" {UUID.format(1)}", []),
    "other uuid": ("GPU-a0000002-1111-2222-3333-444444444445", []),
    "unknown uuid": (f"{UUID.format(1)},GPU-ffff,{UUID.format(0)}", [1]),
    "uuid twice": (f"{UUID.format(1)},GPU-a0000001", []),
    "uuid, then number": (f"{UUID.format(1)},0", [1]),
    "number, then uuid": (f"0,{UUID.format(1)}", [0]),
    "the prefix of an instance": ("MIG-a0000001", [1]),
    "no instance": ("MIG-b0000001", []),
    "old form of an instance": (f"MIG-{UUID.format(1)}/0/0", []),
}


ONE_DEVICE = {
    "GPU-": [],
    "MIG-": [],
    "GPU-,0": [],
    "GPU--": [0],
    "GPU-a": [0],
    "GPU- ": [],
    "x": [],
}


def seen(output: str) -> list[int]:
    """NVML's numbers of the devices, in CUDA's order."""
    return [
        int(number) for number in re.findall(r"^device \d+: \S+ nvml (\d+) ", output, re.MULTILINE)
    ]


def uuids(output: str) -> list[str]:
    return re.findall(r"^device .* nvml \d+ (\S+) ", output, re.MULTILINE)


def state(output: str) -> int:
    found = re.search(r"^driver (\d)", output, re.MULTILINE)
    assert found is not None, output
    return int(found[1])


def visible(value: str | None) -> dict[str, str]:
    return {} if value is None else {"CUDA_VISIBLE_DEVICES": value}


@pytest.mark.parametrize("case", VISIBLE)
def test_cuda_visible_devices_selects_among_three(workbench: Workbench, case: str) -> None:
    value, expected = VISIBLE[case]
    output = workbench.probe(gpus=THREE, **visible(value)).stdout
    assert seen(output) == expected
    assert state(output) == (READY if expected else HIDDEN)


@pytest.mark.parametrize("value", ONE_DEVICE)
def test_cuda_visible_devices_selects_on_a_machine_with_one(
    workbench: Workbench, value: str
) -> None:
    output = workbench.probe(gpus="9.0", CUDA_VISIBLE_DEVICES=value).stdout
    assert seen(output) == ONE_DEVICE[value]


@pytest.mark.parametrize("value", ["0,3,1", "GPU-zzz", "-1", "0,,1"])
def test_list_ending_entry_is_noted(workbench: Workbench, value: str) -> None:
    output = workbench.probe(gpus=THREE, CUDA_VISIBLE_DEVICES=value).stdout
    assert "names no GPU here, so CUDA ignores it and all that follows" in output


def test_hidden_devices_are_told_apart_from_none(workbench: Workbench) -> None:
    output = workbench.probe("--open", 0, gpus=THREE, CUDA_VISIBLE_DEVICES="").stdout
    assert (
        "failed with 3: no device 0: CUDA hides all 3 devices from this process "
        "(CUDA_VISIBLE_DEVICES=)" in output
    )


@pytest.mark.parametrize("count", [1, 2, 8, 128])
def test_all_devices_are_seen(workbench: Workbench, count: int) -> None:
    output = workbench.probe(gpus=";".join(["9.0"] * count)).stdout
    assert seen(output) == list(range(count))
    assert "note" not in output


def test_more_devices_than_fit_are_noted(workbench: Workbench) -> None:
    output = workbench.probe(gpus=";".join(["9.0"] * 130)).stdout
    assert len(seen(output)) == 128
    assert "there are more than 128 devices" in output


@pytest.mark.parametrize(
    ("order", "expected"),
    [("PCI_BUS_ID", [0, 1, 2, 3]), (None, [1, 3, 2, 0]), ("FASTEST_FIRST", [1, 3, 2, 0])],
)
def test_mixed_devices_are_ordered(
    workbench: Workbench, order: str | None, expected: list[int]
) -> None:
    variables = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    output = workbench.probe(gpus=MIXED, **variables).stdout
    assert seen(output) == expected
    assert ("the GPUs differ" in output) is (order != "PCI_BUS_ID")


@pytest.mark.parametrize("order", ["pci_bus_id", "x"])
def test_unknown_order_hides_all(workbench: Workbench, order: str) -> None:
    output = workbench.probe(gpus=THREE, CUDA_DEVICE_ORDER=order).stdout
    assert state(output) == HIDDEN
    assert f"CUDA doesn't know CUDA_DEVICE_ORDER={order}, so it shows no GPU" in output


def test_indices_count_in_cudas_order(workbench: Workbench) -> None:
    assert seen(workbench.probe(gpus=MIXED, CUDA_VISIBLE_DEVICES="2,0").stdout) == [2, 1]


def test_order_does_not_matter_for_uuids(workbench: Workbench) -> None:
    output = workbench.probe(gpus=MIXED, CUDA_VISIBLE_DEVICES="GPU-a0000000,GPU-a0000003").stdout
    assert seen(output) == [0, 3]
    assert "note" not in output


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST"])
def test_pci_address_decides_and_not_nvmls_number(workbench: Workbench, order: str) -> None:
    output = workbench.probe(gpus="9.0@9;9.0@3;9.0@5", CUDA_DEVICE_ORDER=order).stdout
    assert seen(output) == [1, 2, 0]
    assert "00000000:03:00.0" in output


@pytest.mark.parametrize(
    ("gpus", "value", "expected"),
    [
        ("8.0/2", None, [MIG.format(0, 1)]),
        ("8.0;8.0/2;8.0/1", None, [MIG.format(1, 1)]),
        ("8.0;8.0/2", "0", [UUID.format(0)]),
        ("8.0;8.0/2", "1", [MIG.format(1, 1)]),
        ("8.0;8.0/2", "0,1", [MIG.format(1, 1)]),
        ("8.0;8.0/2", MIG.format(1, 2), [MIG.format(1, 2)]),
        ("8.0;8.0/2", "MIG-b0010002", [MIG.format(1, 2)]),
        ("8.0;8.0/2", "MIG-b001", []),
        ("8.0;8.0/2", f"{MIG.format(1, 2)},{MIG.format(1, 1)}", [MIG.format(1, 2)]),
        ("8.0;8.0/2", f"MIG-{UUID.format(1)}/1/0", [MIG.format(1, 1)]),
        ("8.0;8.0/2", "MIG-GPU-ffff/1/0", []),
        ("8.0/0;8.0", None, [UUID.format(1)]),
        ("8.0/0;8.0", "0", []),
    ],
)
def test_cuda_visible_devices_selects_mig_devices(
    workbench: Workbench, gpus: str, value: str | None, expected: list[str]
) -> None:
    output = workbench.probe(gpus=gpus, **visible(value)).stdout
    assert uuids(output) == expected
    assert state(output) == (READY if expected else HIDDEN)


def test_mig_instance_beside_others_is_noted(workbench: Workbench) -> None:
    output = workbench.probe(gpus="8.0;9.0/1").stdout
    assert "note a MIG instance is visible: CUDA shows only this one (MIG-b0010001" in output
    assert "device 0: 9.0 nvml 1" in output


def test_no_driver_is_a_result(workbench: Workbench) -> None:
    done = workbench.probe("--open", 0, gpus=None)
    assert state(done.stdout) == MISSING
    assert "no NVIDIA driver: libnvidia-ml.so.1: cannot open shared object" in done.stdout
    assert "failed with 3: no device 0: no NVIDIA driver" in done.stdout


def test_no_gpu_is_a_result(workbench: Workbench) -> None:
    output = workbench.probe(gpus="").stdout
    assert state(output) == NO_GPU
    assert "reason [the driver (580.95.05) is there, but no GPU]" in output


@pytest.mark.parametrize(
    ("failure", "expected", "reason"),
    [
        ("nvmlInit_v2=9", MISSING, "the driver is not running: stand-in error 9"),
        ("nvmlInit_v2=28", MISSING, "the driver is not running: stand-in error 28"),
        ("nvmlInit_v2=18", FAILED, "NVML can't start: stand-in error 18"),
        ("nvmlDeviceGetCount_v2=999", FAILED, "NVML can't count the GPUs: stand-in error 999"),
        ("nvmlDeviceGetHandleByIndex_v2=15", FAILED, "the capability of GPU 2, which is left out"),
        ("nvmlDeviceGetCudaComputeCapability=15", FAILED, "the capability of GPU 2"),
    ],
)
def test_failing_nvml_is_a_result(
    workbench: Workbench, failure: str, expected: int, reason: str
) -> None:
    output = workbench.probe(gpus=THREE, STAND_IN_FAIL=failure).stdout
    assert state(output) == expected
    assert reason in output
    assert seen(output) == []


@pytest.mark.parametrize(
    ("failure", "note"),
    [
        ("nvmlDeviceGetUUID=3", "NVML can't tell the UUID of GPU 0: stand-in error 3"),
        ("nvmlDeviceGetPciInfo_v3=3", "NVML can't tell the PCI address of GPU 0"),
        ("nvmlSystemGetDriverVersion=3", "NVML can't tell the driver's version"),
        ("nvmlSystemGetCudaDriverVersion_v2=12", "NVML can't tell the driver's CUDA version"),
        ("nvmlDeviceGetName=3", "device 0: 8.0 nvml 0 GPU-a0000000-1111-2222-3333-444444444444"),
        ("nvmlDeviceGetMigMode=3", "device 0: "),
        ("nvmlDeviceGetMaxMigDeviceCount=3", "device 0: "),
        ("nvmlShutdown=999", "device 0: "),
    ],
)
def test_harmless_failure_is_noted(workbench: Workbench, failure: str, note: str) -> None:
    output = workbench.probe(gpus=THREE, STAND_IN_FAIL=failure).stdout
    assert state(output) == READY
    assert seen(output) == [0, 1, 2]
    assert note in output


def test_lost_gpu_is_left_out_and_noted(workbench: Workbench) -> None:
    failure = "nvmlDeviceGetHandleByIndex_v2=15:1"
    output = workbench.probe(gpus=THREE, STAND_IN_FAIL=failure).stdout
    assert seen(output) == [0, 2]
    assert "the capability of GPU 1, which is left out: stand-in error 15" in output


@pytest.mark.parametrize("failure", ["", "nvmlDeviceGetCount_v2=1", "nvmlDeviceGetName=1"])
def test_nvml_is_shut_down_after_asking(workbench: Workbench, tmp_path: Path, failure: str) -> None:
    log = tmp_path / "log"
    workbench.probe(gpus=THREE, STAND_IN_LOG=str(log), STAND_IN_FAIL=failure)
    assert log.read_text().splitlines() == ["load", "init", "shutdown"]


def test_nvml_is_not_asked_when_devices_are_skipped(workbench: Workbench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    output = workbench.probe("--skip", gpus=THREE, STAND_IN_LOG=str(log)).stdout
    assert "driver 1 cuda 0 version [] reason [devices were not asked for]" in output
    assert not log.exists()


def test_driver_before_mig_is_fine(workbench: Workbench, tmp_path: Path) -> None:
    source = str(HERE / "stand_in_nvml.c")
    compile_c(tmp_path / "libnvidia-ml.so.1", *STRICT, "-shared", "-fPIC", "-DOLD_DRIVER", source)
    output = workbench.probe(gpus=THREE, LD_LIBRARY_PATH=str(tmp_path)).stdout
    assert seen(output) == [0, 1, 2]


def test_library_other_than_nvml_is_a_result(workbench: Workbench, tmp_path: Path) -> None:
    workbench.stub(tmp_path / "libnvidia-ml.so.1")
    output = workbench.probe(gpus=THREE, LD_LIBRARY_PATH=str(tmp_path)).stdout
    assert state(output) == FAILED
    assert "libnvidia-ml.so.1 has no nvmlInit_v2" in output


@pytest.mark.parametrize(
    ("driver", "target", "toolkit", "opened"),
    [
        ("13000", "sm_90", 13000, True),
        ("13010", "sm_90", 13000, True),
        ("13000", "sm_90", 13020, True),
        ("12080", "sm_90", 12000, True),
        ("12080", "sm_90", 13000, False),
        ("13000", "compute_90", 13000, True),
        ("13010", "compute_90", 13000, True),
        ("13000", "compute_90", 13010, False),
        ("14000", "compute_90", 13010, True),
    ],
)
def test_driver_must_know_the_toolkit(
    workbench: Workbench, tmp_path: Path, driver: str, target: str, toolkit: int, opened: bool
) -> None:
    workbench.plugin(tmp_path, target, Stub(targets=(target,), cuda_version=toolkit))
    folder = tmp_path / "vecsort_plugins"
    output = workbench.probe(folder, "--open", 0, gpus="9.0", STAND_IN_CUDA=driver).stdout
    assert ("opened" in output) is opened
    if not opened:
        words = f"{toolkit // 1000}.{toolkit % 1000 // 10}"
        assert f"candidate driver-too-old: {folder}/cuda/{target}/" in output
        assert f"is built with CUDA {words}, but the driver (580.95.05) supports CUDA up to" in (
            output
        )


def test_unknown_driver_version_refuses_nothing(workbench: Workbench, tmp_path: Path) -> None:
    workbench.plugin(tmp_path, "sm_90")
    failure = "nvmlSystemGetCudaDriverVersion_v2=12"
    folder = tmp_path / "vecsort_plugins"
    assert (
        "opened" in workbench.probe(folder, "--open", 0, gpus="9.0", STAND_IN_FAIL=failure).stdout
    )


def test_ptx_of_a_mixed_plugin_waits_for_the_driver(workbench: Workbench, tmp_path: Path) -> None:
    both = Stub(targets=("sm_80", "compute_90"), cuda_version=13010)
    workbench.plugin(tmp_path, "sm_80", both)
    folder = tmp_path / "vecsort_plugins"
    assert "opened" in workbench.probe(folder, "--open", 0, gpus="8.6").stdout
    refused = workbench.probe(folder, "--open", 0, gpus="9.0").stdout
    assert "serves other GPUs: sm_80 compute_90 (newer than the driver)" in refused


def test_each_device_gets_its_own_plugin(workbench: Workbench, tmp_path: Path) -> None:
    for target in ("sm_80", "sm_90"):
        workbench.plugin(tmp_path, target)
    folder = tmp_path / "vecsort_plugins"
    for device in (0, 1):
        assert "opened" in workbench.probe(folder, "--open", device, gpus="8.0;9.0").stdout
    output = workbench.probe(folder, "--open", 2, gpus="8.0;9.0").stdout
    assert "no device 2: CUDA shows 2 to this process, numbered from 0" in output
