"""Twine in a process of its own, with the printed results of twine as data.

``python -m archsplit.index.twine_child RESULT where|upload|check …`` writes its result as JSON into
the file RESULT. Twine finds the credentials in this process, and they stay here: they are removed
from the replies of an index. Twine's own exit status and messages have neither the wait that an
index requests nor, without ``--verbose``, the reason of a refusal.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import requests
from twine import cli
from twine.commands import check
from twine.exceptions import TwineException
from twine.settings import Settings
from twine.utils import sanitize_url

from archsplit.system.env import without_passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TEXT = 1000
"""Characters of a reply that are kept."""

_HEADERS = ("Retry-After", "RateLimit")
_PARENT_DEATH_SIGNAL = 1
_TAGS = re.compile(r"<(style|script|title)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TOKEN = re.compile(r"\bpypi-[\w-]{16,}")


def run_request(argv: Sequence[str]) -> int:
    """Carry out a request, and write the reply."""
    # An upload that outlives the publisher would run beside the upload of the next run.
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    result, verb, *words = argv
    work = {"where": _where, "upload": _upload, "check": _check}[verb]
    Path(result).write_text(json.dumps(_outcome(work, words)), encoding="utf-8")
    return 0


def _outcome(work: Callable[[list[str]], dict[str, object]], words: list[str]) -> dict[str, object]:
    try:
        return {"outcome": "done", **work(words)}
    except requests.HTTPError as error:
        return _answered(cast("requests.Response", error.response))
    except requests.RequestException as error:
        return {"outcome": "unreachable", "reason": without_passwords(str(error))}
    except TwineException as error:
        return {"outcome": "refused by twine", "reason": without_passwords(str(error.args[0]))}


class _Kept(logging.Handler):
    """Log of ``twine check`` for the current file."""

    def __init__(self, findings: list[dict[str, object]]) -> None:
        super().__init__()
        self.findings, self.path = findings, ""

    def emit(self, record: logging.LogRecord) -> None:
        is_error = record.levelno >= logging.ERROR
        finding = {"path": self.path, "is_error": is_error, "text": record.getMessage()}
        self.findings.append(finding)


def _check(words: list[str]) -> dict[str, object]:
    """Return the findings of ``twine check`` as data."""
    findings: list[dict[str, object]] = []
    kept = _Kept(findings)
    # twine's check returns only True or False; the reasons are in its log.
    check.logger.addHandler(kept)
    for kept.path in words:
        check.check([kept.path])
    return {"findings": findings}


def _where(words: list[str]) -> dict[str, object]:
    """Return the address that twine would upload to, without a user name."""
    parser = argparse.ArgumentParser()
    Settings.register_argparse_arguments(parser)
    try:
        settings = Settings.from_argparse(parser.parse_args(words))
    # twine raises a bare KeyError for an incomplete .pypirc.
    except KeyError as missing:
        raise TwineException(f"its section in .pypirc has no {missing.args[0]}") from None
    # Refuses the address of the old PyPI here, before anything is planned.
    settings.check_repository_url()
    address = sanitize_url(str(settings.repository_config["repository"]))
    return {"reason": without_passwords(address)}


def _upload(words: list[str]) -> dict[str, object]:
    # As from a shell, so twine reads its variables, files and keyring as users know it.
    cli.dispatch(["upload", *words])
    return {}


def _answered(response: requests.Response) -> dict[str, object]:
    secrets = list(_secrets(response.request))
    # An index replies with a whole HTML page; its text is enough for a message.
    text = " ".join(_TAGS.sub(" ", response.text).split())
    return {
        "outcome": "answered",
        "status": response.status_code,
        "reason": _masked(response.reason or "", secrets),
        "text": _masked(text, secrets)[:_TEXT],
        "headers": {name: response.headers[name] for name in _HEADERS if name in response.headers},
    }


def _secrets(request: requests.PreparedRequest) -> Iterator[str]:
    """Return the credentials in each form in which an index might repeat them."""
    scheme, _, credential = str(request.headers.get("Authorization", "")).partition(" ")
    if credential:
        yield credential
    # The plain password may be repeated too, without its encoding.
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            yield base64.b64decode(credential).decode().partition(":")[2]


def _masked(text: str, secrets: Sequence[str]) -> str:
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return _TOKEN.sub("***", without_passwords(text))


if __name__ == "__main__":
    sys.exit(run_request(sys.argv[1:]))
