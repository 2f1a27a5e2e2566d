from __future__ import annotations

import os
import pwd
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

import pytest

from archsplit.errors import UsageError
from archsplit.system.env import (
    ZIP_EPOCH,
    build_date,
    cache_dir,
    clean_environment,
    config_dir,
    has_epoch,
    source_date_epoch,
    without_credentials,
    without_passwords,
)


def test_without_the_variable_it_is_never_the_clock() -> None:
    assert source_date_epoch({}) == ZIP_EPOCH
    assert source_date_epoch({"SOURCE_DATE_EPOCH": ""}) == ZIP_EPOCH


def test_the_variable_is_used_from_1980_on() -> None:
    assert source_date_epoch({"SOURCE_DATE_EPOCH": "1700000000"}) == 1700000000
    assert source_date_epoch({"SOURCE_DATE_EPOCH": "0"}) == ZIP_EPOCH


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "²"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        source_date_epoch({"SOURCE_DATE_EPOCH": text})


@pytest.mark.parametrize(
    ("seconds", "day"),
    [
        (1795219199, "20261120"),
        (1795219200, "20261121"),
        (253402300799, "99991231"),
        (0, "19800101"),
    ],
)
def test_date_comes_from_the_variable_in_utc(
    seconds: int, day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    environment = {"SOURCE_DATE_EPOCH": str(seconds)}
    assert has_epoch(environment)
    assert build_date(environment) == day
    monkeypatch.undo()
    time.tzset()


def test_without_the_variable_a_version_has_the_date_of_today() -> None:
    before = datetime.now(timezone.utc)
    found = build_date({"SOURCE_DATE_EPOCH": ""})
    assert found in {f"{moment:%Y%m%d}" for moment in (before, datetime.now(timezone.utc))}


@pytest.mark.parametrize("text", ["253402300800", "1795219200000", "9" * 5000])
def test_time_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="after the year 9999"):
        source_date_epoch({"SOURCE_DATE_EPOCH": text})


def test_clean_environment_has_no_output_variables() -> None:
    dirty = {"PATH": "/bin", "CPATH": "/x", "NVCC_APPEND_FLAGS": "-G", "LC_ALL": "de_DE", "TZ": "X"}
    clean = clean_environment(dirty, temporary=Path("/t"), epoch=5)
    assert clean == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "TMPDIR": "/t",
        "SOURCE_DATE_EPOCH": "5",
        "PYTHONHASHSEED": "0",
    }


def test_the_code_of_others_gets_no_credentials() -> None:
    kept = {"PATH": "/bin", "HTTPS_PROXY": "http://proxy", "PIP_INDEX_URL": "https://host/simple"}
    secret = (
        *("TWINE_PASSWORD", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"),
        *("PYPI_ID_TOKEN", "CIRCLE_OIDC_TOKEN_V2", "ID_TOKEN"),
    )
    assert without_credentials({**kept, **dict.fromkeys(secret, "secret")}) == kept


def test_relative_folders_of_the_user_are_ignored() -> None:
    home = {"HOME": "/home/me"}
    named = {"XDG_CONFIG_HOME": "settings", "XDG_CACHE_HOME": "c", "ARCHSPLIT_CACHE_DIR": "d"}
    assert config_dir({**home, **named}) == config_dir(home) == "/home/me/.config/archsplit"
    assert cache_dir({**home, **named}) == cache_dir(home) == "/home/me/.cache/archsplit"
    own = f"{pwd.getpwuid(os.getuid()).pw_dir}/.cache/archsplit"
    assert cache_dir({"HOME": ""}) == cache_dir({}) == own
    assert config_dir({"XDG_CONFIG_HOME": "/etc/xdg"}) == "/etc/xdg/archsplit"
    assert cache_dir({"ARCHSPLIT_CACHE_DIR": "/cache"}) == "/cache"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/simple", "https://host/simple"),
        ("https://me:p@ss@host/simple: no", "https://host/simple: no"),
        ("https://host/a@b and s3://me@bucket", "https://host/a@b and s3://bucket"),
        ("https://host?mail=me@example.org", "https://host?mail=me@example.org"),
    ],
)
def test_passwords_of_addresses_are_not_shown(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_user_without_an_account_has_its_cache_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(user: int) -> NoReturn:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", lacking)
    assert cache_dir({}) == "/.cache/archsplit"
