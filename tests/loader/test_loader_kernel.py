"""Without NVML: what the kernel driver still tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_stubs import HERE, NO_NVML, STRICT, Workbench, compile_c, run, sources

if TYPE_CHECKING:
    from pathlib import Path


def test_gpus_without_nvml_are_no_missing_driver(workbench: Workbench, tmp_path: Path) -> None:
    gpus = tmp_path / "gpus"
    probe = str(HERE / "loader_probe.c")
    flags = (*STRICT, f'-DPROC_GPUS="{gpus}"')
    program = compile_c(tmp_path / "probe", *flags, probe, *sources(), "-ldl", "-lpthread")
    command, child = [str(program), str(tmp_path)], {"LD_LIBRARY_PATH": NO_NVML}
    assert "there is no NVIDIA driver" in run(command, child).stdout
    gpus.mkdir()
    assert "there is no NVIDIA driver" in run(command, child).stdout
    (gpus / "0000:19:00.0").mkdir()
    assert f"{gpus} lists 1 GPUs without their capabilities" in run(command, child).stdout
