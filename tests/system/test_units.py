from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from archsplit.cache.config import resolve_settings
from archsplit.errors import UsageError
from archsplit.recipe.policy import SizeText
from archsplit.system.units import count_text, parse_size, short_size, size_text, size_texts


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 10**8), ("1.5 GiB", 3 * 2**29), ("12", 12), ("7kB", 7000), ("0B", 0)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("20G", 20 * 10**9), ("1T", 10**12), ("1TiB", 2**40), ("4k", 4000), ("4Ki", 4096)],
)
def test_a_size_is_one_number_everywhere(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert resolve_settings({"ARCHSPLIT_CACHE_MAX_SIZE": text}).max_size == size
    assert TypeAdapter(SizeText).validate_python(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1PB", "1IB", "1 0MB", "ten"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (-1500, "-1.5 kB"), (131_748_579, "131.7 MB"), (2**31, "2.15 GB")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        # Each by itself: 7.9, 64.2 and 4.3 MB, which is 76.4.
        ((7_870_000, 64_160_000, 4_310_000), ("7.9 MB", "64.1 MB", "4.3 MB")),
        ((40_000, 700_000, 31_300_000), ("40.0 kB", "0.7 MB", "31.3 MB")),
        ((843_240_000, 386_770_000), ("0.84 GB", "0.39 GB")),
        ((1, 0, 2), ("1 B", "0 B", "2 B")),
        ((), ()),
    ],
)
def test_parts_add_up_as_they_are_printed(sizes: tuple[int, ...], texts: tuple[str, ...]) -> None:
    assert size_texts(sizes) == texts


@given(st.lists(st.integers(0, 4 * 10**9), min_size=1, max_size=6))
def test_printed_parts_are_the_printed_sum(sizes: list[int]) -> None:
    total, unit = size_text(sum(sizes)).split()
    texts = [text.split() for text in size_texts(sizes)]
    parts = sum(Decimal(number) for number, of in texts if of == unit)
    assert parts == Decimal(total)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (-26_351, "-26.4 kB"),
        (9_996, "10.0 kB"),
        (131_700_000, "132 MB"),
        (999_960, "1.00 MB"),
        (7_574_000_000, "7.57 GB"),
        (1_234_500_000_000, "1230 GB"),
    ],
)
def test_short_size_has_three_significant_digits(size: int, text: str) -> None:
    assert short_size(size) == text


def test_one_thing_is_singular() -> None:
    assert [count_text(number, "image") for number in (0, 1, 2)] == [
        *("0 images", "1 image", "2 images")
    ]
    assert [count_text(number, "file is", "files are") for number in (1, 2)] == [
        *("1 file is", "2 files are")
    ]
