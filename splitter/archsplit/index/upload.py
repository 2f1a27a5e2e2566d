"""Twine as a child process: only the child has the credentials.

In: the files of a plan. Out: uploads, the findings of ``twine check``, or an error for each way in
which an index refuses. A file is uploaded until the index has it: a refusal is compared with the
state of the index.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import (
    DiskFullError,
    IndexRefusedError,
    InputError,
    ToolFailedError,
    TryLaterError,
    UsageError,
    VerifyError,
)
from archsplit.index.plan import NameStatus
from archsplit.index.retry import RetryableError, is_retryable, retry_after_seconds, utc_text
from archsplit.scheduler.runner import NO_SPACE_HINT, has_no_space
from archsplit.system.env import without_passwords
from archsplit.system.fs import read_file, sha256, temporary_dir
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from archsplit.index.plan import UploadStep
    from archsplit.index.release import Artifact
    from archsplit.index.retry import RetryPolicy
    from archsplit.index.state import ReadBack
    from archsplit.system.process import CompletedProcess, Runner

_CHECK_SECONDS = 300.0
_WHERE_SECONDS = 60.0
_LEAST_BYTES_A_SECOND = 100_000
"""Slowest expected speed; with `Twine.seconds` it sets the timeout of an upload."""

_CREDENTIALS = (
    "twine finds credentials in TWINE_USERNAME and TWINE_PASSWORD, ~/.pypirc, or a keyring; on PyPI"
    " trusted publishing needs none"
)
_TOO_MANY = 429
_DAY = 86400.0
"""Seconds after which PyPI takes a new name again, if its reply has no time."""
_EXISTS = {400, 409}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionReport:
    """A finding of ``twine check``.

    Attributes:
        is_error: True if the index refuses the file; False if only ``--strict`` does.
    """

    path: Path
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TwineResult:
    """Result of a call of twine.

    Attributes:
        outcome: ``done``, ``answered`` (an error reply of the index), ``unreachable``, ``refused by
            twine``, or ``timeout``.
        status: of HTTP; 0 without a reply.
        reason: the text of the status line, or the error message of twine.
        text: of the reply, without markup.
        headers: those with the time of the next attempt.
        findings: of ``check`` only.
    """

    outcome: str
    status: int = 0
    reason: str = ""
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[DescriptionReport, ...] = ()

    @property
    def is_done(self) -> bool:
        """True if the index took the file."""
        return self.outcome == "done"

    def reply(self) -> str:
        """Return the reply of the index on one line."""
        reply = self.reason if self.text in ("", self.reason) else f"{self.reason}: {self.text}"
        return f"{self.status} {reply}".strip() if self.status else reply or self.outcome

    def wait(self, now: datetime) -> float | None:
        """Return the seconds before the next attempt that the index requests, or None."""
        return retry_after_seconds(self.headers, now)


_RESULT = TypeAdapter(TwineResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twine:
    """Twine, with the address that it uploads to.

    Attributes:
        repository: value of ``--repository``, or None.
        repository_url: value of ``--repository-url``, or None. Without both, twine uses
            its variables.
        environment: all of the caller's: credentials, proxies, certificates, keyrings, and the
            variables of a CI system for trusted publishing.
        python_path: the folders that twine is imported from.
        seconds: constant part of the timeout of an upload.
    """

    runner: Runner
    environment: Mapping[str, str] = field(repr=False)
    python_path: str = field(repr=False)
    repository: str | None = None
    repository_url: str | None = None
    seconds: float = 300.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.repository_url or "")
        if parts.username or parts.password:
            raise UsageError(
                "--repository-url has a user or a password in it, which every process here can see",
                hint="set TWINE_USERNAME and TWINE_PASSWORD, or write them into ~/.pypirc",
            )

    def where(self) -> str:
        """Return the address for uploads, without credentials.

        Raises:
            UsageError: twine finds no such repository.
            ToolFailedError: twine doesn't end.
        """
        result = self._call("where", self._place(), seconds=_WHERE_SECONDS)
        # A busy machine, and not a mistake of the user.
        if result.outcome == "timeout":
            raise ToolFailedError(f"twine can't be asked for the address: {result.reply()}")
        if not result.is_done:
            raise UsageError(f"twine doesn't know this repository: {result.reply()}")
        return result.reason

    def check(self, paths: Sequence[Path]) -> tuple[DescriptionReport, ...]:
        """Check files with ``twine check``.

        Raises:
            ToolFailedError: twine died, or can't read a file.
        """
        words = tuple(str(path.absolute()) for path in paths)
        result = self._call("check", words, seconds=_CHECK_SECONDS)
        if not result.is_done:
            raise ToolFailedError(f"twine check: {result.reply()}")
        return result.findings

    def upload(self, artifact: Artifact) -> TwineResult:
        """Upload one file, with the attestations beside it.

        Raises:
            ToolNotFoundError: Python can't be started.
            ToolFailedError: twine died.
            InterruptedByUserError: the run was canceled.
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
        return words

    def _call(self, verb: str, words: tuple[str, ...], *, seconds: float) -> TwineResult:
        with temporary_dir() as folder:
            result = folder / "result.json"
            argv = ("-m", "archsplit.index.twine_child", str(result), verb, *words)
            try:
                done = self.runner.run(self._command(argv, folder, seconds))
            except ToolFailedError:
                return TwineResult(outcome="timeout", reason=f"no reply within {seconds:.0f} s")
            try:
                # A full disk leaves half of it.
                return _RESULT.validate_json(read_file(result))
            except (InputError, ValidationError):
                message = f"twine {verb} crashed: {_last_line(done)}"
                if has_no_space(folder):
                    raise DiskFullError(message, hint=NO_SPACE_HINT) from None
                raise ToolFailedError(message) from None

    def _command(self, words: tuple[str, ...], folder: Path, seconds: float) -> Command:
        own = {"PYTHONPATH": self.python_path, "NO_COLOR": "1", "TERM": "dumb"}
        if self.repository is not None:
            # TWINE_REPOSITORY_URL would win over --repository, which the user typed.
            own["TWINE_REPOSITORY_URL"] = ""
        return Command(
            argv=(sys.executable, *words),
            cwd=folder,
            env={**self.environment, **own},
            timeout=seconds,
        )


def _last_line(done: CompletedProcess) -> str:
    lines = done.tail().splitlines() or [f"exit status {done.returncode}"]
    return without_passwords(lines[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploader:
    """Uploads files through twine.

    Attributes:
        retry: for temporary errors of the index.
    """

    twine: Twine = field(repr=False)
    read_back: ReadBack = field(repr=False)
    retry: RetryPolicy

    def upload(self, step: UploadStep) -> None:
        """Upload one file, and return after the index has accepted it.

        Raises:
            VerifyError: the file has changed since it was verified.
            IndexRefusedError: the index refuses the file, and no later attempt can help.
            IndexUnreachableError: each attempt failed.
            ConflictError: the index has another content under that name.
            TryLaterError: the index accepts no more new names for now.
            ToolFailedError: twine itself refuses the file.
        """
        one = step.artifact
        if sha256(one.path) != one.sha256:
            raise VerifyError(f"{one.path} has changed since it was verified")
        self.retry.keep_trying(f"uploading {one.path.name}", lambda: self._attempt(step))

    def _attempt(self, step: UploadStep) -> None:
        result = self.twine.upload(step.artifact)
        if result.is_done:
            return
        # The reply may have been lost, or an earlier attempt may have worked: the index decides.
        if not self.read_back.has(step.artifact):
            self._raise_error(step, result)

    def _raise_error(self, step: UploadStep, result: TwineResult) -> None:
        """Raise the exception for a failed upload."""
        if result.outcome in {"unreachable", "timeout"}:
            raise RetryableError(result.reply())
        if result.outcome != "answered":
            is_elsewhere = "redirect" in result.reply()
            raise ToolFailedError(
                f"twine refuses to upload {step.artifact.path.name}: {result.reply()}",
                hint="give the address itself" if is_elsewhere else _CREDENTIALS,
            )
        wait = result.wait(self.retry.clock.now())
        if result.status == _TOO_MANY and _is_about_names(step, result):
            # No retry here: each further attempt may start the 24 hours again.
            raise self._later(result, _DAY if wait is None else wait)
        if is_retryable(result.status):
            raise RetryableError(result.reply(), wait=wait)
        if result.status in _EXISTS and "exist" in result.reply().lower():
            raise RetryableError(f"{result.reply()}; but its page doesn't show it yet")
        raise _refusal(step.artifact, result)

    def _later(self, result: TwineResult, wait: float) -> TryLaterError:
        when = utc_text(self.retry.clock.now() + timedelta(seconds=wait))
        return TryLaterError(
            f"the index accepts no more new names for now: {result.reply()}",
            hint=f"run the same command again at {when}; it continues where this one stopped",
        )


def _is_about_names(step: UploadStep, result: TwineResult) -> bool:
    """Return True if the index refuses a new project name, not an upload as such.

    Source: https://github.com/pypi/warehouse/pull/13097 and its headers since 20163.
    """
    limits = " ".join(result.headers.values())
    is_named = "new project" in result.reply().lower() or "project.create" in limits
    return step.status is NameStatus.NEW and is_named


def _refusal(artifact: Artifact, result: TwineResult) -> IndexRefusedError:
    """Return the error for an index's refusal, with a hint for its status."""
    hints = {
        401: "the index rejected these credentials: TWINE_USERNAME, TWINE_PASSWORD, ~/.pypirc",
        403: f"the credentials may not upload to {artifact.project}: the name may be somebody"
        " else's, a token may be for other projects, or a trusted publisher may be missing",
        413: "the index accepts no file of that size",
    }
    return IndexRefusedError(
        f"{artifact.path.name}: {result.reply()}",
        hint=hints.get(result.status, "nothing was uploaded after it; the core is not live"),
    )
