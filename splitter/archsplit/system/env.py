"""The environment that foreign programs run in: what they need, and nothing that moves results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

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


def given_environment(
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
