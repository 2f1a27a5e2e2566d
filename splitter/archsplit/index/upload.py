"""Twine as a child process: only the child has the credentials.

A file is uploaded until the index has it: a refusal is compared with the state of the index.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import (
    IndexRefusedError,
    InputError,
    ToolFailedError,
    TryLaterError,
    UsageError,
    VerifyError,
)
from archsplit.index import journal as lines
from archsplit.index.plan import DAY, NameStatus
from archsplit.index.retry import RetryableError, is_retryable, retry_after_seconds, utc_text
from archsplit.system.fs import read_file, sha256, temporary_dir
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from archsplit.index.journal import PublishJournal
    from archsplit.index.plan import UploadStep
    from archsplit.index.read_back import ReadBack
    from archsplit.index.release import Artifact
    from archsplit.index.retry import RetryPolicy
    from archsplit.system.process import CompletedProcess, Runner

_CHECK_SECONDS = 300.0
_WHERE_SECONDS = 60.0
_LEAST_BYTES_A_SECOND = 100_000
"""Speed that sets the timeout of an upload, beside a constant."""

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")

_CREDENTIALS = (
    "twine finds credentials in TWINE_USERNAME and TWINE_PASSWORD, ~/.pypirc, or a keyring; on PyPI"
    " trusted publishing needs none"
)
_TOO_MANY = 429
_EXISTS = {400, 409}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionReport:
    """A finding of ``twine check``.

    Attributes:
        is_error: the index refuses the file; otherwise only ``--strict`` does.
    """

    path: Path
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TwineResult:
    """The result of a call of twine.

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
    findings: tuple[DescriptionReport, ...] = ()

    @property
    def is_done(self) -> bool:
        """True if the index took the file."""
        return self.outcome == "done"

    def words(self) -> str:
        """The reply of the index, on one line."""
        said = self.reason if self.text in ("", self.reason) else f"{self.reason}: {self.text}"
        return f"{self.status} {said}".strip() if self.status else said or self.outcome

    def wait(self, now: datetime) -> float | None:
        """Seconds for which the index asks to be left alone."""
        return retry_after_seconds(self.headers, now)


_ANSWER = TypeAdapter(TwineResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twine:
    """Twine, with the address that it uploads to.

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

    def check(self, paths: Sequence[Path]) -> tuple[DescriptionReport, ...]:
        """Check files with ``twine check``.

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


def make_refusal(artifact: Artifact, answer: TwineResult) -> IndexRefusedError:
    """Return the meaning of an index's refusal, as far as known."""
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


def _last_line(done: CompletedProcess) -> str:
    lines = done.tail().splitlines() or [f"exit status {done.returncode}"]
    return _USER_INFO.sub("", lines[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploader:
    """Uploads files through twine.

    Attributes:
        patience: how long an index may refuse for reasons that pass.
    """

    twine: Twine = field(repr=False)
    prover: ReadBack = field(repr=False)
    journal: PublishJournal
    patience: RetryPolicy

    def upload(self, step: UploadStep) -> None:
        """Upload one file; when this returns, the index has taken it.

        Raises:
            VerifyError: the file is not what it was when it was verified.
            IndexRefusedError: the index refuses it for good.
            IndexUnreachableError: it went on failing.
            ConflictError: the index has something else under that name.
            TryLaterError: the index wants no more new names today.
            ToolFailedError: twine itself refuses.
        """
        one = step.artifact
        if sha256(one.path) != one.sha256:
            raise VerifyError(f"{one.path} has changed since it was verified")
        if step.standing is NameStatus.NEW:
            self.journal.add(lines.REGISTERING, project=one.project)
        self.journal.add(lines.UPLOADING, file=one.path.name, sha256=one.sha256)
        self.patience.keep_trying(f"uploading {one.path.name}", lambda: self._attempt(step))
        self.journal.add(lines.UPLOADED, file=one.path.name, sha256=one.sha256)

    def _attempt(self, step: UploadStep) -> None:
        answer = self.twine.upload(step.artifact)
        if answer.is_done:
            return
        self.journal.add(
            lines.FAILED, file=step.artifact.path.name, outcome=answer.outcome, status=answer.status
        )
        # The answer may have got lost on its way, or an earlier attempt may have worked after all.
        if not self.prover.find(step.artifact):
            self._judge(step, answer)

    def _judge(self, step: UploadStep, answer: TwineResult) -> None:
        """Raise the exception for a failed upload."""
        if answer.outcome in {"unreachable", "no end"}:
            raise RetryableError(answer.words())
        if answer.outcome != "answered":
            is_elsewhere = "redirect" in answer.words()
            raise ToolFailedError(
                f"twine refuses to upload {step.artifact.path.name}: {answer.words()}",
                hint="give the address itself" if is_elsewhere else _CREDENTIALS,
            )
        wait = answer.wait(self.patience.clock.now())
        if answer.status == _TOO_MANY and _is_about_names(step, answer):
            # Each further attempt may begin the 24 hours anew.
            raise self._later(answer, DAY.total_seconds() if wait is None else wait)
        if is_retryable(answer.status):
            raise RetryableError(answer.words(), wait=wait)
        if answer.status in _EXISTS and "exist" in answer.words().lower():
            raise RetryableError(f"{answer.words()}; but its page doesn't show it yet")
        raise make_refusal(step.artifact, answer)

    def _later(self, answer: TwineResult, wait: float) -> TryLaterError:
        when = utc_text(self.patience.clock.now() + timedelta(seconds=wait))
        return TryLaterError(
            f"the index takes no more new names for now: {answer.words()}",
            hint=f"run the same command again at {when}; it goes on where this one stopped",
        )


def _is_about_names(step: UploadStep, answer: TwineResult) -> bool:
    """Source: https://github.com/pypi/warehouse/pull/13097 and its headers since 20163."""
    limits = " ".join(answer.headers.values())
    says_so = "new project" in answer.words().lower() or "project.create" in limits
    return step.standing is NameStatus.NEW and says_so
