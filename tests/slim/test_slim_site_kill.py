"""Whatever kills slimming, undoing or committing: the environment can be put back, or finished."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slim_site_samples import LIBRARY, Environment, contents, made, snapshot

from archsplit.cli.main import main

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return made(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize(
    "words",
    [
        ("6",),
        ("6", "linkless"),
        pytest.param(("1",), marks=pytest.mark.stress),
        pytest.param(("1", "linkless"), marks=pytest.mark.stress),
    ],
)
def test_verb_killed_before_any_change_to_the_disk_loses_nothing(
    words: tuple[str, ...], environment: Environment, tmp_path: Path
) -> None:
    argv = [sys.executable, str(HERE / "slim_killed.py"), str(environment.site), str(tmp_path)]
    done = subprocess.run([*argv, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout)
    assert places["slimming"] > 60
    assert places["undoing"] > 10
    assert places["committing"] > 5


def archsplit(site: Path, *options: str) -> list[str]:
    program = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", program, "slim", "--site-packages", str(site), *options]


def test_command_killed_at_any_time_can_be_undone(environment: Environment, tmp_path: Path) -> None:
    before = snapshot(environment.site)
    clock = random.Random(5)
    copy = environment.copy(tmp_path / "timed")
    start = time.monotonic()
    subprocess.run(archsplit(copy.site, "--device=9.0"), check=True, capture_output=True)
    whole = time.monotonic() - start
    slimmed = contents(copy.site)[LIBRARY]
    for number in range(8):
        each = environment.copy(tmp_path / str(number))
        child = subprocess.Popen(
            archsplit(each.site, "--device=9.0"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(clock.uniform(0.3, 1.0) * whole)
        child.kill()
        child.wait()
        assert contents(each.site)[LIBRARY] in {contents(environment.site)[LIBRARY], slimmed}
        assert main(["slim", "--site-packages", str(each.site), "--undo"]) == 0
        assert snapshot(each.site) == before
        shutil.rmtree(each.root)


@pytest.mark.parametrize("step", ["80", pytest.param("1", marks=pytest.mark.stress)])
def test_killed_verb_loses_no_file_and_is_cleaned_up(step: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(HERE / "verbs_killed.py"), str(tmp_path), step]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert min(kills.values()) > 0


@pytest.mark.stress
def test_each_verb_killed_at_random_moments_loses_no_file(tmp_path: Path) -> None:
    argv = [sys.executable, str(HERE / "random_kills.py"), str(tmp_path), "--kills", "32"]
    seed = os.environ.get("STRESS_SEED", "29")
    done = subprocess.run([*argv, "--seed", seed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (seed, done.stderr)
    assert sum(json.loads(done.stdout).values()) >= 500
