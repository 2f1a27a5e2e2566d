"""Mirrors of a real small index: what pip and uv install from them, and what a second run does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from mirror_samples import (
    FAT,
    PLAIN,
    PLATFORM,
    PROPRIETARY,
    SLIM,
    VENDOR,
    ServedIndex,
    held,
    install,
    mirror,
    served,
    write_lock,
    write_wheel,
)

import handmade_samples as samples
from archsplit import api
from archsplit.cli.main import main
from archsplit.errors import ToolNotFoundError, UsageError
from archsplit.index.client import request_failure
from archsplit.system.file_lock import lock, unlock
from archsplit.system.installers import pip_command
from child_processes import running
from handmade_samples import held as container_targets

ARCHSPLIT = str(Path(sys.executable).with_name("archsplit"))
SITE = Path("site")


def state(folder: Path) -> Any:  # noqa: ANN401 (JSON)
    return json.loads((folder / "archsplit-mirror.json").read_text())


def wheel_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/*.whl")}


def device_code(library: Path) -> set[str]:
    return {target for names in container_targets(library) for target in names}


@dataclass(frozen=True)
class Maker:
    """Makes mirrors of locks: without pip, which takes a second to resolve."""

    index: ServedIndex
    wheels: Path

    def __call__(self, *arguments: str, files: tuple[str, ...] = (FAT, PLAIN)) -> int:
        lock = write_lock(Path("pylock.toml"), self.index, self.wheels, *files)
        return mirror(lock, "--device", "9.0", "--out", "out", *arguments)


@pytest.fixture
def make(index: ServedIndex, wheels: Path) -> Maker:
    return Maker(index, wheels)


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_take_the_slim_wheel_by_its_hash(
    index: ServedIndex, slimmed: Path, tool: str
) -> None:
    assert wheel_files(slimmed) == {SLIM, PLAIN}
    with served(slimmed) as out:
        lock = str(slimmed / "requirements.txt")
        install(tool, SITE, "--index-url", out.url, "--require-hashes", "-r", lock)
    assert held(SITE) == {"fat-1.2.3", "plain-2.0"}
    kept = {"sm_90", "sm_90a", "compute_80", "compute_90"}
    assert device_code(SITE / "fat/libfat.so") == kept


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_take_a_lock_with_paths(index: ServedIndex, slimmed: Path, tool: str) -> None:
    shutil.copytree(slimmed, "elsewhere")
    install(tool, SITE, "--no-index", "-r", "elsewhere/pylock.toml")
    assert held(SITE) == {"fat-1.2.3", "plain-2.0"}


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_take_a_lock_with_addresses(make: Maker, tool: str) -> None:
    Path("out").mkdir()
    with served(Path("out")) as out:
        assert make("--url", out.url, files=(PLAIN,)) == 0
        assert Path("out/requirements.txt").read_text().splitlines()[1] == f"--index-url {out.url}"
        install(tool, SITE, "-r", f"{out.url}pylock.toml")
    assert held(SITE) == {"plain-2.0"}


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_split_wheels_have_a_lock_for_each_gpu(index: ServedIndex, split: Path, tool: str) -> None:
    names = {path.name for path in split.glob("*.t*")}
    assert names == {
        f"{kind}.train-{gpu}.{suffix}"
        for kind, suffix in (("pylock", "toml"), ("requirements", "txt"))
        for gpu in ("cc80", "cc90")
    }
    install(tool, SITE, "--no-index", "-r", str(split / "pylock.train-cc90.toml"))
    assert held(SITE) == {"fat-1.2.3", "fat_cc90-1.2.3", "plain-2.0"}


def test_the_state_has_each_original_and_its_edit(
    index: ServedIndex, slimmed: Path, wheels: Path
) -> None:
    fat, plain = state(slimmed)["wheels"]
    digest = hashlib.sha256((wheels / FAT).read_bytes()).hexdigest()
    assert fat["original"]["sha256"] == digest
    assert fat["original"]["url"] == f"{index.url}fat/{FAT}"
    assert fat["edit"] == {
        "kind": "slim",
        "devices": ["9.0"],
        "ptx": "newest",
        "unregistered": "",
        "recompress": None,
    }
    (file,) = fat["files"]
    assert file["sha256"] == hashlib.sha256((slimmed / "fat" / SLIM).read_bytes()).hexdigest()
    assert plain["unchanged"]
    assert plain["files"][0]["sha256"] == plain["original"]["sha256"]


def test_a_second_run_downloads_and_edits_nothing(
    make: Maker, own: Path, index: ServedIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot()
    assert make() == 0
    assert index.downloads() == []
    assert "0 new" in capsys.readouterr().out
    assert {name for name, content in snapshot().items() if before.get(name) != content} == {
        # The name of the input is another one.
        "out/archsplit-mirror.json"
    }


def snapshot() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}


def test_a_second_run_edits_new_wheels_and_removes_others(
    make: Maker, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--json", files=(FAT, VENDOR)) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["new"] == [VENDOR]
    assert first["removed"] == [PLAIN]
    assert make("--json", files=(PLAIN,)) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [
        SLIM,
        VENDOR.replace("4.0-", "4.0-0slim.cc90-"),
    ]
    assert json.loads((own / "fat/index.json").read_text())["files"] == []
    # Readers of an older page have an hour.
    assert SLIM in wheel_files(own)


def test_two_locks_share_a_mirror(make: Maker, own: Path, split: Path) -> None:
    assert (
        make(
            "--lock-name",
            "two",
            files=(VENDOR,),
        )
        == 0
    )
    assert make("--lock-name", "two", files=(PLAIN,)) == 0
    assert [lock["name"] for lock in state(own)["locks"]] == ["", "two"]
    assert {wheel["name"] for wheel in state(own)["wheels"]} == {"fat", "plain"}


def test_a_lost_or_damaged_wheel_is_made_again(make: Maker, own: Path) -> None:
    lost = own / "fat" / SLIM
    content = lost.read_bytes()
    lost.unlink()
    assert make() == 0
    assert lost.read_bytes() == content
    lost.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert make() == 0
    assert lost.read_bytes() == content


def test_a_mirror_is_not_pruned(make: Maker, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = wheel_files(own)
    assert main(["index", "out", "--prune", "size=0B"]) == UsageError.exit_code
    assert "out is a mirror, and its locks need all of its wheels" in capsys.readouterr().err
    assert wheel_files(own) == before


def test_proprietary_wheels_are_edited_with_a_warning_or_kept(
    make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(files=(VENDOR,)) == 0
    messages = capsys.readouterr().err
    assert f"vendor ({PROPRIETARY})" in messages
    assert "Don't publish" in messages
    assert make("--proprietary", "keep", files=(VENDOR,)) == 0
    assert "forbids" not in capsys.readouterr().err
    page = json.loads(Path("out/vendor/index.json").read_text())
    assert [file["filename"] for file in page["files"]] == [VENDOR]


# A broken network, a full disk, a killed process


def test_wheel_is_mirrored_with_its_requirements(
    index: ServedIndex, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del index
    assert mirror(wheels / FAT, "--device", "9.0", "--out", "out") == 0
    lock = Path("out/requirements.txt").read_text()
    assert "fat==1.2.3" in lock
    assert "plain==" in lock
    lines = [line for line in capsys.readouterr().err.splitlines() if FAT in line]
    # The seconds count for the wheel: reading it takes some of them.
    assert any(re.search(r"\b\d+\.\d s\)", line) for line in lines)


def test_fault_of_pip_itself_is_reported_with_its_reason(
    index: ServedIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    del index
    Path("broken-1-py3-none-any.whl").write_bytes(b"not a zip file")
    assert mirror("broken-1-py3-none-any.whl", "--device", "9.0", "--out", "out") == 14
    assert "ERROR: " in capsys.readouterr().err


def test_missing_extra_is_found_before_anything_is_resolved(
    index: ServedIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.system.installers.find_spec", lambda _: None)
    Path("r.txt").write_text("toy\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == ToolNotFoundError.exit_code
    error = capsys.readouterr().err
    assert "requests is not installed" in error
    assert "pip install 'archsplit[mirror]'" in error
    assert index.requests == []


def test_unreachable_index_hints_at_offline() -> None:
    text = str(request_failure(requests.ConnectionError(), "https://host/"))
    assert text == "no connection: the server is down, or this machine is offline"


def test_a_broken_download_is_resumed(make: Maker, index: ServedIndex) -> None:
    index.breaks[PLAIN] = 150_000
    assert make(files=(PLAIN,)) == 0
    (whole, rest) = (wanted for _, wanted in index.downloads())
    assert whole == ""
    assert 0 < int(rest.removeprefix("bytes=").removesuffix("-")) <= 150_000


def test_a_killed_run_goes_on_in_the_middle_of_a_file(
    make: Maker, index: ServedIndex, wheels: Path
) -> None:
    downloads = Path("out/.downloads")
    downloads.mkdir(parents=True)
    (downloads / f"{PLAIN}.part").write_bytes((wheels / PLAIN).read_bytes()[:300])
    assert make(files=(PLAIN,)) == 0
    assert [wanted for _, wanted in index.downloads()] == ["bytes=300-"]
    assert not downloads.exists()


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_part_of_another_file_is_not_used(make: Maker, wheels: Path, size: int) -> None:
    downloads = Path("kept")
    downloads.mkdir()
    (downloads / f"{PLAIN}.part").write_bytes(b"x" * size)
    assert make("--downloads", "kept", files=(PLAIN,)) == 0
    assert [path.name for path in downloads.iterdir()] == [PLAIN]
    assert (downloads / PLAIN).read_bytes() == (wheels / PLAIN).read_bytes()


def test_a_kept_original_is_not_downloaded_again(
    make: Maker, index: ServedIndex, wheels: Path
) -> None:
    Path("kept").mkdir()
    shutil.copy(wheels / PLAIN, "kept")
    assert make("--downloads", "kept", files=(PLAIN,)) == 0
    assert index.downloads() == []


def test_a_wheel_with_another_digest_is_refused(
    make: Maker, wheels: Path, index: ServedIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = write_lock(Path("pylock.wrong.toml"), index, wheels, PLAIN)
    digest = hashlib.sha256((wheels / PLAIN).read_bytes()).hexdigest()
    lock.write_text(lock.read_text().replace(digest, "0" * 64))
    assert mirror(lock, "--device", "9.0", "--out", "out") == 9
    assert f"has the SHA-256 {digest}, expected {'0' * 64}" in capsys.readouterr().err
    assert wheel_files(Path("out")) == set()
    assert not Path("out/pylock.toml").exists()


def test_a_missing_file_is_named(
    make: Maker, index: ServedIndex, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = write_lock(Path("pylock.lost.toml"), index, wheels, PLAIN)
    lock.write_text(lock.read_text().replace("/plain/", "/lost/"))
    assert mirror(lock, "--device", "9.0", "--out", "out") == 21
    assert "404" in capsys.readouterr().err


def test_a_full_disk_leaves_a_sound_index(make: Maker, own: Path) -> None:
    # The limit of a file's size stands in for the end of a disk: the kernel refuses the write.
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000));"
        "from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    write_lock(Path("pylock.toml"), make.index, make.wheels, PLAIN, VENDOR)
    words = ("mirror", "pylock.toml", "--device", "9.0", "--out", "out")
    done = run(sys.executable, "-c", script, *words)
    assert done.returncode == 10, done.stderr
    assert f"{VENDOR}.part" in done.stderr
    assert main(["index", "out", "--check"]) == 0
    assert make(files=(PLAIN, VENDOR)) == 0


@pytest.mark.parametrize("name", [PLAIN, f"{PLAIN}.part"])
def test_download_of_a_killed_run_is_removed_by_the_next(
    make: Maker, wheels: Path, name: str
) -> None:
    assert make(files=(PLAIN,)) == 0
    # It was killed after the wheel was in the index.
    left = Path("out/.downloads", name)
    left.parent.mkdir()
    left.write_bytes((wheels / PLAIN).read_bytes())
    assert make(files=(PLAIN,)) == 0
    assert not left.parent.exists()


def test_interrupted_run_names_its_downloads(
    make: Maker, index: ServedIndex, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.breaks[PLAIN] = 150_000
    write_lock(Path("pylock.toml"), index, wheels, PLAIN)
    argv = [ARCHSPLIT, "mirror", "pylock.toml", "--device", "9.0", "--out", "out"]
    with running(argv, stderr=subprocess.PIPE) as process:
        monkeypatch.setattr(index, "at_break", lambda: process.send_signal(signal.SIGINT))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.endswith(
        "error: interrupted; finished wheels stay in out, and downloads in out/.downloads\n"
        "hint: run the same command again to continue\n"
    )
    assert os.listdir("out/.downloads")
    assert make(files=(PLAIN,)) == 0
    assert not Path("out/.downloads").exists()


def test_files_of_others_beside_the_downloads_stay(make: Maker) -> None:
    theirs = Path("out/.downloads")
    theirs.mkdir(parents=True)
    (theirs / "notes.txt").write_text("mine")
    (theirs / "other-1-py3-none-any.whl").write_text("mine too")
    assert make(files=(PLAIN,)) == 0
    assert {path.name for path in theirs.iterdir()} == {"notes.txt", "other-1-py3-none-any.whl"}


def test_a_killed_edit_is_done_again(make: Maker, own: Path) -> None:
    # As a kill leaves it: the wheel is in the index, and the state and the lock don't have it.
    before = (own / "archsplit-mirror.json").read_bytes()
    assert make(files=(PLAIN, VENDOR)) == 0
    (own / "archsplit-mirror.json").write_bytes(before)
    assert make(files=(PLAIN, VENDOR)) == 0
    assert main(["index", "out", "--check"]) == 0


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


# Inputs of all kinds, also bad ones


def test_the_lock_of_a_mirror_is_an_input(index: ServedIndex, slimmed: Path) -> None:
    assert mirror(slimmed / "pylock.toml", "--device", "9.0", "--out", "new") == 0
    fat, plain = state(Path("new"))["wheels"]
    assert fat["original"]["url"] == (slimmed / "fat" / SLIM).as_uri()
    assert plain["unchanged"]
    assert fat["unchanged"]


def test_a_uv_lock_is_an_input(index: ServedIndex) -> None:
    project = '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.10"\n'
    Path("pyproject.toml").write_text(
        f'{project}dependencies = ["plain"]\noptional-dependencies.gpu = ["fat"]\n'
    )
    uv = str(Path(sys.executable).with_name("uv"))
    done = run(uv, "lock", "--no-config", "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    assert mirror("uv.lock", "--device", "9.0", "--out", "out") == 0
    assert wheel_files(Path("out")) == {PLAIN}
    assert mirror("uv.lock", "--device", "9.0", "--extra", "gpu", "--out", "out") == 0
    assert wheel_files(Path("out")) == {PLAIN, SLIM}


def test_a_folder_of_wheels_is_an_index(index: ServedIndex, wheels: Path) -> None:
    Path("r.txt").write_text(f"--no-index\n--find-links {wheels}\nplain\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 0
    assert index.requests == []
    assert wheel_files(Path("out")) == {PLAIN}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing-of-that-name\n", "No matching distribution found for nothing-of-that-name"),
        ("fat\nplain<1\n", "No matching distribution found for plain<1"),
    ],
)
def test_an_unresolvable_input_is_refused_with_the_words_of_pip(
    index: ServedIndex, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.txt").write_text(text)
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 14
    error = capsys.readouterr().err
    assert words in error
    assert "every project needs a wheel for this Python" in error
    assert not Path("out").exists()


def test_a_source_tree_is_refused(index: ServedIndex, capsys: pytest.CaptureFixture[str]) -> None:
    Path("project").mkdir()
    Path("project/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    )
    Path("project/own.py").write_text(_BACKEND)
    Path("r.txt").write_text("./project\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 14
    assert "project: file:///" in capsys.readouterr().err


_BACKEND = """\
import os
def get_requires_for_build_wheel(config=None): return []
def prepare_metadata_for_build_wheel(folder, config=None):
    os.mkdir(f"{folder}/project-1.dist-info")
    with open(f"{folder}/project-1.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: project\\nVersion: 1\\n")
    return "project-1.dist-info"
def build_wheel(folder, config=None, metadata=None): raise SystemExit
"""


def test_project_with_only_sources_is_refused(
    index: ServedIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("links").mkdir()
    Path("links/sources-1.0.tar.gz").write_bytes(b"not read")
    Path("r.txt").write_text("--no-index\n--find-links links\nsources\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 14
    assert "build a missing one" in capsys.readouterr().err
    lock = '[[packages]]\nname = "sources"\nversion = "1.0"\n'
    source = f'sdist = {{ url = "{index.url}sources-1.0.tar.gz", hashes = {{ sha256 = "00" }} }}\n'
    head = 'lock-version = "1.0"\ncreated-by = "a test"\n'
    Path("pylock.toml").write_text(head + lock + source)
    assert mirror("pylock.toml", "--device", "9.0", "--out", "out") == 14
    assert "sources: sdist" in capsys.readouterr().err


def test_a_lock_for_another_platform_is_refused(
    index: ServedIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    file = FAT.replace("manylinux_2_17_x86_64", "win_amd64")
    wheel = f'{{ name = "{file}", url = "{index.url}{file}", hashes = {{ sha256 = "00" }} }}'
    Path("pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "a test"\n[[packages]]\nname = "fat"\n'
        f'version = "1.2.3"\nwheels = [{wheel}]\n'
    )
    assert mirror("pylock.toml", "--device", "9.0", "--out", "out") == 14
    assert "can't be resolved for this Python" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no toml [", 'lock-version = "9.0"\n', ""])
def test_a_damaged_lock_is_refused(
    index: ServedIndex, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pylock.toml").write_text(text)
    assert mirror("pylock.toml", "--device", "9.0", "--out", "out") == 14
    assert "pylock.toml can't be resolved" in capsys.readouterr().err


def test_two_inputs_with_different_wheels_are_refused(
    index: ServedIndex, wheels: Path, slimmed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = write_lock(Path("pylock.toml"), index, wheels, FAT)
    code = mirror(lock, slimmed / "pylock.toml", "--device", "9.0", "--out", "out")
    assert code == 22
    assert "two wheels of fat" in capsys.readouterr().err


def test_a_gpu_without_any_code_is_refused(
    index: ServedIndex, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = write_lock(Path("pylock.toml"), index, wheels, FAT)
    assert mirror(lock, "--device", "5.0", "--out", "out") == 5
    assert "no wheel has code for 5.0" in capsys.readouterr().err
    assert not Path("out/pylock.toml").exists()


def test_wheel_without_code_for_the_gpu_is_named(
    index: ServedIndex, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("more").absolute()
    shutil.copytree(wheels, folder)
    library = samples.Maker(folder=folder).library((samples.container(samples.image("sm_80")),))
    old = f"old-1-{PLATFORM}.whl"
    write_wheel(folder, old, {"old.so": library.read_bytes()})
    Path("r.txt").write_text(f"--no-index\n--find-links {folder}\nfat\nold\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 0
    assert index.requests == []
    assert wheel_files(Path("out")) == {PLAIN, SLIM, old}
    text = " ".join(capsys.readouterr().out.split())
    assert f"{old} stays as it is: it has no code for the GPU: " in text


def test_other_bytes_under_a_known_name_are_refused(
    make: Maker, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own / "archsplit-mirror.json"
    path.write_text(
        path.read_text().replace(state(own)["wheels"][0]["files"][0]["sha256"], "1" * 64)
    )
    (own / "fat" / SLIM).unlink()
    assert make() == 22
    assert "in another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.txt", "--out", "out"], "name the GPUs"),
        (["a", "--device", "9.0", "--url", "host:80", "--out", "o"], "doesn't begin with https://"),
        (["a", "--device", "9.0", "--split", "--keep-ptx", "all", "--out", "o"], "--keep-ptx"),
        (["a", "--device", "9.0", "--lock-name", "a.b", "--out", "o"], "name of a lock"),
        (["a", "--device", "9.0", "--split", "--unregistered", "keep", "--out", "o"], "in cores"),
    ],
)
def test_conflicting_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mirror(*arguments) == 2
    assert words in capsys.readouterr().err


def test_files_of_others_with_the_name_of_a_lock_are_not_overwritten(
    make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("requirements.txt").write_text("fat==1.2.3\n")
    assert mirror("requirements.txt", "--device", "9.0", "--out", ".") == 14
    assert "requirements.txt is not from a mirror" in capsys.readouterr().err
    assert Path("requirements.txt").read_text() == "fat==1.2.3\n"
    assert not Path("index.html").exists()
    Path("out").mkdir()
    shutil.copy("requirements.txt", "out/pylock.toml")
    assert make() == 14
    assert make("--lock-name", "other") == 0


def test_inputs_without_requirements_are_refused(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.txt").write_text('plain; python_version < "3"\n')
    assert mirror("r.txt", "--device", "9.0", "--out", own) == 14
    assert "no wheel to mirror: r.txt requires nothing" in capsys.readouterr().err
    assert wheel_files(own) == {SLIM, PLAIN}


def test_removed_locks_are_named(make: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    assert make("--split") == 0
    assert make() == 0
    assert "removed locks: pylock.cc90.toml, requirements.cc90.txt" in capsys.readouterr().out
    assert not Path("out/pylock.cc90.toml").exists()


def test_a_damaged_state_is_made_again_without_it(
    make: Maker, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "archsplit-mirror.json").write_text("{")
    assert make() == 14
    assert "hint: delete the file" in capsys.readouterr().err
    (own / "archsplit-mirror.json").unlink()
    assert make() == 0
    assert main(["index", str(own), "--check"]) == 0


def test_second_writer_reports_its_wait(
    make: Maker, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (own / ".archsplit.lock").open("w") as first:
        lock(first.fileno())
        release = threading.Timer(3, unlock, (first.fileno(),))
        release.start()
        assert make() == 0
        release.join()
    assert "waiting: another process writes to out" in capsys.readouterr().err


def test_uvs_pip_resolves_for_the_running_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("archsplit.system.installers.has_pip", lambda: False)
    assert f"--python={sys.executable}" in pip_command({"PATH": str(Path(sys.executable).parent)})


# Code that only a library finds, and recompression


def test_unregistered_code_is_kept_or_zeroed_as_for_slim(make: Maker, own: Path) -> None:
    assert make("--unregistered", "zero", "--lock-name", "zero") == 0
    edits = {wheel["edit"]["unregistered"] for wheel in state(own)["wheels"]}
    assert edits == {"", "zero"}
    assert SLIM.replace("cc90", "cc90.zero") in wheel_files(own)
    assert main(["index", str(own), "--check"]) == 0


@pytest.mark.parametrize("options", [(), ("--split",)])
def test_recompressed_wheels_are_another_edit(
    make: Maker, own: Path, options: tuple[str, ...]
) -> None:
    assert make("--recompress", "9", "--lock-name", "zstd", *options) == 0
    edits = {wheel["edit"]["recompress"] for wheel in state(own)["wheels"]}
    assert edits == {None, 9}
    assert options or SLIM.replace("cc90", "cc90.zstd") in wheel_files(own)
    assert main(["index", str(own), "--check"]) == 0


def test_the_api_makes_the_same_mirror(index: ServedIndex, wheels: Path, slimmed: Path) -> None:
    lock = write_lock(Path("pylock.toml"), index, wheels, FAT, PLAIN)
    report = api.mirror(lock, out="own", device="9.0")
    assert report.new == (FAT, PLAIN)
    assert wheel_files(Path("own")) == wheel_files(slimmed)
    assert Path("own/fat", SLIM).read_bytes() == (slimmed / "fat" / SLIM).read_bytes()
    with pytest.raises(UsageError, match="needs requirements"):
        api.mirror(out="own", device="9.0")


def test_a_missing_input_is_named(index: ServedIndex, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror("missing.txt", "--device", "9.0", "--out", "out") == 14
    assert "no such file or folder: missing.txt" in capsys.readouterr().err


def test_help_names_only_options_of_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: off)" in text
    assert "--site-packages" not in text
