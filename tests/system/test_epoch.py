from __future__ import annotations

from pathlib import Path

import pytest

from splitter.errors import UsageError
from splitter.system.environment import clean_environment
from splitter.system.epoch import ZIP_EPOCH, source_date_epoch


def test_without_the_variable_it_is_never_the_clock() -> None:
    assert source_date_epoch({}) == ZIP_EPOCH
    assert source_date_epoch({"SOURCE_DATE_EPOCH": ""}) == ZIP_EPOCH


def test_the_variable_counts_but_never_before_1980() -> None:
    assert source_date_epoch({"SOURCE_DATE_EPOCH": "1700000000"}) == 1700000000
    assert source_date_epoch({"SOURCE_DATE_EPOCH": "0"}) == ZIP_EPOCH


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "²"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        source_date_epoch({"SOURCE_DATE_EPOCH": text})


def test_the_clean_environment_has_nothing_that_moves_results() -> None:
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
