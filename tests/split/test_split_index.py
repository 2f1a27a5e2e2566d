"""Every way to install, by pip and by uv, from an index that a web server has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pip as pip_package
import pytest
from split_samples import LOAD, Sample, digest, hand_made, python, split

from archsplit.devicecode.partition import PackBy
from archsplit.split.model import InstallDefaults
from index_server import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.context import Effects

PACKS = {"toyfat-cc80", "toyfat-cc86", "toyfat-cc87", "toyfat-cc90", "toyfat-ptx"}
NEWER = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An environment, and what installs into it."""

    folder: Path
    installer: str
    url: str

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        uv = str(Path(sys.executable).with_name("uv"))
        # As `pip --python` does, but it would start twice.
        pip = (self.python, str(Path(pip_package.__file__).parent), verb)
        argv = pip if self.installer == "pip" else (uv, "pip", verb, "--python", self.python)
        own = {name: text for name, text in os.environ.items() if name[:4] not in {"PIP_", "UV_I"}}
        own |= {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "PIP_CONFIG_FILE": os.devnull}
        own |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
        return subprocess.run((*argv, *words), env=own, capture_output=True, text=True, check=False)

    def install(self, *words: str) -> None:
        done = self.run("install", "--index-url", self.url, *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def installed(self) -> set[str]:
        names = (path.name for path in self.packages().glob("toyfat*.dist-info"))
        return {name.removesuffix(".dist-info").replace("_", "-") for name in names}

    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found


@pytest.fixture(params=["pip", "uv"])
def site(request: pytest.FixtureRequest, tmp_path: Path, served: str) -> Site:
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return Site(folder=folder, installer=request.param, url=served)


@pytest.fixture(scope="module")
def releases(
    sample: Sample, tmp_path_factory: pytest.TempPathFactory, effects: Effects
) -> list[Path]:
    """Of the project: one with a wheel that requires all, and a newer one with packs by target."""
    folder = tmp_path_factory.mktemp("releases")
    newer = hand_made(tmp_path_factory.mktemp("newer"), NEWER)
    everything = hand_made(tmp_path_factory.mktemp("everything"), "1.2")
    return [
        split(sample.fat, folder / "old", effects, install=InstallDefaults.META),
        split(newer, folder / "new", effects, by=PackBy.TARGET),
        split(everything, folder / "all", effects, install=InstallDefaults.ALL),
    ]


@pytest.fixture(scope="module")
def served(releases: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A simple index (PEP 503): a folder of files for each project, as web servers list them."""
    wheels = (path for folder in releases for path in folder.glob("*.whl"))
    with serve(tmp_path_factory.mktemp("index"), *wheels) as url:
        yield url


def named(names: set[str], version: str) -> set[str]:
    return {f"{name}-{version}" for name in names}


MODES: tuple[tuple[str, str, set[str]], ...] = (
    ("toyfat==1.0", "1.0", set()),
    ("toyfat[cc89]==1.0", "1.0", {"toyfat-cc86"}),
    ("toyfat[cc80,cc90,more]==1.0", "1.0", {"toyfat-cc86", "toyfat-cc80", "toyfat-cc90"}),
    ("toyfat[all]==1.0", "1.0", PACKS),
    ("toyfat-all==1.0", "1.0", {"toyfat-all", *PACKS}),
)
SINGLE = (
    ("toyfat-cc90==1.0", "1.0", {"toyfat-cc90"}),
    (f"toyfat[cc86]=={NEWER}", NEWER, {"toyfat-sm80", "toyfat-sm86"}),
    ("toyfat", "1.2", PACKS),
)


@pytest.mark.parametrize(
    "site", [pytest.param("pip", marks=pytest.mark.stress), "uv"], indirect=True
)
def test_every_mode_installs_its_packs_and_cleans_up(site: Site) -> None:
    for wanted, version, packs in MODES:
        site.install(wanted)
        assert site.installed() == named({"toyfat", *packs}, version)
        checked = site.run("check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
    remove_all(site)
    for wanted, version, packs in SINGLE:
        site.install(wanted)
        assert site.installed() == named({"toyfat", *packs}, version)
        remove_all(site)


def remove_all(site: Site) -> None:
    """Uninstall all packages after a use, which left caches of bytecode."""
    code = "import toyfat, toyfat._archsplit as face; face.explain()"
    done = python(site.folder, "9.0", "-c", code, PYTHONPATH=str(site.packages()))
    assert done.returncode == 0, done.stderr
    yes = ("--yes",) if site.installer == "pip" else ()
    names = [each.rpartition("-")[0] for each in site.installed()]
    assert site.run("uninstall", *yes, *names, "packaging").returncode == 0
    left = {str(path.relative_to(site.packages())) for path in site.packages().rglob("*")}
    # pip leaves the folders that several projects have had, empty.
    assert left <= ({"toyfat_plugins", "toyfat_plugins/cuda"} if site.installer == "pip" else set())


def test_pack_older_than_its_core_is_refused_and_explained(site: Site, sample: Sample) -> None:
    site.install("toyfat[cc90]==1.0")
    site.install("--no-deps", f"toyfat=={NEWER}")
    assert site.installed() == {f"toyfat-{NEWER}", "toyfat-cc90-1.0"}
    checked = site.run("check")
    assert checked.returncode == 1
    assert "toyfat-cc90" in checked.stdout + checked.stderr
    library = site.packages() / "toyfat" / "lib" / "liba.so"
    done = python(sample.folder, "9.0", "-c", LOAD, str(library))
    assert done.returncode == 0, done.stderr
    assert "1.0" in done.stderr
    assert NEWER in done.stderr
    (libraries, mapped) = json.loads(done.stdout)
    assert mapped == []
    assert libraries["liba.so"][0] != digest(0, 0, "sm_90")
    doctor = python(sample.folder, "9.0", str(site.packages() / "toyfat" / "_archsplit"))
    assert doctor.returncode == 1
    assert f'pip install "toyfat[cc90]=={NEWER}"' in doctor.stdout
    site.install(f"toyfat[cc90]=={NEWER}")
    done = python(sample.folder, "9.0", "-c", LOAD, str(library))
    assert json.loads(done.stdout)[0]["liba.so"][0] == digest(0, 0, "sm_90")


def test_a_pack_can_not_be_asked_for_beside_another_core(site: Site) -> None:
    done = site.run("install", "--index-url", site.url, f"toyfat=={NEWER}", "toyfat-cc90==1.0")
    assert done.returncode != 0
    assert "toyfat" in done.stdout + done.stderr
    assert site.installed() == set()
