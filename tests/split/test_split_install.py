"""``python -m <package>.doctor --install``: packs for the GPUs at hand, by pip and by uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pip as pip_package
import pytest
from split_samples import Sample, environment, hand_made, split

from archsplit.errors import IndexUnreachableError, InputError, TargetError
from archsplit.release.verify import verify_release
from archsplit.system import nvidia
from archsplit.system.units import short_size
from in_process import run_archsplit
from index_server import pypiserver, serve, write_required
from target_lists import parse_targets
from warm_programs import run_pip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.context import Effects

NEWER = "1.1"
DOCTOR = "from toyfat.doctor import main; main([])"
ARCHSPLIT = (
    sys.executable,
    "-c",
    "from archsplit.cli.main import entry_point; entry_point()",
)
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An environment that pip or uv made, and the GPUs of its machine."""

    folder: Path
    installer: str
    scratch: Path
    index: str

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def environment(self, gpus: str | None = None) -> dict[str, str]:
        own = {"HOME": str(self.scratch), "PIP_INDEX_URL": self.index, "UV_INDEX_URL": self.index}
        own |= {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "PIP_NO_COMPILE": "1"}
        found = {**environment(self.scratch, gpus), **own}
        return {**found, "PATH": f"{UV.parent}{os.pathsep}{found['PATH']}"}

    def run(
        self, *words: str, gpus: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        child = {**self.environment(gpus), **more}
        return subprocess.run(words, env=child, capture_output=True, text=True, check=False)

    def archsplit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_archsplit(*words, environment=self.environment(), inherits=False)

    def install(self, *words: str) -> None:
        if self.installer == "pip":
            pip = ("--python", self.python, "install", "-q", *words)
            done = run_pip(pip, self.environment())
        else:
            done = self.run(str(UV), "pip", "install", "-q", "--python", self.python, *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def doctor(self, *words: str, gpus: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "toyfat.doctor", *words, gpus=gpus)

    def installed(self) -> set[str]:
        names = (path.name for path in self.packages.glob("toyfat*.dist-info"))
        return {name.removesuffix(".dist-info").replace("_", "-") for name in names}


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Path:
    folder = tmp_path_factory.mktemp("newer")
    return split(hand_made(folder, NEWER), folder / "out", effects)


@pytest.fixture(scope="module")
def index(sample: Sample, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with two releases."""
    folder = tmp_path_factory.mktemp("index")
    with serve(folder, *sample.out.glob("*.whl"), *newer.glob("*.whl")) as url:
        yield url


@pytest.fixture(scope="module")
def fat_index(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with only the fat wheel."""
    with serve(tmp_path_factory.mktemp("fat"), sample.fat) as url:
        yield url


@pytest.fixture(params=["pip", "uv"])
def place(request: pytest.FixtureRequest, tmp_path: Path, index: str) -> Place:
    return empty(tmp_path, request.param, index)


def empty(folder: Path, installer: str, index: str) -> Place:
    place = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    found = Place(folder=place, installer=installer, scratch=folder, index=index)
    if installer == "pip":
        (folder / "pip").mkdir()
        (folder / "pip" / "pip").symlink_to(Path(pip_package.__file__).parent)
        (found.packages / "pip.pth").write_text(str(folder / "pip"))
    return found


def test_the_packs_of_the_gpus_come_from_the_index(place: Place) -> None:
    place.install("toyfat==1.0")
    dry = place.doctor("--install", "--dry-run", gpus="9.0;9.0")
    assert dry.returncode == 0, dry.stderr
    assert "Stand-in GPU 0, capability 9.0: cc90 (missing)" in dry.stdout
    assert "would run: " in dry.stdout
    assert "toyfat-cc90==1.0" in dry.stdout
    assert place.installed() == {"toyfat-1.0"}
    done = place.doctor("--install", gpus="9.0;8.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.installed() == {"toyfat-1.0", "toyfat-cc90-1.0", "toyfat-cc80-1.0"}
    again = place.doctor("--install", gpus="9.0")
    assert again.returncode == 0
    assert "there is nothing to install" in again.stdout
    # An update of only the core: uv says nothing, and pip ends with 0.
    place.install("--no-deps", "-U", "toyfat")
    assert f"toyfat-{NEWER}" in place.installed()
    assert place.doctor(gpus="9.0").returncode == 1
    mended = place.doctor("--install", gpus="9.0")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "cc90 (wrong-version)" in mended.stdout
    assert place.installed() == {f"toyfat{one}-{NEWER}" for one in ("", "-cc90", "-cc80")}
    assert place.doctor(gpus="9.0").returncode == 0
    # A damaged pack is installed already, for any installer.
    pack = place.packages / "toyfat_plugins" / "cuda" / "cc90" / "device.pack"
    pack.write_bytes(pack.read_bytes()[:-100])
    mended = place.doctor("--install", gpus="9.0")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "cc90 (truncated)" in mended.stdout


def test_folder_of_pip_keeps_the_hook_of_the_core_when_a_second_pack_comes(
    sample: Sample, tmp_path: Path, index: str
) -> None:
    place, target = empty(tmp_path, "pip", index), tmp_path / "target"
    place.install("--no-deps", "--target", str(target), "toyfat==1.0", "toyfat-cc90==1.0")
    core = {path for path in target.rglob("*") if "toyfat_plugins" not in path.parts}
    # Without --upgrade pip leaves the plugins' folder as it is, with only a warning.
    place.install("--no-deps", "--target", str(target), "toyfat-cc80==1.0")
    packs = target / "toyfat_plugins" / "cuda"
    assert sorted(path.name for path in packs.iterdir()) == ["cc90"]
    words = ("--no-deps", "--upgrade", "--target", str(target))
    place.install(*words, "toyfat-cc80==1.0", "toyfat-cc90==1.0")
    assert sorted(path.name for path in packs.iterdir()) == ["cc80", "cc90"]
    assert {path for path in core if not path.exists()} == set()
    assert (target / "toyfat_pyinstaller" / "hook-toyfat.py").is_file()


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize(("dropped", "kept"), [((), NEWER), (("cc90",), "1.0")])
def test_update_without_a_dropped_pack_keeps_core_and_pack(
    installer: str,
    dropped: tuple[str, ...],
    kept: str,
    sample: Sample,
    tmp_path: Path,
    effects: Effects,
) -> None:
    fat, targets = hand_made(tmp_path, NEWER), parse_targets("sm_80")
    newer = split(fat, tmp_path / "newer", effects, targets=targets, dropped=dropped)
    verify_release(newer)
    with serve(tmp_path / "index", *sample.out.glob("*.whl"), *newer.glob("*.whl")) as url:
        place = empty(tmp_path, installer, url)
        place.install("toyfat[cc90]==1.0")
        assert place.installed() == {"toyfat-1.0", "toyfat-cc90-1.0"}
        place.install("-U", "toyfat[cc90]")
        assert place.installed() == {f"toyfat-{kept}", "toyfat-cc90-1.0"}
        check = (str(UV), "pip", "check", "--python", place.python)
        pip_check = (place.python, "-m", "pip", "check")
        done = place.run(*(pip_check if installer == "pip" else check))
        assert (done.returncode == 0) is bool(dropped), done.stdout + done.stderr


def test_a_privately_split_wheel_is_served_from_its_folder(
    sample: Sample, tmp_path: Path, fat_index: str
) -> None:
    for installer in ("pip", "uv"):
        (tmp_path / installer).mkdir()
        place = empty(tmp_path / installer, installer, fat_index)
        wheels = shutil.copytree(sample.out, tmp_path / installer / "my wheels")
        place.install("--no-deps", str(next(wheels.glob("toyfat-1.0-*.whl"))))
        result = place.doctor(gpus="9.0")
        assert result.returncode == 1
        words = "pip install" if installer == "pip" else "uv pip install"
        source = f"--no-index --find-links '{wheels}'"
        # A command that is longer than 80 columns continues on the next line, as in a shell.
        shown = " ".join(result.stdout.replace("\\\n", " ").split())
        assert f'to fix it: {words} {source} "toyfat[cc90]==1.0"' in shown
        assert "python -m toyfat.doctor --install installs what is missing" in shown
        done = place.doctor("--install", "--gpu", "H100")
        assert done.returncode == 0, done.stdout + done.stderr
        assert place.installed() == {"toyfat-1.0", "toyfat-cc90-1.0"}
        for each in wheels.glob("toyfat_cc80*"):
            each.unlink()
        # The index is not asked: that name may have another owner there.
        done = place.doctor("--install", "--gpu", "sm_80")
        assert done.returncode == 1
        assert f"error: toyfat was installed from {wheels}, where no wheel of" in done.stderr
        done = place.doctor("--install", "--gpu", "80", "--find-links", str(sample.out))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "toyfat-cc80-1.0" in place.installed()
        # That folder is on record now; the core's own comes first.
        for name, taken in (
            ("cc80", f"--find-links {sample.out} toyfat-cc80==1.0"),
            ("cc90", f"{wheels}/toyfat_cc90-1.0"),
        ):
            pack = place.packages / "toyfat_plugins" / "cuda" / name / "device.pack"
            pack.write_bytes(b"")
            done = place.doctor("--install", "--gpu", name)
            assert done.returncode == 0, done.stdout + done.stderr
            assert taken in " ".join(done.stdout.replace("\\\n", " ").split())


def test_the_index_of_an_earlier_command_is_remembered(place: Place, fat_index: str) -> None:
    index = place.index.replace("://", "://user:secret@")
    # The configured index has no plugins: installers record nothing of the option.
    elsewhere = replace(place, index=fat_index)
    elsewhere.install("--no-deps", "--index-url", index, "toyfat==1.0")
    assert elsewhere.doctor("--install", gpus="9.0").returncode == 1
    done = elsewhere.doctor("--install", "--index-url", index, gpus="9.0")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = place.packages.glob("toyfat_cc90-1.0.dist-info/archsplit_source.json")
    assert "secret" not in record.read_text() + done.stdout
    elsewhere.install("--no-deps", "-U", "--index-url", place.index, "toyfat")
    assert f" --index-url {place.index} " in elsewhere.doctor(gpus="9.0").stdout
    done = elsewhere.doctor("--install", gpus="9.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.installed() == {f"toyfat{one}-{NEWER}" for one in ("", "-cc90")}
    # The record went with the old plugin, and came with the new one.
    assert not record.parent.exists()
    assert place.packages.joinpath(f"toyfat_cc90-{NEWER}.dist-info", record.name).is_file()
    pip = (place.python, "-m", "pip", "uninstall", "-q", "-y")
    uv = (str(UV), "pip", "uninstall", "-q", "--python", place.python)
    done = place.run(*(pip if place.installer == "pip" else uv), "toyfat-cc90")
    assert done.returncode == 0, done.stderr
    assert not list(place.packages.glob("toyfat_cc90*"))


@pytest.mark.parametrize(
    "place", ["pip", pytest.param("uv", marks=pytest.mark.stress)], indirect=True
)
def test_doctor_install_without_a_known_gpu_is_an_error(place: Place) -> None:
    place.install("toyfat==1.0")
    none = place.doctor("--install")
    assert none.returncode == 1
    assert "hint: name the GPUs, such as --gpu 9.0" in none.stderr
    wrong = place.doctor("--install", "--gpu", "Voodoo 2")
    assert wrong.returncode == 1
    assert "unknown GPU 'Voodoo 2'" in wrong.stderr
    typed = place.doctor("--install", "--gpu", "99.9")
    assert (typed.returncode, typed.stdout) == (1, "")
    assert "error: no GPU has the compute capability 99.9\nhint: the published" in typed.stderr
    mistake = place.run(
        place.python, "-m", "toyfat.doctor", "--install", ARCHSPLIT_CAPABILITY="99.9"
    )
    assert (mistake.returncode, mistake.stdout, mistake.stderr) == (1, "", typed.stderr)
    old = place.doctor("--install", "--gpu", "5.2")
    assert old.returncode == 1
    assert "toyfat 1.0 has no plugin for capability 5.2" in old.stdout
    assert place.doctor("--dry-run").returncode == 2
    gone = place.doctor("--install", "--gpu", "9.0", "--index-url", "http://127.0.0.1:1/simple")
    assert gone.returncode == 1
    assert "hint: if the wheels are elsewhere" in gone.stderr


def test_plugin_folder_outside_an_environment_is_served_and_filled(
    place: Place, sample: Sample
) -> None:
    folder = place.scratch / "folder"
    place.install("toyfat==1.0")
    place.install("--target", str(folder), "--no-deps", "toyfat-cc90==1.0")
    result = place.run(
        *(place.python, "-c", f"import sys; sys.path.append({str(folder)!r});" + DOCTOR), gpus="9.0"
    )
    # A pack in any folder of sys.path serves the core.
    assert f"{folder}/toyfat_plugins/cuda/cc90/device.pack" in result.stdout
    assert "verdict: 1 of 1 device served" in result.stdout
    shutil.rmtree(folder)
    place.install("--target", str(folder), "--no-deps", "toyfat==1.0")
    for gpu in ("9.0", "8.0"):
        done = place.run(
            place.python, str(folder / "toyfat" / "_archsplit"), "--install", "--gpu", gpu
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (folder / "toyfat_plugins" / "cuda").iterdir()} == {
        "cc80",
        "cc90",
    }


def archsplit(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return place.archsplit("install", "--python", place.python, *words)


@pytest.mark.parametrize(
    "place", ["pip", pytest.param("uv", marks=pytest.mark.stress)], indirect=True
)
def test_a_folder_is_installed_by_its_core(place: Place, sample: Sample, fat_index: str) -> None:
    own = replace(place, index=fat_index)
    dry = archsplit(own, str(sample.out), "--gpu", "H100", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would run: " in dry.stdout
    assert '"toyfat[cc90]==1.0"  cc90\n' in dry.stdout
    assert own.installed() == set()
    none = archsplit(own, str(sample.out), "--gpu", "3.5")
    assert none.returncode == InputError.exit_code
    assert "toyfat 1.0 has no plugin for a GPU of capability 3.5" in none.stderr
    assert own.installed() == set()
    done = archsplit(own, str(sample.out), "--gpu", "H100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert own.installed() == {"toyfat-1.0", "toyfat-cc90-1.0"}
    # The fat wheel of the same version takes the core's place.
    own.install("--no-deps", "--no-index", again(own), str(sample.fat))
    # This process finds a folder of that name beside the tests.
    result = own.run(*ARCHSPLIT, "doctor", "toyfat")
    assert result.returncode == InputError.exit_code
    assert "toyfat is not installed" in result.stderr, "it is in another environment"
    result = archsplit(own, "toyfat")
    assert result.returncode == InputError.exit_code
    assert "toyfat 1.0 is a fat wheel; archsplit install needs a core" in result.stderr
    assert "hint: install it with pip or uv, then: archsplit slim --site-packages" in result.stderr
    done = archsplit(own, str(sample.out), "--gpu", "H100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "toyfat 1.0 is installed as a fat wheel; its core replaces it" in done.stdout
    assert own.doctor().returncode == 0


def test_core_of_a_folder_is_preferred_to_a_newer_fat_wheel(
    place: Place, sample: Sample, newer: Path, tmp_path: Path
) -> None:
    with serve(tmp_path / "index", hand_made(tmp_path, NEWER)) as url:
        own = replace(place, index=url)
        done = archsplit(own, "toyfat", "--find-links", str(sample.out), "--gpu", "9.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert own.installed() == {"toyfat-1.0", "toyfat-cc90-1.0"}
    update = archsplit(own, str(newer), "--gpu", "9.0", "--dry-run")
    # The installed core's doctor would speak of its own version.
    assert "nothing to install" not in update.stdout
    assert f'"toyfat[cc90]=={NEWER}"' in update.stdout


@pytest.mark.parametrize("value", ["99.9", "banana"])
def test_wrong_capability_is_refused_before_anything_is_installed(place: Place, value: str) -> None:
    words = ("install", "--python", place.python, "toyfat", "--index-url", place.index)
    done = place.run("env", f"ARCHSPLIT_CAPABILITY={value}", *ARCHSPLIT, *words)
    assert done.returncode == TargetError.exit_code, done.stdout + done.stderr
    assert value in done.stderr
    assert place.installed() == set()


def test_machine_without_a_gpu_gets_no_core(
    place: Place, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "_lines_of", lambda *_: ())
    monkeypatch.setattr(nvidia, "_read_models", lambda _: ())
    named = archsplit(place, str(sample.out), "--gpu", "native")
    done = archsplit(place, str(sample.out))
    assert done.returncode == named.returncode == TargetError.exit_code, done.stdout + done.stderr
    assert done.stderr == named.stderr
    assert "no NVIDIA GPU was found on this machine\nhint: name the GPU, such as" in done.stderr
    assert place.installed() == set()
    place.install("toyfat==1.0")
    for words in ((), ("--dry-run",)):
        done = archsplit(place, "toyfat", *words)
        assert (done.returncode, done.stderr) == (TargetError.exit_code, named.stderr)
    stands_in = place.run(
        *("env", "ARCHSPLIT_CAPABILITY=9.0"),
        *(*ARCHSPLIT, "install", "--python", place.python, "toyfat", "--dry-run"),
    )
    assert stands_in.returncode == 0, stands_in.stdout + stands_in.stderr


def test_dry_run_has_a_table_of_gpus_with_packs_and_sizes(sample: Sample, place: Place) -> None:
    core, pack = sample.wheel(), next(sample.out.glob("toyfat_cc86-*.whl"))
    total = short_size(core.stat().st_size + pack.stat().st_size)
    row = ["8.6,", "8.9", *total.split(), '"toyfat[cc86]==1.0"', "cc86"]
    folder = archsplit(place, str(sample.out), "--dry-run")
    assert row in [line.split() for line in folder.stdout.splitlines()]
    # The files of this index have no sizes on their page.
    index = archsplit(place, "toyfat==1.0", "--dry-run", "--gpu", "8.9")
    assert ["8.9", "unknown", '"toyfat[cc89]==1.0"', "cc86"] in [
        line.split() for line in index.stdout.splitlines()
    ]
    assert max(map(len, index.stdout.splitlines())) <= 80 + len(place.python)
    assert place.installed() == set()


def test_unreachable_index_is_reported_as_down_or_offline(place: Place) -> None:
    done = archsplit(place, "toyfat", "--gpu", "9.0", "--index-url", "http://127.0.0.1:1/simple/")
    assert done.returncode == IndexUnreachableError.exit_code
    assert "can't reach an index for toyfat: the server is down, or this machine is offline" in (
        done.stderr
    )
    assert "running: " not in done.stdout


def again(place: Place) -> str:
    return "--force-reinstall" if place.installer == "pip" else "--reinstall"


def test_a_name_is_installed_from_an_index(
    place: Place, sample: Sample, newer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for wheel in (*sample.out.glob("*.whl"), *newer.glob("*.whl")):
        shutil.copy(wheel, folder)
    write_required(folder / "packaging")
    for wheel in (folder / "packaging").iterdir():
        shutil.move(wheel, folder)
    with pypiserver(folder) as port:
        index = ("--index-url", f"http://127.0.0.1:{port}/simple/")
        done = archsplit(place, "toyfat", "--gpu", "9.0,8.0", *index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.installed() == {f"toyfat{one}-{NEWER}" for one in ("", "-cc90", "-cc80")}


def test_uv_beside_archsplit_installs_the_packs(tmp_path: Path, index: str) -> None:
    place = empty(tmp_path, "uv", index)
    words = ("install", "--python", place.python, "toyfat", "--gpu", "9.0", "--index-url", index)
    done = place.run("env", f"PATH={os.defpath}", *ARCHSPLIT, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.installed() == {f"toyfat-{NEWER}", f"toyfat-cc90-{NEWER}"}


def test_an_address_is_installed(place: Place, sample: Sample) -> None:
    url = f"{place.index}toyfat/{sample.wheel().name}"
    done = archsplit(place, url, "--gpu", "9.0", "--index-url", place.index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.installed() == {"toyfat-1.0", "toyfat-cc90-1.0"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "missing: NAME|DIR|URL"),
        (("http://127.0.0.1:1/simple/",), 2, "for an index, archsplit install NAME"),
        (("no such/thing",), 2, "is neither a project name nor an existing folder or wheel"),
        ((".",), 14, "has no wheel of a core for Python"),
    ],
)
def test_impossible_installation_is_an_error(
    words: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    active = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": sys.prefix}
    done = run_archsplit("install", *words, cwd=tmp_path, environment=active, inherits=False)
    assert done.returncode == code, done.stderr
    assert message in done.stderr


def test_own_environment_of_the_tool_is_left_unless_it_is_named(tmp_path: Path) -> None:
    path = {"PATH": os.environ["PATH"]}
    done = run_archsplit("install", "packaging", cwd=tmp_path, environment=path, inherits=False)
    assert done.returncode == 2
    assert "no environment is active, and " in done.stderr
    assert "hint: activate one, or name its Python: --python .venv/bin/python" in done.stderr
