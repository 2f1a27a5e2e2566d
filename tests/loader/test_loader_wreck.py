"""The doctor of a core that can't be asked, or can't even be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import LIBRARY, Workbench, run

from source_roots import SOURCE_PATH
from warm_programs import run_archsplit_apart

if TYPE_CHECKING:
    from pathlib import Path

LOADER_LIBRARY = "libarchsplit_loader.so"
MEND = 'pip install --force-reinstall --no-deps "vecsort==1.2.3"'
DOCTOR = ("-m", "vecsort.doctor")


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    """A core as pip installs it, and its plugin."""
    site = tmp_path / "site"
    workbench.core(site)
    workbench.plugin(site, "sm_90")
    info = site / "vecsort-1.2.3.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("vecsort/_archsplit/__init__.py,,\n")
    (site / "other-1.dist-info").mkdir()
    (site / "other-1.dist-info" / "RECORD").write_text("other/__init__.py,,\n")
    return site


def asked(
    workbench: Workbench, site: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return run(
        [sys.executable, *words],
        {"PYTHONPATH": str(site), **workbench.environment("9.0", **more)},
    )


def face(site: Path) -> Path:
    return site / "vecsort" / "_archsplit"


def by_tool(workbench: Workbench, site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = workbench.environment("9.0", PYTHONPATH=f"{site}:{SOURCE_PATH}")
    return run_archsplit_apart("doctor", *words, env=environment)


DAMAGE = {
    "core.json is gone": ("core.json", None, "core.json: No such file or directory"),
    "core.json is cut off": ("core.json", 40, "core.json is damaged"),
    "core.json is empty": ("core.json", 0, "core.json is damaged"),
    "the loader is gone": (LOADER_LIBRARY, None, "can't open the loader: "),
    "the loader is empty": (LOADER_LIBRARY, 0, f"{LOADER_LIBRARY} is not a library"),
    "the loader is cut off": (LOADER_LIBRARY, 9000, "is truncated: it has 9000 bytes"),
    "the loader has no end": (LOADER_LIBRARY, -4000, "is truncated: it has "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_core_gets_a_report_and_a_command(
    workbench: Workbench, site: Path, damage: str
) -> None:
    name, kept, words = DAMAGE[damage]
    path = face(site) / name
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:kept])
    plugin = str(site / "vecsort_plugins" / "cuda" / "sm_90" / LIBRARY)
    for how in (DOCTOR, (str(face(site)),)):
        done = asked(workbench, site, *how, "--json")
        found = json.loads(done.stdout)
        assert words in found.pop("error")
        assert found == {"schema": 1, "healthy": False, "command": MEND, "files": [plugin]}
        assert (done.returncode, done.stderr) == (1, "")
    text = asked(workbench, site, *DOCTOR).stdout
    assert text.startswith("core: damaged: ")
    assert text.endswith(f"  {plugin}\nto fix it: {MEND}\n")


def test_other_library_in_the_loaders_place_is_told(workbench: Workbench, site: Path) -> None:
    workbench.stub(face(site) / LOADER_LIBRARY)
    done = asked(workbench, site, *DOCTOR)
    assert "can't open the loader: " in done.stdout
    assert "undefined symbol: archsplit_loader_create" in done.stdout
    assert f"to fix it: {MEND}" in done.stdout


def test_core_unknown_to_pip_gets_no_command(workbench: Workbench, site: Path) -> None:
    shutil.rmtree(site / "vecsort-1.2.3.dist-info")
    (face(site) / "core.json").unlink()
    assert json.loads(asked(workbench, site, *DOCTOR, "--json").stdout)["command"] is None
    assert "to fix it" not in asked(workbench, site, *DOCTOR).stdout


@pytest.mark.parametrize(
    "content", ["raise ImportError", "def", "import nothing_like_that", "1 / 0"]
)
def test_unimportable_core_is_still_examined(
    workbench: Workbench, site: Path, content: str
) -> None:
    (site / "vecsort" / "__init__.py").write_text(content)
    for done in (
        asked(workbench, site, str(face(site)), "--json"),
        by_tool(workbench, site, "vecsort", "--json"),
        by_tool(workbench, site, str(site / "vecsort"), "--json"),
    ):
        assert json.loads(done.stdout)["devices"][0]["served"]["target"] == "sm_90", done.stderr
        assert done.returncode == 0


@pytest.mark.parametrize("name", ["_explain.py", "_core.py", "doctor.py", "__init__.py"])
@pytest.mark.parametrize("content", [None, "def", "raise OSError(5, 'Input/output error')"])
def test_damaged_loader_module_is_reported_on_one_line(
    workbench: Workbench, site: Path, name: str, content: str | None
) -> None:
    path = face(site) / name
    path.unlink() if content is None else path.write_text(content)
    done = asked(workbench, site, str(face(site)))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{face(site)} is damaged (")
    assert done.stderr.endswith("); install the core again\n")
    assert done.stderr.count("\n") == 1


def test_tool_finds_a_core_without_an_identity(workbench: Workbench, site: Path) -> None:
    (face(site) / "core.json").unlink()
    done = by_tool(workbench, site, "vecsort")
    assert f"to fix it: {MEND}" in done.stdout
    assert done.returncode == 1
    nothing = by_tool(workbench, site, "json")
    assert "json is not a core" in nothing.stderr
    assert (
        "nothing_like_that is not installed" in by_tool(workbench, site, "nothing_like_that").stderr
    )


def test_unreadable_folder_is_told(workbench: Workbench, site: Path) -> None:
    plugins = site / "vecsort_plugins" / "cuda"
    shutil.rmtree(plugins)
    plugins.symlink_to("cuda")  # root may list every folder but this
    done = asked(workbench, site, *DOCTOR)
    assert f"  unreadable: {plugins}\n    it can't be listed: " in done.stdout
    assert f"to fix it: chmod -R a+rX {plugins.parent}\n" in done.stdout.replace(" \\\n     ", "")
    assert done.returncode == 1


def test_ascii_terminal_gets_escaped_output(workbench: Workbench, tmp_path: Path) -> None:
    site = tmp_path / "сайт"
    workbench.core(site)
    workbench.plugin(site, "sm_90")
    for encoding in ("ascii", "latin-1", "utf-8"):
        done = asked(workbench, site, *DOCTOR, PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr
        assert "verdict: 1 of 1 device served" in done.stdout


def test_closed_pipe_gets_no_traceback(workbench: Workbench, site: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    done = subprocess.run(
        ["sh", "-c", f"('{sys.executable}' -m vecsort.doctor) | true"],
        env={**environment, **workbench.environment("9.0")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "BrokenPipe" not in done.stderr


@pytest.fixture
def split(workbench: Workbench, tmp_path: Path) -> SplitSite:
    split = split_site(workbench, tmp_path / "split")
    split.add("cc90", "sm_90")
    return split


def examined(workbench: Workbench, split: SplitSite, gpus: str = "9.0") -> dict[str, Any]:
    environment = workbench.environment(gpus)
    done = run([sys.executable, str(split.face), "--json"], environment)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["healthy"] is (done.returncode == 0)
    return found


def test_split_core_with_a_damaged_table_is_told(workbench: Workbench, split: SplitSite) -> None:
    path = split.face / "core.pack"
    content = path.read_bytes()
    for damage in (content[:-1], content[:50], b"", content[:100] + b"\xff" + content[101:]):
        path.write_bytes(damage)
        assert "core.pack); install the core again" in examined(workbench, split)["error"]
    path.unlink()
    assert "No such file" in examined(workbench, split)["error"]


@pytest.mark.parametrize("cut", [0, 70, 500, -1])
def test_split_core_with_a_damaged_pack_gets_the_command(
    workbench: Workbench, split: SplitSite, cut: int
) -> None:
    path = split.path("cc90")
    path.write_bytes(path.read_bytes()[:cut])
    found = examined(workbench, split)
    assert found["candidates"][0]["verdict"] == "truncated"
    served = found["devices"][0]["served"]
    assert served["command"] == 'pip install --force-reinstall --no-deps "toy-cc90==1.2.3"'


def test_mixed_machine_is_told_device_by_device(workbench: Workbench, split: SplitSite) -> None:
    found = examined(workbench, split, "9.0;8.0;12.0")
    told = {each["served"]["capability"]: each["served"] for each in found["devices"]}
    assert told["9.0"]["native"]
    assert told["8.0"]["command"] == 'pip install "toy[cc80]==1.2.3"'
    assert told["12.0"]["command"] == 'pip install "toy[ptx]==1.2.3"'
    assert not found["healthy"]
