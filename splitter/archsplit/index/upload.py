"""Twine, as a child process: it knows the credentials, and this process doesn't."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import IndexRefusedError, InputError, ToolFailedError, UsageError
from archsplit.index.waiting import retry_after_seconds
from archsplit.system.fs import read_file, temporary_dir
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from archsplit.index.release import Artifact
    from archsplit.system.process import Completed, Runner

_CHECK_SECONDS = 300.0
_WHERE_SECONDS = 60.0
_LEAST_BYTES_A_SECOND = 100_000
"""What an upload is given time for."""

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One objection of ``twine check``.

    Attributes:
        is_error: the index refuses the file; otherwise only ``--strict`` does.
    """

    path: Path
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TwineResult:
    """What came of a call of twine.

    Attributes:
        outcome: ``done``, ``answered`` (by the index, with an error), ``unreachable``, ``refused by
            twine``, or ``no end`` where its time was over.
        status: HTTP's, where the index answered.
        reason: the status line's text, or what twine says.
        text: the answer's, without markup.
        headers: those that say when to come back.
        findings: of ``check`` alone.
    """

    outcome: str
    status: int = 0
    reason: str = ""
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the file was taken."""
        return self.outcome == "done"

    def words(self) -> str:
        """What the other side said, on one line."""
        said = self.reason if self.text in ("", self.reason) else f"{self.reason}: {self.text}"
        return f"{self.status} {said}".strip() if self.status else said or self.outcome

    def wait(self, now: datetime) -> float | None:
        """Seconds for which the index asks to be left alone."""
        return retry_after_seconds(self.headers, now)


_ANSWER = TypeAdapter(TwineResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twine:
    """Where twine uploads to, and how it is called.

    Attributes:
        repository: ``--repository``, or None.
        repository_url: ``--repository-url``, or None. Where both are None, twine's variables say.
        config_file: ``.pypirc``, where it isn't in its usual place.
        environment: all of the caller's: credentials, proxies, certificates, keyrings, and what a
            CI system gives for trusted publishing.
        python_path: where twine is found.
        seconds: what an upload gets besides the time for its bytes.
    """

    runner: Runner
    environment: Mapping[str, str] = field(repr=False)
    python_path: str = field(repr=False)
    repository: str | None = None
    repository_url: str | None = None
    config_file: Path | None = None
    seconds: float = 300.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.repository_url or "")
        if parts.username or parts.password:
            raise UsageError(
                "--repository-url has a user or a password in it, which every process here can see",
                hint="set TWINE_USERNAME and TWINE_PASSWORD, or write them into ~/.pypirc",
            )

    def where(self) -> str:
        """The address that is uploaded to, without credentials.

        Raises:
            UsageError: twine knows no such repository.
        """
        answer = self._call("where", self._place(), seconds=_WHERE_SECONDS)
        if not answer.is_done:
            raise UsageError(f"twine knows no such repository: {answer.words()}")
        return answer.reason

    def check(self, paths: Sequence[Path]) -> tuple[Finding, ...]:
        """Let ``twine check`` look at files.

        Raises:
            ToolFailedError: twine died, or can't read a file.
        """
        words = tuple(str(path.absolute()) for path in paths)
        answer = self._call("check", words, seconds=_CHECK_SECONDS)
        if not answer.is_done:
            raise ToolFailedError(f"twine check: {answer.words()}")
        return answer.findings

    def upload(self, artifact: Artifact) -> TwineResult:
        """Upload one file, with the attestations beside it.

        Raises:
            ToolNotFoundError: Python can't be started.
            ToolFailedError: twine died.
            InterruptedByUserError: the run was cancelled.
        """
        options = ("--non-interactive", "--disable-progress-bar", *self._place())
        if artifact.attestations:
            options += ("--attestations",)
        files = map(str, (artifact.path, *artifact.attestations))
        seconds = self.seconds + artifact.size / _LEAST_BYTES_A_SECOND
        return self._call("upload", (*options, *files), seconds=seconds)

    def _place(self) -> tuple[str, ...]:
        words: tuple[str, ...] = ()
        if self.repository is not None:
            words += ("--repository", self.repository)
        if self.repository_url is not None:
            words += ("--repository-url", self.repository_url)
        if self.config_file is not None:
            words += ("--config-file", str(self.config_file.absolute()))
        return words

    def _call(self, verb: str, words: tuple[str, ...], *, seconds: float) -> TwineResult:
        with temporary_dir() as folder:
            result = folder / "result.json"
            argv = ("-m", "archsplit.index.twine_child", str(result), verb, *words)
            try:
                done = self.runner.run(self._command(argv, folder, seconds))
            except ToolFailedError:
                return TwineResult(outcome="no end", reason=f"no answer within {seconds:.0f} s")
            try:
                # A full disk leaves half of it.
                return _ANSWER.validate_json(read_file(result))
            except (InputError, ValidationError):
                raise ToolFailedError(f"twine {verb} died: {_last_line(done)}") from None

    def _command(self, words: tuple[str, ...], folder: Path, seconds: float) -> Command:
        own = {"PYTHONPATH": self.python_path, "NO_COLOR": "1", "TERM": "dumb"}
        if self.repository is not None:
            # As on twine's own command line an address goes before a name, wherever it is from.
            own["TWINE_REPOSITORY_URL"] = ""
        return Command(
            argv=(sys.executable, *words),
            cwd=folder,
            env={**self.environment, **own},
            timeout=seconds,
        )


def is_refused(artifact: Artifact, answer: TwineResult) -> IndexRefusedError:
    """What an index's refusal means, as far as one can know."""
    hints = {
        401: "the index doesn't know these credentials: TWINE_USERNAME, TWINE_PASSWORD, ~/.pypirc",
        403: f"the credentials may not upload to {artifact.project}: the name may be somebody"
        " else's, a token may be for other projects, or a trusted publisher may be missing",
        413: "the index takes no file of that size",
    }
    return IndexRefusedError(
        f"{artifact.path.name}: {answer.words()}",
        hint=hints.get(answer.status, "nothing else was uploaded after it; the core is not live"),
    )


def _last_line(done: Completed) -> str:
    lines = done.tail().splitlines() or [f"exit status {done.returncode}"]
    return _USER_INFO.sub("", lines[-1])
