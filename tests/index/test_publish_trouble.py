"""Faults of people, disks and networks: each ends in a message, never in a traceback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from publish_samples import SECRET, USER, Fault, Scene

from archsplit.cli.main import main
from archsplit.errors import IndexUnreachableError, ToolFailedError, UsageError
from archsplit.index import retry
from archsplit.index.client import Index
from archsplit.index.release import read_release
from archsplit.index.retry import RetryPolicy
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from free_ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}


def index(scene: Scene, seconds: float = 10) -> Index:
    calm = RetryPolicy(seconds=seconds, clock=scene.clock, note=scene.notes.append)
    return Index(f"{scene.server.url}simple/", calm)


class TornAnswer(SubprocessRunner):
    """Runs the child, whose disk is full: of what it writes, ten bytes are left."""

    def run(self, command: Command) -> CompletedProcess:
        done = super().run(command)
        for path in command.cwd.glob("result.json"):
            path.write_bytes(path.read_bytes()[:10])
        return done


def test_twine_answer_truncated_by_a_full_disk_is_an_error(scene: Scene) -> None:
    twine = replace(scene.publisher().twine, runner=TornAnswer())
    with pytest.raises(ToolFailedError, match="twine where crashed"):
        twine.where()


def test_pypirc_section_without_an_address_is_refused(scene: Scene) -> None:
    scene.state.mkdir()
    settings = scene.state / ".pypirc"
    settings.write_text("[distutils]\nindex-servers = ours\n[ours]\nusername = a\n")
    twine = scene.publisher().twine
    home = {**twine.environment, "HOME": str(scene.state)}
    named = replace(twine, repository="ours", repository_url=None, environment=home)
    with pytest.raises(UsageError, match=r"its section in \.pypirc has no repository"):
        named.where()


def test_redirected_address_is_not_blamed_on_credentials(scene: Scene) -> None:
    scene.server.before = lambda asked: (
        Fault(status=301, headers={"Location": "/x/"}) if asked.is_upload else None
    )
    with pytest.raises(ToolFailedError, match="give the address itself") as caught:
        scene.publisher().publish(read_release([scene.dist]), scene.plans.append)
    assert "TWINE_USERNAME" not in str(caught.value)


def test_unreachable_proxy_is_retried(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://{USER}:{SECRET}@127.0.0.1:1/")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(IndexUnreachableError, match="the proxy doesn't reply") as caught:
        index(scene).project("foo")
    assert scene.clock.slept == [1, 2, 4]
    assert not any(SECRET in text for text in (str(caught.value), *scene.notes))


def test_a_plan_without_a_network_gives_up_sooner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retry, "Clock", lambda: scene.clock)
    url = f"http://127.0.0.1:{free_port()}/"
    words = ("publish", str(scene.dist), "--plan", "--repository-url", url)
    assert main((*words, "--index-url", f"{url}simple/")) == IndexUnreachableError.exit_code
    waited = sum(scene.clock.slept)
    assert f"this machine is offline; gave up after {waited:.0f} s" in capsys.readouterr().err
    assert waited <= 30


def test_half_valid_page_is_described_on_one_line(scene: Scene) -> None:
    scene.server.before = lambda _: Fault(status=200, headers=JSON, body=b'{"name": 5}')
    with pytest.raises(IndexUnreachableError, match=r"not an index's page: .*files: ") as caught:
        index(scene).project("foo")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["--index-url", "--extra-index-url"])
def test_passwords_in_addresses_are_refused_before_anything_is_read(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"https://me:{SECRET}@host.invalid/simple/"
    words = ("publish", str(tmp_path), "--repository", "pypi", option, url)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "has a password in it" in told
    assert SECRET not in told


@pytest.mark.parametrize("option", ["--max-file-size", "--max-project-size"])
def test_size_limit_of_zero_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("publish", "dist", f"{option}=0")) == 2
    assert "'0' is not a size of at least one byte" in capsys.readouterr().err


class Watching(SubprocessRunner):
    """Keeps the commands that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Command] = []

    def run(self, command: Command) -> CompletedProcess:
        self.commands.append(command)
        return super().run(command)


def test_identity_for_trusted_publishing_goes_only_to_twine(scene: Scene) -> None:
    publisher = scene.publisher()
    names = ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "PYPI_ID_TOKEN")
    identity = dict.fromkeys(names, SECRET)
    runner = Watching()
    environment = {**publisher.twine.environment, **identity}
    effects = replace(publisher.effects, runner=runner, environment=environment)
    twine = replace(publisher.twine, runner=runner, environment=environment)
    replace(publisher, effects=effects, twine=twine).publish(
        read_release([scene.dist]), scene.plans.append
    )
    assert len(runner.commands) == 3
    for command in runner.commands:
        assert not any(SECRET in word for word in command.argv)
        assert "archsplit.index.twine_child" in command.argv
        assert set(names) <= set(command.env)
