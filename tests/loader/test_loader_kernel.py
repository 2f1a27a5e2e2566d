"""NVML outside of ld.so's path: WSL's folder, and the files of the kernel driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_proc import Machine

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit_loader import _bindings

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """With a probe that looks into its own folder."""
    machine = Machine(root=tmp_path_factory.mktemp("container"))
    machine.probe("-fsanitize=address,undefined")
    return machine


@pytest.fixture
def container(built: Machine) -> Machine:
    built.clear()
    return built


def test_empty_machine_has_no_driver(container: Machine) -> None:
    assert "driver 2 cuda 0 version [] reason [no NVIDIA driver" in container.look()
    (container.proc / "gpus").mkdir(parents=True)
    assert "no NVIDIA driver" in container.look()


def test_gpus_known_by_name_are_noted(container: Machine) -> None:
    container.add(0, "NVIDIA H200")
    container.add(1, "NVIDIA A100-SXM4-40GB")
    found = container.look()
    assert "driver 0 cuda 0 version [580.95.05] reason []" in found
    assert (
        "device 0: 9.0 nvml 0 GPU-a0000000-1111-2222-3333-444444444444 0000:19:00.0 [NVIDIA H200]"
    ) in found
    assert "device 1: 8.0 nvml 1" in found
    assert "note libnvidia-ml.so.1 is not here: the GPUs are those that" in found


def test_visible_devices_count_here_too(container: Machine) -> None:
    container.add(0, "NVIDIA H200")
    container.add(1, "NVIDIA A100-SXM4-40GB")
    found = container.look(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert "device 0: 8.0 nvml 1" in found
    assert "device 1" not in found
    hidden = container.look(CUDA_VISIBLE_DEVICES="")
    assert "driver 4 " in hidden


def test_plugin_is_opened_for_a_gpu_known_by_name(
    workbench: Workbench, container: Machine, tmp_path: Path
) -> None:
    container.add(0, "Tesla V100-SXM2-16GB")
    workbench.plugin(tmp_path, "sm_70")
    found = container.look(str(tmp_path / "vecsort_plugins"), "--open", "0")
    assert "opened, the answer is 42" in found


def test_unknown_name_is_a_failure_with_a_remedy(container: Machine) -> None:
    container.add(0, "NVIDIA H200")
    container.add(1, "NVIDIA Imaginary 9000")
    found = container.look("--open", "0")
    assert "driver 5 cuda 0 version [580.95.05] reason [libnvidia-ml.so.1 is not here" in found
    assert '"NVIDIA Imaginary 9000" is not known by its name; give this container' in found
    assert "device" not in found.replace("no device 0", "")


def test_gpus_of_other_containers_are_left_out(container: Machine) -> None:
    container.add(0, "NVIDIA H200", device=False)
    container.add(1, "NVIDIA A30")
    container.add(2, "NVIDIA Imaginary 9000", excluded="Yes")
    found = container.look()
    assert "device 0: 8.0 nvml 0" in found
    assert "device 1" not in found


def test_no_gpu_of_ones_own_is_told(container: Machine) -> None:
    container.add(0, "NVIDIA H200", device=False)
    assert "driver 3 " in container.look()
    assert "this container was given no GPU of its 1" in container.look()


def test_folder_without_information_is_passed_over(container: Machine) -> None:
    container.information(0).parent.mkdir(parents=True)
    assert "this container was given no GPU of its 1" in container.look()


def test_wsls_library_is_found_in_windows_own_folder(
    workbench: Workbench, container: Machine
) -> None:
    wsl = container.root / "wsl" / "libnvidia-ml.so.1"
    wsl.parent.mkdir()
    wsl.write_bytes((workbench.folder / wsl.name).read_bytes())
    found = container.look(STAND_IN_GPUS="8.9")
    assert "device 0: 8.9 nvml 0" in found
    assert "note" not in found


MODELS = {
    "NVIDIA A10": "8.6",
    "NVIDIA A10-24Q": "8.6",
    "NVIDIA A100 80GB PCIe": "8.0",
    "NVIDIA GeForce RTX 3090 Ti": "8.6",
    "NVIDIA L40S": "8.9",
    "Tesla T4": "7.5",
    "Tesla P40": "6.1",
    "NVIDIA GB10": "12.1",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "12.0",
    "NVIDIA B300": "10.3",
    "NVIDIA T400": "7.5",
    "NVIDIA RTX A4000": "8.6",
    "NVIDIA GB200": "10.0",
    "NVIDIA T4000X": None,
    "NVIDIA XRTX A4000": None,
    "Tesla": None,
    "": None,
    "Jetson Orin": None,
}


@pytest.mark.parametrize("model", MODELS)
def test_models_are_recognised_by_whole_words(container: Machine, model: str) -> None:
    container.add(0, model)
    expected = MODELS[model]
    found = container.look()
    assert (f"device 0: {expected} " in found) is (expected is not None)
    assert ("is not known by its name" in found) is (expected is None)


def test_every_product_of_the_table_is_recognised(workbench: Workbench, container: Machine) -> None:
    library = _bindings.open_library(str(workbench.folder))
    rows = dict(_bindings.known_capabilities(library))
    embedded = {str(each) for each, known in GPU_BY_CAPABILITY.items() if known.embedded}
    minor = 0
    expected = []
    for capability, gpus in rows.items():
        if capability not in embedded:
            for name in filter(None, gpus.partition(" (")[0].split(", ")):
                container.add(minor, f"NVIDIA {name.removeprefix('Tesla ')}")
                expected.append(capability)
                minor += 1
    found = container.look(CUDA_DEVICE_ORDER="PCI_BUS_ID")
    lines = [line.split()[2] for line in found.splitlines() if line.startswith("device ")]
    assert lines == expected
