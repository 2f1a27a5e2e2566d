"""Rewritten files as they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.apply import _put_word, write_plan
from archsplit.devicecode.edits import CopiedBytes
from archsplit.devicecode.file_plan import FilePlan
from archsplit.errors import InputError
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from pathlib import Path


def test_shortened_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"short")
    plan = FilePlan(
        window=Window(bytes(10), source="source"),
        form=None,
        containers=(),
        pieces=(CopiedBytes(offset=0, size=10),),
    )
    with pytest.raises(InputError, match="became shorter"):
        write_plan(source, plan, tmp_path / "target")


def test_word_across_two_blocks_is_put_in_both() -> None:
    blocks = [bytearray(8), bytearray(8), bytearray(8)]
    for start, block in enumerate(blocks):
        _put_word(block, 5 - 8 * start, b"01234567")
    assert blocks == [b"\0\0\0\0\x00012", b"34567\0\0\0", bytes(8)]
