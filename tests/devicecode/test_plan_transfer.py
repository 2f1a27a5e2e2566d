"""Plans as bytes, and back: windows become parts of the file that the reader has mapped."""

from __future__ import annotations

import pytest

from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.plan_transfer import decode_plan, encode_plan
from archsplit.errors import BinaryFormatError
from archsplit.formats.reader import Window, open_file
from handmade_samples import THREE, Maker, content_of, for_devices


def test_a_plan_comes_back_as_it_was(maker: Maker) -> None:
    path = maker.library(THREE)
    old = path.read_bytes()
    plan = plan_rewrite(open_file(path), FileEdit(selection=for_devices("9.0")))
    assert plan.is_changed
    content = encode_plan(plan)
    # Nothing of the file is in it.
    assert len(content) < len(old)
    file = open_file(path)
    found = decode_plan(content, file)
    assert found.window is file
    assert (found.pieces, found.form, found.size) == (plan.pieces, plan.form, plan.size)
    assert content_of(found, old) == content_of(plan, old)
    for before, after in zip(plan.containers, found.containers, strict=True):
        assert (after.entries, after.kept, after.section) == (
            before.entries,
            before.kept,
            before.section,
        )
        assert after.container.body.source == before.container.body.source
        assert after.container.body.to_bytes() == before.container.body.to_bytes()
    with pytest.raises(BinaryFormatError, match="part of a plan"):
        decode_plan(content, Window(old[:100], source="cut"))
