"""Edits against the same changes made to bytes in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.devicecode.edits import (
    CopiedBytes,
    Edit,
    EditPiece,
    NewBytes,
    ZeroBytes,
    apply_edits,
    overwrite,
    total_size,
)
from archsplit.errors import BinaryFormatError

OLD = bytes(range(256))


def content(pieces: tuple[EditPiece, ...]) -> bytes:
    new = b""
    for piece in pieces:
        if isinstance(piece, CopiedBytes):
            new += OLD[piece.offset : piece.offset + piece.size]
        else:
            new += piece.content if isinstance(piece, NewBytes) else bytes(piece.size)
    return new


pieces = st.one_of(
    st.builds(NewBytes, content=st.binary(max_size=9)),
    st.builds(ZeroBytes, size=st.integers(0, 9)),
    st.integers(0, 200).flatmap(
        lambda at: st.builds(CopiedBytes, offset=st.just(at), size=st.just(7))
    ),
)


@st.composite
def edit_lists(draw: st.DrawFn) -> list[Edit]:
    points = sorted(draw(st.lists(st.integers(0, 256), max_size=12)))
    pairs = zip(points[::2], points[1::2], strict=False)
    return [
        Edit(start=start, end=end, pieces=tuple(draw(st.lists(pieces, max_size=3))))
        for start, end in pairs
    ]


@given(edit_lists(), st.randoms())
def test_the_new_file_is_the_old_one_with_each_range_replaced(
    edits: list[Edit], random: object
) -> None:
    expected, done = b"", 0
    for edit in edits:
        expected += OLD[done : edit.start] + content(edit.pieces)
        done = edit.end
    expected += OLD[done:]
    random.shuffle(shuffled := list(edits))  # type: ignore[attr-defined]
    found = apply_edits(edits, len(OLD))
    assert content(found) == expected
    assert total_size(found) == len(expected) == len(OLD) + sum(edit.growth for edit in edits)
    assert all(piece.size for piece in found)
    if len({(edit.start, edit.end) for edit in edits}) == len(edits):
        assert apply_edits(shuffled, len(OLD)) == found


def test_edits_without_a_change_are_one_copy() -> None:
    assert apply_edits([], 256) == (CopiedBytes(offset=0, size=256),)
    again = Edit(start=10, end=20, pieces=(CopiedBytes(offset=10, size=10),))
    assert apply_edits([again], 256) == (CopiedBytes(offset=0, size=256),)


@pytest.mark.parametrize(
    "edits",
    [
        [overwrite(4, b"abcd"), overwrite(6, b"ef")],
        [overwrite(254, b"abcd")],
        [Edit(start=9, end=8, pieces=())],
    ],
)
def test_overlapping_edits_are_refused(edits: list[Edit]) -> None:
    with pytest.raises(BinaryFormatError, match="overlaps"):
        apply_edits(edits, 256)
