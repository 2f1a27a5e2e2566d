"""The environment that foreign programs run in: what they need, and nothing that moves results.

The one clock that may enter an output: ``SOURCE_DATE_EPOCH``.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COERCED = {"C.UTF-8", "C.UTF8", "UTF-8"}
_CREDENTIAL = re.compile(r"TWINE_.*|ACTIONS_ID_TOKEN_REQUEST_.*|(.*_)?ID_TOKEN|CIRCLE_OIDC_TOKEN.*")
"""What twine is given, and what CI systems give for trusted publishing. Source of the latter:
https://docs.pypi.org/trusted-publishers/using-a-publisher/ and the package ``id``."""
_KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME")


def clean_environment(
    environment: Mapping[str, str], *, temporary: Path, epoch: int
) -> dict[str, str]:
    """An environment for a child process that gives the same result under every user.

    Left out are the variables that change what a compiler does behind the recipe's back: ``CPATH``
    and its kin, ``GCC_EXEC_PREFIX``, ``NVCC_PREPEND_FLAGS``, ``NVCC_APPEND_FLAGS``, ``LC_ALL``.

    Args:
        environment: the caller's own.
        temporary: where the child may put files of its own; becomes ``TMPDIR``.
        epoch: seconds since 1970 that stand for "now"; gcc's ``__DATE__`` honours it.
    """
    kept = {name: environment[name] for name in _KEPT if name in environment}
    fixed = {
        "LC_ALL": "C",
        "TZ": "UTC",
        "TMPDIR": str(temporary),
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
    }
    return kept | fixed


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for programs that may run what other people wrote, such as installers.

    Left out is all that would let such code publish something.
    """
    return {name: text for name, text in environment.items() if not _CREDENTIAL.fullmatch(name)}


def original_environment(
    environment: Mapping[str, str], started_with: Path = Path("/proc/self/environ")
) -> dict[str, str]:
    """The environment as it was given to this process: Python itself may have set a locale in it.

    gcc would quote in UTF-8 where it had quoted in ASCII. Source: PEP 538.
    """
    given = dict(environment)
    try:
        begun = b"\0" + started_with.read_bytes()
    except OSError:
        return given
    if given.get("LC_CTYPE", "").upper() in _COERCED and b"\0LC_CTYPE=" not in begun:
        del given["LC_CTYPE"]
    return given


ZIP_EPOCH = 315532800
"""1980-01-01 00:00:00 UTC in seconds: the earliest time a zip member can carry (APPNOTE 4.4.6)."""

_YEAR_10000 = 253402300800


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """Seconds since 1970 that stand for "now" in everything that is written.

    Without ``SOURCE_DATE_EPOCH`` it is `ZIP_EPOCH`, never the wall clock, so that two builds agree.
    Source of the variable: https://reproducible-builds.org/specs/source-date-epoch/

    Raises:
        UsageError: the variable is not a whole number of seconds before the year 10000; one that is
            has mostly been written in milliseconds.
    """
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return ZIP_EPOCH
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, not a number of seconds",
            hint="set it as in SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it",
        )
    seconds = int(text) if len(text) <= len(str(_YEAR_10000)) else _YEAR_10000
    if seconds >= _YEAR_10000:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text}, after the year 9999", hint="it counts seconds"
        )
    return max(seconds, ZIP_EPOCH)


def has_epoch(environment: Mapping[str, str]) -> bool:
    """Whether ``SOURCE_DATE_EPOCH`` says what time it is."""
    return bool(environment.get("SOURCE_DATE_EPOCH"))


def build_date(environment: Mapping[str, str]) -> str:
    """The day of a build in UTC, as 20261121: that of ``SOURCE_DATE_EPOCH``, else today.

    It is for versions that have a date, which nobody wants to be of 1980.

    Raises:
        UsageError: as for `source_date_epoch`.
    """
    seconds = source_date_epoch(environment) if has_epoch(environment) else time.time()
    return time.strftime("%Y%m%d", time.gmtime(seconds))
