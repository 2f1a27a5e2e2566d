"""Environments of child processes, ``SOURCE_DATE_EPOCH``, and the user's folders.

Child processes get the few variables that they need, so that an output depends on no user's
settings. The only clock that may enter an output is ``SOURCE_DATE_EPOCH``. Each hit of the
compiler wrapper needs this module, so it imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COERCED_LOCALES = {"C.UTF-8", "C.UTF8", "UTF-8"}
_CREDENTIAL = r"TWINE_.*|ACTIONS_ID_TOKEN_REQUEST_.*|(.*_)?ID_TOKEN|CIRCLE_OIDC_TOKEN.*"
"""Names of variables with credentials: twine's, and CI systems' for trusted publishing.

Source: https://docs.pypi.org/trusted-publishers/using-a-publisher/ and the package ``id``.
"""
_PASSED = ("PATH", "LD_LIBRARY_PATH", "HOME")

ZIP_EPOCH = 315532800
"""1980-01-01 00:00:00 UTC in seconds: the earliest time of a zip member (APPNOTE 4.4.6)."""

_YEAR_10000 = 253402300800


def clean_environment(
    environment: Mapping[str, str], *, temporary: Path, epoch: int
) -> dict[str, str]:
    """Return an environment in which a program gives the same result for every user.

    Variables that change a compiler's output without a word in the recipe are left out: ``CPATH``
    and its kin, ``GCC_EXEC_PREFIX``, ``NVCC_PREPEND_FLAGS``, ``NVCC_APPEND_FLAGS``, ``LC_ALL``.

    Args:
        environment: the caller's own.
        temporary: folder for the program's temporary files; becomes ``TMPDIR``.
        epoch: seconds since 1970 that stand for "now"; gcc's ``__DATE__`` honors them.
    """
    passed = {name: environment[name] for name in _PASSED if name in environment}
    fixed = {
        # Messages of tools are parsed in places, and sorting depends on the locale.
        "LC_ALL": "C",
        "TZ": "UTC",
        "TMPDIR": str(temporary),
        "SOURCE_DATE_EPOCH": str(epoch),
        # Tools written in Python may write sets in the order of their hashes.
        "PYTHONHASHSEED": "0",
    }
    # The fixed values last, so that the caller's can't replace them.
    return passed | fixed


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for programs that run other people's code, such as installers.

    Variables that would let such code publish something are left out.
    """
    import re  # 2 ms of a hit

    credential = re.compile(_CREDENTIAL)
    return {name: text for name, text in environment.items() if not credential.fullmatch(name)}


def without_passwords(text: str) -> str:
    """Return a text without the users and passwords in its addresses."""
    import re  # 2 ms of a hit

    # To the last @ before the path, as pip and twine read it: a password may have one.
    return re.sub(r"(?<=://)[^/?#\s]+@", "", text)


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine: what is sent there stays on it."""
    import ipaddress  # 2 ms of a hit

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def original_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the locale that Python may have set at its start.

    Source: PEP 538.
    """
    original = dict(environment)
    try:
        # The kernel's copy of the environment at the start of the process.
        with open("/proc/self/environ", "rb", buffering=0) as file:
            at_start = b"\0" + file.read()
    except OSError:
        return original
    # With Python's locale gcc would quote in UTF-8 where it quotes in ASCII for the user.
    if original.get("LC_CTYPE", "").upper() in _COERCED_LOCALES and b"\0LC_CTYPE=" not in at_start:
        del original["LC_CTYPE"]
    return original


def find_program(name: str, search: str) -> str | None:
    """Return the path of a program as `shutil.which` does, or None.

    Args:
        search: the value of ``PATH``.
    """
    folders = [""] if "/" in name else search.split(os.pathsep) if search else []
    for folder in dict.fromkeys(folders):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def cache_dir(environment: Mapping[str, str]) -> str:
    """Return the folder for data that can be made again: ``ARCHSPLIT_CACHE_DIR``, or XDG's.

    The folder may not exist.
    """
    named = environment.get("ARCHSPLIT_CACHE_DIR", "")
    return named if os.path.isabs(named) else _xdg_folder(environment, "CACHE", ".cache")


def config_dir(environment: Mapping[str, str]) -> str:
    """Return XDG's folder for settings; the folder may not exist."""
    return _xdg_folder(environment, "CONFIG", ".config")


def _xdg_folder(environment: Mapping[str, str], kind: str, below_home: str) -> str:
    base = environment.get(f"XDG_{kind}_HOME", "")
    # The XDG Base Directory Specification requires that relative paths are ignored.
    if not os.path.isabs(base):
        base = os.path.join(environment.get("HOME") or _account_home(), below_home)
    return os.path.join(base, "archsplit")


def _account_home() -> str:
    import pwd  # nearly always there is a variable

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        # A container's user often has no entry.
        return "/"


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """Return the seconds since 1970 that stand for "now" in every output.

    Without ``SOURCE_DATE_EPOCH`` that is `ZIP_EPOCH`, never the wall clock, so that two builds
    agree. Source of the variable: https://reproducible-builds.org/specs/source-date-epoch/

    Raises:
        UsageError: the variable is not a whole number of seconds before the year 10000.
    """
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return ZIP_EPOCH
    from archsplit.errors import UsageError  # 1 ms of a hit

    # `int` would accept signs, spaces, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, not a number of seconds",
            hint="set it with SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it",
        )
    # Python refuses to convert thousands of digits, with another error.
    seconds = int(text) if len(text) <= len(str(_YEAR_10000)) else _YEAR_10000
    if seconds >= _YEAR_10000:
        # Most such values are milliseconds.
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text}, after the year 9999", hint="it counts seconds"
        )
    # A zip member can't carry an earlier time.
    return max(seconds, ZIP_EPOCH)


def has_epoch(environment: Mapping[str, str]) -> bool:
    """Return True if ``SOURCE_DATE_EPOCH`` is set."""
    return bool(environment.get("SOURCE_DATE_EPOCH"))


def output_time(environment: Mapping[str, str]) -> int:
    """Return the timestamp for outputs: ``SOURCE_DATE_EPOCH``, or else now, in seconds.

    Raises:
        UsageError: as for `source_date_epoch`.
    """
    return source_date_epoch(environment) if has_epoch(environment) else int(time.time())


def build_date(environment: Mapping[str, str]) -> str:
    """Return the date of a build in UTC, as ``20261121``: ``SOURCE_DATE_EPOCH``, else today.

    For versions with a date, which should not be of 1980.

    Raises:
        UsageError: as for `source_date_epoch`.
    """
    seconds = source_date_epoch(environment) if has_epoch(environment) else time.time()
    return time.strftime("%Y%m%d", time.gmtime(seconds))
