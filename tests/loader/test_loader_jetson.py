"""GPUs that neither NVML nor the kernel driver's files name: a Jetson's, and a setting's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_proc import Machine
from loader_stubs import Stub, Workbench, compile_c

if TYPE_CHECKING:
    from pathlib import Path

LIBCUDA = """
int cuInit(unsigned flags) { (void)flags; __builtin_trap(); }
int cuDriverGetVersion(int *version) { *version = CUDA; return 0; }
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp("jetson")
    machine = Machine(root=root)
    machine.probe(f'-DDEV_NVHOST="{root}/nvhost-"', f'-DDEVICE_TREE="{root}/tree"')
    (root / "libcuda.c").write_text(LIBCUDA)
    for cuda in (12060, 13000):
        folder = root / str(cuda)
        folder.mkdir()
        shared = ("-shared", "-fPIC", f"-DCUDA={cuda}", str(root / "libcuda.c"))
        compile_c(folder / "libcuda.so.1", *shared)
    (root / "tree").mkdir()
    return machine


def set_chip(machine: Machine, chip: str, *, gpu: bool = True) -> None:
    compatible = f"nvidia,p3737-0000+p3701-0000\0nvidia,{chip}\0".encode()
    (machine.root / "tree" / "compatible").write_bytes(compatible)
    (machine.root / "tree" / "model").write_bytes(b"NVIDIA Jetson\x1b[31m of a test\0")
    node = machine.root / "nvhost-gpu"
    if gpu:
        node.touch()
    else:
        node.unlink(missing_ok=True)


def look(machine: Machine, *arguments: object, cuda: int = 12060, **more: str) -> str:
    return machine.look(*arguments, LD_LIBRARY_PATH=str(machine.root / str(cuda)), **more)


CHIPS = [
    ("tegra234", 12060, "8.7"),
    ("tegra194", 12060, "7.2"),
    ("tegra264", 13000, "11.0"),
    ("tegra264", 12060, "10.1"),
]


@pytest.mark.parametrize(("chip", "cuda", "capability"), CHIPS)
def test_jetson_is_known_by_its_device_tree(
    machine: Machine, chip: str, cuda: int, capability: str
) -> None:
    set_chip(machine, chip)
    found = look(machine, cuda=cuda)
    assert f"driver 0 cuda {cuda} version [] reason []" in found
    assert f"device 0: {capability} nvml 0 " in found
    assert "\x1b" not in found


def test_unknown_chip_is_told_and_may_be_set(machine: Machine) -> None:
    set_chip(machine, "tegra999")
    assert "set ARCHSPLIT_CAPABILITY, as in ARCHSPLIT_CAPABILITY=8.7" in look(machine)
    found = look(machine, ARCHSPLIT_CAPABILITY="12.1")
    assert "driver 0 cuda 12060" in found
    assert "device 0: 12.1 nvml 0 " in found
    assert "note ARCHSPLIT_CAPABILITY=12.1 stands for a GPU, because this is a Jetson" in found


def test_machine_without_any_gpu_is_not_a_jetson(machine: Machine) -> None:
    set_chip(machine, "tegra234", gpu=False)
    assert "driver 2 " in look(machine)


@pytest.mark.parametrize("setting", ["8", "8.77", "x", "8.7 ", "-8.7", "0.5", "8.x", "1000.0"])
def test_malformed_setting_is_an_error_of_the_interface(machine: Machine, setting: str) -> None:
    set_chip(machine, "tegra234", gpu=False)
    found = look(machine, ARCHSPLIT_CAPABILITY=setting)
    assert f"loader: ARCHSPLIT_CAPABILITY={setting} is not a compute capability; write" in found
    assert "driver" not in found


def test_setting_relaxes_no_check(workbench: Workbench, machine: Machine, tmp_path: Path) -> None:
    set_chip(machine, "tegra234", gpu=False)
    new = Stub(targets=("sm_87",), cuda_version=13000)
    workbench.plugin(tmp_path / "new", "sm_87", new)
    found = look(
        machine, tmp_path / "new" / "vecsort_plugins", "--open", 0, ARCHSPLIT_CAPABILITY="8.7"
    )
    assert "candidate driver-too-old: " in found
    assert "opened" not in found
    workbench.plugin(tmp_path / "fit", "sm_87", Stub(targets=("sm_87",), cuda_version=12060))
    fit = look(
        machine, tmp_path / "fit" / "vecsort_plugins", "--open", 0, ARCHSPLIT_CAPABILITY="8.7"
    )
    assert "opened, the answer is 42" in fit


def test_setting_is_ignored_if_nvml_knows_the_gpu(workbench: Workbench) -> None:
    found = workbench.probe(gpus="9.0", ARCHSPLIT_CAPABILITY="8.7").stdout
    assert "device 0: 9.0 " in found
    assert "note ARCHSPLIT_CAPABILITY=8.7 is not used: the GPUs are known" in found
