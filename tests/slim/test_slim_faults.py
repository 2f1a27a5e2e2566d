"""Errors of the system injected into ``slim``: a message, and no lost file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from slim_site_samples import Environment, contents, made
from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main
from archsplit.release.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = (
    *("open", "mkdir", "link", "symlink", "replace", "unlink", "rmdir", "fsync", "chmod", "chown"),
    *("access", "scandir", "listdir"),
)
CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def slimmed(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return such an environment after ``slim``, which can be undone in each copy."""
    copy = environment.copy(tmp_path_factory.mktemp("slimmed") / "environment")
    assert main(["slim", "--site-packages", str(copy.site), "--device=9.0"]) == 0
    return copy


class Fault:
    """A function of `os` that fails at one of its calls."""

    def __init__(self, real: Callable[..., Any], number: int) -> None:
        self.real, self.number, self.count = real, number, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (any function)
        self.count += 1
        if self.count == self.number:
            code = CODES[self.number % len(CODES)]
            raise OSError(code, os.strerror(code))
        return self.real(*arguments, **options)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("option", ["--device=9.0", "--undo", "--commit"])
def test_error_of_the_system_is_a_message(
    option: str,
    call: str,
    environment: Environment,
    slimmed: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fat = contents(environment.site)
    start = environment if option == "--device=9.0" else slimmed
    for number in (1, 2, 3, 5, 6, 9, 13):
        site = start.copy(tmp_path / str(number)).site
        words = ["slim", "--site-packages", str(site)]
        capsys.readouterr()
        fault = Fault(getattr(os, call), number)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fault)
            # An exception that leaves main would be a traceback.
            status = main([*words, option])
        said = capsys.readouterr().err
        if status:
            assert said.startswith(("archsplit: ", "error: ")), said
            assert contents(site) == fat or "nothing was changed" not in said, said
        # After a commit nothing can be undone; otherwise the old files come back.
        if option != "--commit":
            main([*words, "--undo"])
            assert contents(site) == fat, (number, said)
        if fault.count < number:
            break


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", ["wheel", "file"])
def test_error_while_a_file_is_slimmed_leaves_the_earlier_output(
    form: str,
    call: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = fat_wheel(tmp_path)
    source = wheel if form == "wheel" else tmp_path / "library" / "libsample.so"
    out = tmp_path / "out"
    words = ["slim", str(source), "--device=9.0", "--out", str(out)]
    # pip's part is another process's, and takes a second.
    monkeypatch.setattr(Trial, "install", lambda *_: None)
    assert main(words) == 0
    before, input_before = contents(out), source.read_bytes()
    for number in (1, 2, 3, 5, 6, 9, 13):
        capsys.readouterr()
        fault = Fault(getattr(os, call), number)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fault)
            status = main(words)
        said = capsys.readouterr().err
        assert not status or said.startswith(("archsplit: ", "error: ")), said
        left = {name: state for name, state in contents(out).items() if name in before}
        assert left == before
        assert source.read_bytes() == input_before
        if fault.count < number:
            break
