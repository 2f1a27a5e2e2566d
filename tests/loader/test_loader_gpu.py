"""Devices as the loader reports them without CUDA, compared with CUDA's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, STRICT, Stub, Workbench, compile_c

from loader_objects import sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(0)
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for number in range(count.value):
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGet(ctypes.byref(device), number) == 0
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    assert cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0
    assert cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0
    print(f"{bytes(uuid).hex()} {major.value}.{minor.value}")
"""
FORMS = (
    "", " ", "0", "1", "1,0", "0,1", "0,0", "0,1,0", "-1", "0,-1,1", "0,64,1", "64", "x", "0,x,1",
    "0x1", "1x", "+0", " 0", "0 ", "0 ,1", "0, 1", "0,,1", ",0", "0,", "00", "0;1", "0:1", "0-1",
    "1.5", "\t0", "4294967296", "99999999999999999999", "NoDevFiles", "all", "{first}",
    "{first},{last}", "{last},{first}", "{first},{first}", "{first} ", " {first}", "{first}0",
    "{first},0", "0,{last}", "{last},GPU-ffff,{first}", "GPU-ffff", "GPU-", "{short}", "{upper}",
    "{bare}", "gpu-{bare}", "{last}x", "MIG-{first}/0/0", "MIG-ffff",
    "MIG-{bare}", "MIG-{first}", "{first}/0/0", "{first}-", "{short}x", "{short}-", "GPU- {bare}",
    "{dense}", "-0", "- 1", "+1,0", "4294967297", "2147483648", "18446744073709551617", "010", "08",
    "\n0", "\v0", "0\n", ",", "0,7,0", "7,0", "{first},{last},{first}", "{short},{first}",
    "{first},MIG-{bare}", "GPU--", "GPU-,0", "MIG-", "GPU-,{first}",
)  # fmt: skip


def child(command: list[str], variables: dict[str, str]) -> str:
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command, env=clean | variables, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def seen_by_loader(probe: Path, variables: dict[str, str]) -> list[str]:
    lines = re.findall(
        r"^device \d+: (\S+) nvml \d+ \w+-(\S+)", child([str(probe)], variables), re.MULTILINE
    )
    return [f"{uuid.replace('-', '')} {capability}" for capability, uuid in lines]


def seen_by_cuda(variables: dict[str, str]) -> list[str]:
    return child([sys.executable, "-c", CUDA], variables).splitlines()


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("gpu") / "probe"
    return compile_c(output, *STRICT, str(HERE / "loader_probe.c"), *sources(), "-ldl", "-lpthread")


@pytest.fixture(scope="module")
def spellings(probe: Path) -> dict[str, str]:
    text = child([str(probe)], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    uuids = re.findall(r"^device .* (GPU-\S+)", text, re.MULTILINE)
    assert uuids, f"no GPU, or all of them in MIG mode:\n{text}"
    first, last = uuids[0], uuids[-1]
    bare = first.removeprefix("GPU-")
    return {
        "first": first,
        "last": last,
        "bare": bare,
        "short": first[:12],
        "upper": first.upper(),
        "dense": f"GPU-{bare.replace('-', '')}",
    }


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST", "pci_bus_id", "", None])
def test_all_devices_are_in_cudas_order(probe: Path, order: str | None) -> None:
    variables = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    assert seen_by_loader(probe, variables) == seen_by_cuda(variables)


@pytest.mark.parametrize("form", FORMS)
def test_visible_devices_match_cuda(probe: Path, spellings: dict[str, str], form: str) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": form.format(**spellings)}
    assert seen_by_loader(probe, variables) == seen_by_cuda(variables)


def test_quick_look_is_not_contradicted(probe: Path, tmp_path: Path) -> None:
    shared = compile_c(tmp_path / "stub.so", "-shared", "-fPIC", str(HERE / "stub_plugin.c"))
    bench = Workbench(folder=tmp_path, template=shared.read_bytes(), library=shared)
    numbers = (60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121)
    plugin = bench.stub(tmp_path / "all.so", Stub(targets=tuple(f"sm_{each}" for each in numbers)))
    found = child([str(probe), "--file", str(plugin), "--open", "0", "--late"], {})
    assert "opened, the answer is 42" in found
    told = re.search(r"all GPUs are of capability (\S+)", found)
    if told is None:
        pytest.skip(f"a quick look was not enough here:\n{found}")
    assert "NVML says otherwise" not in found
    assert {line.split()[1] for line in seen_by_cuda({})} == {told[1]}


@pytest.mark.parametrize("visible", [None, "0", "1,0", "-1"])
def test_kernel_driver_without_nvml_gives_the_same(
    probe: Path, tmp_path_factory: pytest.TempPathFactory, visible: str | None
) -> None:
    output = tmp_path_factory.mktemp("kernel") / "probe"
    nowhere = ('-DNVML="/nonexistent/nvml.so"', '-DWSL_NVML="/nonexistent/wsl.so"')
    source = str(HERE / "loader_probe.c")
    kernel = compile_c(output, *STRICT, *nowhere, source, *sources(), "-ldl", "-lpthread")
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert seen_by_loader(kernel, variables) == seen_by_loader(probe, variables)
