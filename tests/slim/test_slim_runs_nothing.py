"""No verb runs the code of a wheel; ``slim --try-load`` does, with nothing of the user's."""

from __future__ import annotations

import os
import subprocess
import venv
from typing import TYPE_CHECKING

import pytest
from slim_site_samples import Environment
from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main
from handmade_samples import THREE, Maker

if TYPE_CHECKING:
    from pathlib import Path

MARK = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <net/if.h>
__attribute__((constructor)) static void leave_a_mark(void) {
    FILE *mark = fopen("MARK", "a");
    const char *token = getenv("TWINE_PASSWORD"), *home = getenv("HOME");
    struct if_nameindex *names = if_nameindex();
    int count = 0;
    for (struct if_nameindex *one = names; one && one->if_index; one++) count++;
    fprintf(mark, "%s\\n%s\\n%d\\n", token ? token : "", home ? home : "", count);
    fclose(mark);
}
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def wheel(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel whose library leaves a mark where it is loaded."""
    monkeypatch.setenv("TWINE_PASSWORD", "secret")
    place = tmp_path / "marking"
    place.mkdir()
    maker = Maker(folder=place)
    (place / "mark.c").write_text(MARK.replace("MARK", str(mark)))
    maker.run("gcc", "-c", "-fPIC", "mark.c", "-o", "mark.o")
    library = Maker(folder=place, flags=("mark.o",)).library(THREE)
    return fat_wheel(tmp_path, library=library.read_bytes())


def test_no_verb_runs_the_code_of_a_wheel(wheel: Path, mark: Path, tmp_path: Path) -> None:
    library = tmp_path / "marking/libsample.so"
    out = tmp_path / "out"
    for words in (
        f"inspect {wheel} --device 9.0",
        f"inspect {library} --html {tmp_path / 'page.html'}",
        f"diff {wheel} {wheel}",
        f"diff --bytes {library} {library}",
        f"advise {wheel} --gpus 9.0",
        f"slim {wheel} --device 9.0 --dry-run",
        f"slim {wheel} --device 9.0 --out {out / 'slim'}",
        f"slim {library} --device 9.0 --out {out / 'slim'}",
        f"slim {wheel} --device 9.0 --unregistered zero --mode in-place --out {out / 'zero'}",
        f"split {wheel} --release --out {out / 'split'}",
        f"verify {out / 'split'}",
        f"verify {out / 'split'} --release --no-install",
        f"join {out / 'split'} --out {out / 'joined'}",
        f"gather {out / 'split'} --out {out / 'gathered'}",
        f"index {out / 'index'} --add {wheel}",
        f"index {out / 'index'} --check",
    ):
        assert main(words.split()) == 0, words
        assert not mark.exists(), words
    # The library does leave a mark once it is loaded.
    subprocess.run(["python3", "-c", f"import ctypes; ctypes.CDLL('{library}')"], check=True)
    assert mark.exists()


def test_slim_of_an_environment_runs_nothing(wheel: Path, mark: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    environment = Environment(root=tmp_path / "env")
    environment.install(wheel)
    assert main(["slim", "--site-packages", str(environment.site), "--device", "9.0"]) == 0
    assert not mark.exists()


def test_mirror_loads_no_library(
    wheel: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    requirements = tmp_path / "r.txt"
    requirements.write_text(f"--no-index\n--find-links {wheel.parent}\nfat\n")
    for out, words, part in (
        ("slim", "--device 9.0", "0slim.cc90"),
        ("split", "--split --device 8.0,9.0", "fat_cc90"),
    ):
        assert main(["mirror", str(requirements), *words.split(), "--out", out]) == 0
        assert any(part in path.name for path in (tmp_path / out).rglob("*.whl"))
        assert not mark.exists(), words


def test_a_trial_has_nothing_of_the_user(wheel: Path, mark: Path, tmp_path: Path) -> None:
    words = f"slim {wheel} --device 9.0 --try-load --out {tmp_path / 'out'}"
    assert main(words.split()) == 0
    token, home, interfaces = mark.read_text().splitlines()
    assert token == ""
    assert home != os.environ.get("HOME")
    assert ".archsplit-" in home
    unshare = ["unshare", "--map-current-user", "--net", "true"]
    if subprocess.run(unshare, capture_output=True, check=False).returncode == 0:
        # Only the loopback device.
        assert int(interfaces) <= 1
