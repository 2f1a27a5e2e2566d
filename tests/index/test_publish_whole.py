"""The whole path: a recipe, its wheels, a real index, and what users get from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from publish_runs import Command, pip, uv

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.cache.config import resolve_settings
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from publish_samples import Scene

TINYVEC = Path(__file__).parents[1] / "tinyvec"
USE = """
import tinyvec, sys
assert tinyvec.name('9.0') == 'tiny, vec'
try:
    tinyvec.name('8.0')
except Exception as error:
    sys.exit(0 if 'tinyvec[sm80]' in str(error) else 1)
"""


@pytest.mark.nvcc
def test_recipe_is_built_published_and_installed(
    scene: Scene, tmp_path: Path, environment: dict[str, str]
) -> None:
    recipe = Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))
    text = (recipe / "recipe.toml").read_text().replace('ptx = ["compute_90"]\n', "")
    (recipe / "recipe.toml").write_text(text + '\n[install]\nmode = "meta"\n')
    known = resolve_settings(environment, mode="on")
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2, cache=known)
    build_recipe(BuildRequest(recipe=load_recipe(recipe)), effects, out=tmp_path / "wheels")
    command = Command(scene=scene, home=tmp_path / "home")
    done = command.call(tmp_path / "wheels", "--json")
    assert done.code == 0, done.stderr
    published = json.loads(done.stdout)
    roles = [row["role"] for row in published["live"]]
    assert roles == ["plugin", "plugin", "core", "meta"]
    assert published["requirement"] == "tinyvec-all==1.2.3"
    for installer in (pip, uv):
        target = tmp_path / installer.__name__
        got = installer(scene.server.url, f"--target={target}", "tinyvec[sm90]")
        assert got.returncode == 0, (got.stderr, _page(scene, "tinyvec"))
        used = subprocess.run(
            [sys.executable, "-c", USE],
            env={"PYTHONPATH": str(target), "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert used.returncode == 0, used.stderr
    assert command.call(tmp_path / "wheels").code == 0
    assert len(scene.server.uploads()) == 4


@pytest.mark.download
def test_devpi_is_found_out_and_read_as_json(made: Path, tmp_path: Path) -> None:
    """An index that says by itself where it is read, and that speaks PEP 691."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv" / "bin"
    wanted = ("devpi-server>=6.15", "devpi-client>=7.2")
    subprocess.run([str(programs / "pip"), "install", "--quiet", *wanted], check=True)
    state = tmp_path / "devpi"
    subprocess.run(
        [str(programs / "devpi-init"), "--serverdir", str(state), "--no-root-pypi"],
        check=True,
        capture_output=True,
    )
    url = "http://127.0.0.1:14141"
    serve = (str(programs / "devpi-server"), "--serverdir", str(state), "--port", "14141")
    with (tmp_path / "devpi.log").open("w") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log)
    client = tmp_path / "client"

    def devpi(*words: str) -> int:
        command = [str(programs / "devpi"), *words, f"--clientdir={client}"]
        return subprocess.run(command, check=False, capture_output=True).returncode

    try:
        _until(lambda: devpi("use", url) == 0)
        assert devpi("user", "-c", "me", "password=let-me-in", "email=me@example.org") == 0
        assert devpi("login", "me", "--password=let-me-in") == 0
        assert devpi("index", "-c", "me/dev", "bases=") == 0
        home = tmp_path / "home"
        home.mkdir()
        (home / ".pypirc").write_text(
            "[distutils]\nindex-servers = dev\n"
            f"[dev]\nrepository = {url}/me/dev/\nusername = me\npassword = let-me-in\n"
        )
        for uploaded in (3, 0):
            done = _published(made, home)
            assert done["complete"]
            assert done["index"] == f"{url}/me/dev/+simple/"
            assert sum(row["uploaded_now"] for row in done["live"]) == uploaded
    finally:
        server.terminate()
        server.wait()


def _page(scene: Scene, project: str) -> str:
    with urllib.request.urlopen(f"{scene.server.url}simple/{project}/") as response:
        return str(response.read(), "utf-8")


def _published(dist: Path, home: Path) -> dict[str, Any]:
    code = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ("publish", str(dist), "--repository", "dev", "--json")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _until(works: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not works():
        assert time.monotonic() < end
        time.sleep(0.5)
