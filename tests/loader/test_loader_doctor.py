"""``python -m <package>.doctor`` and ``explain``, whatever state the machine is in."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from loader_stubs import LIBRARY, Stub, Workbench, run, write_table

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    site = tmp_path / "site"
    workbench.core(site)
    return site


def doctor(
    workbench: Workbench, site: Path, *arguments: str, gpus: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(site), **workbench.environment(gpus, **more)}
    return run([sys.executable, "-m", "vecsort.doctor", *arguments], environment)


def findings(workbench: Workbench, site: Path, **more: str) -> dict[str, Any]:
    done = doctor(workbench, site, "--json", **more)
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["schema"] == 1
    assert content["healthy"] is (done.returncode == 0)
    return content


def test_doctor_reports_a_served_device(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_90")
    done = doctor(workbench, site, gpus="9.0")
    assert done.stdout == (
        "core: vecsort 1.2.3, build 1111111111111111\n"
        "driver: 580.95.05, for CUDA up to 13.0\n"
        "device 0: Stand-in GPU 0, capability 9.0, GPU-a0000000-1111-2222-3333-444444444444\n"
        f"  served by {path} (sm_90)\n"
        "plugins:\n"
        f"  accepted: {path}\n"
        "    vecsort 1.2.3 for sm_90, built with CUDA 13.0\n"
        "verdict: 1 of 1 device served\n"
    )
    assert done.returncode == 0


def test_unserved_device_gets_the_command(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_80")
    done = doctor(workbench, site, gpus="9.0;8.0")
    assert "  not served: needs the plugin for sm_90\n" in done.stdout
    assert '  to fix it: pip install "vecsort[sm90]==1.2.3"\n' in done.stdout
    assert "\n  the GPUs differ" in done.stdout
    assert "verdict: 1 of 2 devices served\n" in done.stdout
    assert done.returncode == 1


def test_doctor_reports_device_without_a_plugin_in_the_release(
    workbench: Workbench, site: Path
) -> None:
    done = doctor(workbench, site, gpus="7.5")
    assert "  not served: this release has no plugin for it\n" in done.stdout
    assert done.returncode == 1


def test_ptx_serves_later_gpus(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "compute_120")
    done = doctor(workbench, site, gpus="12.1")
    assert "(compute_120, compiled by the driver when it is first used)" in done.stdout
    assert done.returncode == 0


def add_target(site: Path, target: str) -> None:
    """Make the core one that has a plugin for this target too."""
    path = site / "vecsort" / "_archsplit" / "core.json"
    content = json.loads(path.read_text())
    content["targets"][target] = f"vecsort-{target.replace('_', '')}"
    path.write_text(json.dumps(content))
    write_table(path.parent)


def test_better_plugin_is_proposed(workbench: Workbench, site: Path) -> None:
    add_target(site, "compute_80")
    workbench.plugin(site, "compute_80", Stub(targets=("compute_80",)))
    done = doctor(workbench, site, gpus="9.0")
    assert '  better, with sm_90: pip install "vecsort[sm90]==1.2.3"\n' in done.stdout
    assert done.returncode == 0


def test_nothing_worse_is_proposed(workbench: Workbench, site: Path) -> None:
    add_target(site, "sm_90a")
    workbench.plugin(site, "sm_90a")
    done = doctor(workbench, site, gpus="9.0")
    assert "pip install" not in done.stdout.partition("plugins:")[0]


def test_doctor_without_a_gpu_lists_all_capabilities(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_80")
    done = doctor(workbench, site)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "8.6 A10, A40, GeForce RTX 3090 sm_80 installed" in lines
    assert "to install one: pip install REQUIREMENT" in lines
    assert '9.0 H100, H200 sm_90 "vecsort[sm90]==1.2.3"' in lines
    assert not any(line.startswith("7.5 ") for line in lines)
    assert "verdict: no GPU here; the installed plugins are fine" in lines
    assert lines[1].startswith("driver: no NVIDIA driver: libnvidia-ml.so.1")
    assert done.returncode == 0


def test_nothing_installed_and_no_gpu_is_fine(workbench: Workbench, site: Path) -> None:
    done = doctor(workbench, site)
    assert "plugins: none installed\n" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("stub", "verdict"),
    [
        (Stub(version=b"1.2.2"), "wrong-version"),
        (Stub(package=b"a"), "wrong-package"),
        (Stub(build_id=bytes(32)), "wrong-build"),
    ],
)
def test_wrong_plugin_is_told(workbench: Workbench, site: Path, stub: Stub, verdict: str) -> None:
    workbench.plugin(site, "sm_90", stub)
    content = findings(workbench, site)
    (candidate,) = content["candidates"]
    assert candidate["verdict"] == verdict
    assert candidate["reason"]
    assert not content["healthy"]


def test_truncated_plugin_is_told(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_90")
    path.write_bytes(path.read_bytes()[:-100])
    done = doctor(workbench, site, gpus="9.0")
    assert f"  truncated: {path}\n    it is truncated: it has" in done.stdout
    assert 'pip install --force-reinstall --no-deps "vecsort-sm90==1.2.3"\n' in done.stdout
    assert done.returncode == 1


def test_failing_driver_is_not_healthy(workbench: Workbench, site: Path) -> None:
    content = findings(workbench, site, gpus="9.0", STAND_IN_FAIL="nvmlInit_v2=18")
    assert content["driver"] == {
        "state": "failed",
        "reason": "NVML can't start: stand-in error 18",
        "version": "",
        "cuda": None,
    }
    assert not content["healthy"]


def test_json_has_everything(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_90")
    content = findings(workbench, site, gpus="9.0")
    assert content["chosen"] == str(path)
    assert content["devices"][0]["served"] == {
        "capability": "9.0",
        "target": "sm_90",
        "plugin": str(path),
        "native": True,
        "needs": "sm_90",
        "command": None,
        "containers": None,
        "restart": False,
    }
    assert content["candidates"][0]["targets"] == ["sm_90"]
    assert {"gpus": "H100, H200", "served": content["devices"][0]["served"]} in content["known"]


def test_damaged_core_is_told_in_both_forms(workbench: Workbench, site: Path) -> None:
    (site / "vecsort" / "_archsplit" / "core.json").unlink()
    done = doctor(workbench, site)
    assert done.returncode == 1
    assert "core.json: No such file or directory; install the core again" in done.stdout
    assert "No such file" in findings(workbench, site)["error"]


def test_wrong_argument_is_a_usage_error(workbench: Workbench, site: Path) -> None:
    done = doctor(workbench, site, "--xml")
    assert done.returncode == 2
    assert "usage: python -m vecsort.doctor [-h] [--json]" in done.stderr


def test_path_with_strange_bytes_is_printed(workbench: Workbench, tmp_path: Path) -> None:
    site = tmp_path / "s\udcff"
    workbench.core(site)
    workbench.plugin(site, "sm_90")
    content = findings(workbench, site, gpus="9.0")
    assert content["chosen"].endswith(f"s?/vecsort_plugins/cuda/sm_90/{LIBRARY}")


def test_explain_opens_nothing(workbench: Workbench, site: Path, tmp_path: Path) -> None:
    workbench.plugin(site, "sm_90")
    mark = tmp_path / "mark"
    code = "import vecsort; print(vecsort.explain().chosen is not None, vecsort.explain().healthy)"
    done = workbench.python(site, code, gpus="9.0", STUB_MARK=str(mark))
    assert done.stdout == "True True\n", done.stderr
    assert not mark.exists()


def test_control_characters_never_reach_the_terminal(workbench: Workbench, tmp_path: Path) -> None:
    site = tmp_path / "s\x1b[31m"
    workbench.core(site)
    workbench.plugin(site, "sm_80")
    done = doctor(workbench, site, gpus="9.0")
    assert "s\\x1b[31m/vecsort_plugins" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    failed = workbench.python(site, "import vecsort; vecsort.load()", gpus="9.0")
    assert "\x1b" not in failed.stderr.rpartition("Error: ")[2]
