"""The command: killed and begun again, its exit codes, and what must never be seen."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from publish_runs import BASIC, Command, pip, uv
from publish_samples import SECRET, USER, Asked, Fault, Scene, make_release

from archsplit.cli.main import main
from archsplit.errors import ToolFailedError
from archsplit.index.upload import Twine
from archsplit.system.process import SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.system import process
    from archsplit.system.process import CompletedProcess


@pytest.fixture
def command(scene: Scene, tmp_path: Path) -> Command:
    return Command(scene=scene, home=tmp_path / "home")


def test_publish_killed_at_an_upload_is_completed_by_the_next(
    command: Command, tmp_path: Path
) -> None:
    """At no moment can the core be installed without a plugin, and nothing goes up twice.

    At a plugin's upload, and before and after the core's; the stress session kills at each request.
    """
    scene = command.scene
    names = {part: scene.wheel(part).name for part in ("_cc80", "_cc90", "")}
    for part, answered, expected in (
        ("_cc80", True, {"_cc80"}),
        ("", False, {"_cc80", "_cc90"}),
        ("", True, {"_cc80", "_cc90", ""}),
    ):
        command.kill_at(lambda asked, part=part: asked.file == names[part], answered=answered)  # type: ignore[misc] # a default binds it
        done = command.run(scene.dist, "--quiet", "--no-download")
        assert done.code == -9, done.stderr
        assert scene.names() == {names[each] for each in expected}
        is_installable = pip(scene.server.url, "--dry-run", "toyfat[all]").returncode == 0
        assert is_installable == ("" in expected)
    command.kill_at(lambda _: False, answered=False)
    before = len(scene.server.uploads())
    done = command.run(scene.dist, "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["complete"]
    assert len(scene.server.uploads()) == before
    for installer in (pip, uv):
        folder = tmp_path / installer.__name__
        assert installer(scene.server.url, f"--target={folder}", "toyfat[cc90]").returncode == 0
        assert (folder / "toyfat_plugins" / "cuda" / "cc90" / "device.pack").exists()
    _assert_nothing_secret(command, done.stdout, done.stderr)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("answered", [False, True])
def test_publish_killed_at_any_request_is_completed_by_the_next(
    command: Command, *, answered: bool
) -> None:
    scene = command.scene
    number = 0
    while True:
        for path in scene.files.iterdir():
            path.unlink()
        first = len(scene.server.asked)
        limit = first + number
        command.kill_at(lambda _, limit=limit: len(scene.server.asked) > limit, answered=answered)  # type: ignore[misc] # a default binds it
        done = command.run(scene.dist, "--quiet")
        command.kill_at(lambda _: False, answered=False)
        is_whole = scene.wheel("").name in scene.names()
        for wanted in ("toyfat", "toyfat[all]"):
            assert (pip(scene.server.url, "--dry-run", wanted).returncode == 0) == is_whole
        if done.code == 0:
            break
        assert done.code == -9, done.stderr
        done = command.run(scene.dist, "--quiet")
        assert done.code == 0, done.stderr
        assert len(scene.names()) == 3
        number += 1
    assert number > 20


def test_plan_is_shown_and_nothing_is_uploaded(command: Command) -> None:
    scene = command.scene
    done = command.call(scene.dist, "--plan", "--json")
    assert done.code == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [(row["role"], row["action"], row["name"]) for row in plan["files"]] == [
        ("plugin", "upload", "new"),
        ("plugin", "upload", "new"),
        ("core", "upload", "new"),
    ]
    assert plan["new_names"] == ["toyfat-cc80", "toyfat-cc90", "toyfat"]
    assert plan["rules"]["file_bytes"] is None
    assert scene.server.uploads() == []
    assert not scene.state.exists()


def test_a_slow_twine_is_not_an_unknown_repository() -> None:
    class Slow(SubprocessRunner):
        def run(self, command: process.Command) -> CompletedProcess:
            raise ToolFailedError(f"{command.argv[0]} took too long")

    twine = Twine(runner=Slow(), environment={}, python_path="")
    with pytest.raises(ToolFailedError, match="the address: no reply within 60 s"):
        twine.where()


def test_only_twine_reads_pypirc(command: Command) -> None:
    scene = command.scene
    password = "pypi-another-secret-9876543210"
    command.home.mkdir()
    (command.home / ".pypirc").write_text(
        "[distutils]\nindex-servers = ours\n"
        f"[ours]\nrepository = {scene.server.url}\nusername = {USER}\npassword = {password}\n"
    )
    command.variables = {}
    echo: list[str] = []

    def refuse(asked: Asked) -> Fault | None:
        command.look_for_secrets()
        if not asked.is_upload:
            return None
        echo.append(asked.headers["Authorization"])
        return Fault(status=403, reason="No", body=f"{password} {echo[-1]}".encode())

    scene.server.before = refuse
    done = command.call(scene.dist, repository=("--repository", "ours"))
    assert done.code == 21, done.stderr
    assert "403 No" in done.stderr
    assert len(echo) == 1
    _assert_nothing_secret(command, done.stdout, done.stderr, password, echo[0].split()[1])


def test_conflict_and_unknown_places_have_exit_codes_of_their_own(command: Command) -> None:
    scene = command.scene
    (scene.files / scene.wheel("_cc90").name).write_bytes(b"something else")
    done = command.call(scene.dist)
    assert (done.code, scene.server.uploads()) == (22, [])
    assert "CONFLICT" in done.stderr
    done = command.call(scene.dist, repository=("--repository", "nowhere"))
    assert done.code == 2
    assert "twine doesn't know this repository" in done.stderr
    url = f"http://{USER}:{SECRET}@127.0.0.1:1/"
    done = command.call(scene.dist, repository=("--repository-url", url))
    assert done.code == 2
    assert SECRET not in done.stderr
    done = command.call(command.home)
    assert done.code == 14
    assert "archsplit-report.json" in done.stderr


def test_wheels_failing_the_check_are_not_published(command: Command, tmp_path: Path) -> None:
    dist = make_release(tmp_path / "other", "1.0", "+cu130")
    command.scene.dist = dist
    # A private index answers for itself.
    done = command.call(dist, "--plan")
    assert done.code == 0, done.stderr
    report = dist / "archsplit-report.json"
    path = command.scene.wheel("_cc90")
    path.write_bytes(path.read_bytes()[:-1])
    done = command.call(dist)
    assert done.code == 9
    assert "is not the file that archsplit-report.json lists" in done.stderr
    assert path.name in report.read_text()
    assert command.scene.server.uploads() == []


def test_interrupted_upload_ends_at_once(command: Command) -> None:
    def interrupt(asked: Asked) -> Fault | None:
        if not asked.is_upload:
            return None
        os.kill(command.running[-1], signal.SIGINT)
        return Fault(hang=True)

    command.scene.server.before = interrupt
    done = command.run(command.scene.dist, "--quiet")
    assert done.code == 130, done.stderr
    assert (
        "interrupted; uploaded files stay on the index\nhint: run the same command again"
        in done.stderr
    )
    assert command.scene.names() == set()


def test_variables_of_twine_name_the_index(command: Command) -> None:
    command.variables["TWINE_REPOSITORY_URL"] = command.scene.server.url
    done = command.call(command.scene.dist, "--plan", repository=())
    assert done.code == 0, done.stderr
    assert f"toyfat 1.0 to {command.scene.server.url}, read at" in done.stdout
    del command.variables["TWINE_REPOSITORY_URL"]
    done = command.call(command.scene.dist, repository=())
    assert done.code == 2
    assert "no index to publish to" in done.stderr


@pytest.mark.parametrize("words", [("--max-file-size=x",), ("--max-project-size=0",)])
def test_invalid_size_options_are_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "dist", *words]) == 2
    assert "is not a" in capsys.readouterr().err


def _assert_nothing_secret(command: Command, *texts: str) -> None:
    secrets = [SECRET, BASIC, *texts[2:]]
    told = texts[:2]
    folders = (command.home, command.scene.state, command.scene.dist)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    for secret in secrets:
        assert not any(secret in text for text in told)
        for path in files:
            assert path.name == ".pypirc" or secret.encode() not in path.read_bytes()
