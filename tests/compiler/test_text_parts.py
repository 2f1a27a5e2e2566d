"""Parts of preprocessed texts say the same as the whole texts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from archsplit.compiler.file_resolver import has_moment_text
from archsplit.compiler.include_scan import TextScans
from archsplit.compiler.text_parts import TextParts
from archsplit.nvcc.preprocessed_text import include_markers, strip_unused_line_markers

if TYPE_CHECKING:
    from pathlib import Path

ASSERTION = b'__assert_fail ("a", __builtin_FILE (), __builtin_LINE (), __PRETTY_FUNCTION__);\n'
LINES = (
    b'# 1 "a.h" 1\n',
    b'# 1 "b \\" c.h" 1 3 4\n',
    b'# 1 "k.cu" 2\n',
    b'# 12 "k.cu"\n',
    b"\n",
    b"\n\n\n",
    b"int a;\n",
    b"#pragma once\n",
    b'const char *t = "# 1 \\"a.h\\" 1";\n',
    b'int b; # 1 "a.h" 1\n',
)
RARE = (
    b'const char *r = R"x(\n# 1 "a.h" 1\n\n)x";\n',
    b'const char *r = R"(a)";\n',
    b'const char *r = R"y(\n\n',
    b')y";\n',
    b'const char *t = "10:50:27";\n',
    b'# 1 "folder/Nov  5 2026" 1\n',
    b"int n = __builtin_LINE();\n",
    ASSERTION,
)


def written(tmp_path: Path, text: bytes) -> Path:
    path = tmp_path / "k.ii"
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("seed", range(8))
def test_parts_say_the_same_as_the_whole_text(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    plain = 0
    for _ in range(250):
        rare = choose.sample(RARE, choose.choice((0, 0, 1, 2)))
        lines = [*choose.choices(LINES, k=choose.randrange(12)), *rare]
        choose.shuffle(lines)
        text = b'# 0 "k.cu"\n' * choose.randrange(2) + b"".join(lines)
        text = text.removesuffix(b"\n") if choose.random() < 0.1 else text
        path = written(tmp_path, text)
        found = TextParts().without_markers(path)
        assert found in {None, strip_unused_line_markers(text)}, text
        assert TextParts().markers(path) == include_markers(text), text
        if has_moment_text(text):
            assert TextScans().preprocessed_file(path).has_moment, text
        plain += found is not None
    # Hardly any text needs the slow way.
    assert plain > 125


def test_each_part_is_looked_at_once(tmp_path: Path) -> None:
    seen: list[bytes] = []
    parts = TextParts()
    for number, target in enumerate((b"int sm_80;\n", b"int sm_90;\n")):
        path = tmp_path / f"{number}.ii"
        path.write_bytes(b'# 0 "k.cu"\n# 1 "a.h" 1\nint a;\n# 1 "b.h" 1\n' + target)
        parts.facts(path, seen.append)
    assert seen == [
        b'# 0 "k.cu"\n',
        b'# 1 "a.h" 1\nint a;\n',
        b'# 1 "b.h" 1\nint sm_80;\n',
        b'# 1 "b.h" 1\nint sm_90;\n',
    ]


def test_raw_string_over_two_parts_is_left_to_the_whole_text(tmp_path: Path) -> None:
    text = b'const char *r = R"x(\n# 1 "a.h" 1\n\n)x";\n'
    assert TextParts().without_markers(written(tmp_path, text)) is None


def test_assertion_has_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, b'# 1 "a.h" 1\n\n' + ASSERTION)
    assert b'"a.h", 2' in (TextParts().without_markers(path) or b"")
