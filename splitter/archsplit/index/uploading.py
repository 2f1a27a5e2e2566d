"""Upload one file until the index has it; what an index says is held against what it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError, TryLaterError, VerifyError
from archsplit.index import journal as lines
from archsplit.index.plan import NameStatus
from archsplit.index.retry import RetryableError, utc_text
from archsplit.index.rules import DAY
from archsplit.index.upload import is_refused
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from archsplit.index.journal import PublishJournal
    from archsplit.index.plan import UploadStep
    from archsplit.index.read_back import ReadBack
    from archsplit.index.retry import RetryPolicy
    from archsplit.index.upload import Twine, TwineResult

_CREDENTIALS = (
    "twine finds credentials in TWINE_USERNAME and TWINE_PASSWORD, ~/.pypirc, or a keyring; on PyPI"
    " trusted publishing needs none"
)
_BUSY = {408, 425, 429}
_TOO_MANY = 429
_EXISTS = {400, 409}
_SERVER_FAULT = 500


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
        """Say by an exception what is to be done about a failure."""
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
        if answer.status in _BUSY or answer.status >= _SERVER_FAULT:
            raise RetryableError(answer.words(), wait=wait)
        if answer.status in _EXISTS and "exist" in answer.words().lower():
            raise RetryableError(f"{answer.words()}; but its page doesn't show it yet")
        raise is_refused(step.artifact, answer)

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
