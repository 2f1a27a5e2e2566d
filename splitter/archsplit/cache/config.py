"""Settings of the cache: one table, and the sources of each setting.

Input are ``--cache``, environment variables and a file; output is `Settings`. The table gives each
setting its variable, key of the file and parser, so that all agree.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import UsageError
from archsplit.system.env import cache_dir, config_dir
from archsplit.system.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__pure__ = True

_PREFIX = "ARCHSPLIT_CACHE_"
FILE_VARIABLE = "ARCHSPLIT_CACHE_CONFIG"
_MODES = ("on", "read-only", "verify", "off")


class Settings(NamedTuple):
    """Settings of the cache.

    Attributes:
        mode: ``on``; ``read-only``: store nothing; ``verify``: compile hits too, and compare;
            ``off``.
        folder: the local store.
        is_folder_chosen: False if the folder is the user's usual one.
        max_size: bytes; the least recently used entries are evicted first.
        min_seconds: results that took less CPU time are not stored.
        min_size: bytes; smaller results are not stored.
        strict: always preprocess: no direct mode.
        salt: any text; it is part of every key.
        base_dir: a folder whose name results don't depend on; ``auto``: the top of the tree; "" for
            no folder.
        lease: seconds to wait for another process that makes the same result; 0 for no wait.
        remote: addresses of remote stores, in the order of lookups.
        remote_mode: ``on``, or ``read-only``: store nothing there.
        remote_seconds: most seconds that all remote stores together may delay a process, without
            the time of hits.
    """

    folder: Path
    mode: str = "on"
    max_size: int = 10 * 10**9
    min_seconds: float = 0.01
    min_size: int = 0
    strict: bool = False
    salt: str = ""
    base_dir: str = ""
    lease: float = 60.0
    remote: tuple[str, ...] = ()
    remote_mode: str = "on"
    remote_seconds: float = 5.0
    is_folder_chosen: bool = True


class Setting(NamedTuple):
    """A row of the table: name, description and parser of a setting.

    Attributes:
        secret: True for text that may contain a password and must not be shown.
    """

    name: str
    description: str
    parse: Callable[[str], object]
    secret: bool = False

    @property
    def variable(self) -> str:
        """Return the environment variable; for the mode only the prefix."""
        # The mode is the switch of the whole cache, so it has the short name.
        if self.name == "mode":
            return _PREFIX.rstrip("_")
        return _PREFIX + self.name.upper().replace("-", "_")

    @property
    def field(self) -> str:
        """Return the attribute of `Settings`."""
        return "folder" if self.name == "dir" else self.name.replace("-", "_")


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"not one of {', '.join(words)}")
        return text

    return read


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError:
        raise ValueError("not a size, as 500M, 20G or 1.5Gi") from None


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise ValueError("not a number of seconds")


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False, "": False}
    if text.lower() not in words:
        raise ValueError("not yes or no")
    return words[text.lower()]


def _base_dir(text: str) -> str:
    if text in {"", "auto"}:
        return text
    folder = Path(text).expanduser()
    if not folder.is_absolute() or folder == Path("/"):
        raise ValueError("not `auto` or the absolute path of a folder below /")
    # Compilers get paths as the user writes them, so links stay.
    return os.path.normpath(folder)


def _addresses(text: str) -> tuple[str, ...]:
    # Imported late: most users have no addresses, and the import costs time.
    from urllib.parse import urlsplit  # noqa: PLC0415

    for address in text.split():
        with contextlib.suppress(ValueError):
            parts = urlsplit(address)
            if parts.scheme and parts.hostname and parts.port != 0:
                continue
        # Without the text, which may contain a password.
        raise ValueError(
            "not an address of a remote store with scheme and host, as https://host/cache"
        )
    return tuple(text.split())


SETTINGS_TABLE = (
    Setting("mode", "`on`, `read-only`, `verify` (compile and compare) or `off`", _one_of(*_MODES)),
    Setting("dir", "folder of the local store", lambda text: Path(text).expanduser()),
    Setting(
        "max-size", "size limit, as `20G`; the least recently used entries are evicted first", _size
    ),
    Setting("min-seconds", "results that took less CPU time aren't stored", _seconds),
    Setting("min-size", "smaller results aren't stored; as `4K`", _size),
    Setting("strict", "`yes`: always preprocess", _switch),
    Setting("salt", "any text, as part of every key; another salt gives other entries", str),
    Setting(
        "base-dir",
        "results lack this folder's name: hits in other checkouts; `auto`: the git work tree",
        _base_dir,
    ),
    Setting(
        "lease",
        "seconds to wait for another process that makes the same result; `0`: don't wait",
        _seconds,
    ),
    Setting("remote", "addresses of remote stores, separated by spaces", _addresses, secret=True),
    Setting("remote-mode", "`on`, or `read-only`: never upload", _one_of("on", "read-only")),
    Setting("remote-seconds", "time limit for remote stores in one process", _seconds),
)


def resolve_settings(environment: Mapping[str, str], *, mode: str | None = None) -> Settings:
    """Return the settings of the environment, else of the file, else the defaults.

    Args:
        mode: the value of ``--cache``, which goes before all others.
        environment: ``ARCHSPLIT_CACHE``, and the variables of the table; ``XDG_CONFIG_HOME``,
            ``XDG_CACHE_HOME`` and ``HOME`` lead to the folders.

    Raises:
        UsageError: a text is not a valid value; the message has its place.
    """
    path, file_texts = _read_file(environment)
    found: dict[str, object] = {"folder": Path(cache_dir(environment))}
    named: set[str] = set()
    for setting in SETTINGS_TABLE:
        texts = (
            (mode if setting.name == "mode" else None, "--cache"),
            (environment.get(setting.variable), setting.variable),
            (file_texts.get(setting.name), f"{setting.name} in {path}"),
        )
        for text, where in texts:
            # "" is a value: it switches a setting of the file off.
            if text is not None:
                found[setting.field] = _read(setting, text, where)
                named.add(setting.field)
                break
    found["is_folder_chosen"] = "folder" in named
    # The table's functions give each field what it must be.
    return Settings(**found)  # type: ignore[arg-type]


def active_settings(environment: Mapping[str, str], *, mode: str | None = None) -> Settings | None:
    """Return the settings; None if the cache is off.

    See `resolve_settings`.
    """
    settings = resolve_settings(environment, mode=mode)
    return None if settings.mode == "off" else settings


def _read(setting: Setting, text: str, where: str) -> object:
    try:
        return setting.parse(text)
    except ValueError as error:
        shown = "" if setting.secret else f" is {text!r}"
        raise UsageError(f"{where}{shown}: {error}") from None


def _read_file(environment: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    named, path = environment.get(FILE_VARIABLE), config_file(environment)
    try:
        text = path.read_text()
    except OSError as error:
        # A file that the user named must exist; the usual one may be missing.
        if named:
            raise UsageError(f"{FILE_VARIABLE}: can't read {path}: {error.strerror}") from None
        return path, {}
    return path, _toml(text, path)


def _toml(text: str, path: Path) -> dict[str, str]:
    # Imported late: most users have no such file, and the parser costs time.
    from archsplit.system.toml import loads  # noqa: PLC0415

    try:
        table = loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    # A misspelled key would otherwise be ignored for years.
    unknown = sorted(table.keys() - {setting.name for setting in SETTINGS_TABLE})
    if unknown:
        raise UsageError(f"{path}: unknown setting {', '.join(unknown)}")
    return {name: _text(value) for name, value in table.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def config_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the file with settings; the file may be missing."""
    named = environment.get(FILE_VARIABLE)
    return Path(named or f"{config_dir(environment)}/cache.toml")
