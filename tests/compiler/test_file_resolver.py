"""Names that become files: equal headers, and names relative to the include folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.file_resolver import FileResolver, has_equal_headers, unread_headers
from archsplit.compiler.include_scan import (
    ObservedReads,
    TextScans,
    _searched_for,
    describe_reads,
)
from archsplit.compiler.step_cache import include_spelling

if TYPE_CHECKING:
    from pathlib import Path

ONCE = "#pragma once\nint a;\n"
OTHER = "#pragma once\nint b;\n"
GUARDED = "#ifndef A\n#define A\nint a;\n#endif\n"


def resolver(folder: Path, *includes: str) -> FileResolver:
    digests = FileDigests(folder)
    return FileResolver(
        cwd=folder, environment={}, digests=digests, group="a request", includes=includes
    )


@pytest.mark.parametrize(
    ("files", "read", "is_equal"),
    [
        # Each header is read once, and has no equal.
        ({"inc/a.h": ONCE, "inc/b.h": OTHER}, ("inc/a.h", "inc/b.h"), False),
        ({"inc/a.h": ONCE, "inc/b.h": ONCE}, ("inc/a.h", "inc/b.h"), True),
        ({"inc/a.h": GUARDED, "inc/b.h": GUARDED}, ("inc/a.h", "inc/b.h"), False),
        # A header that was not read, because the compiler took it for the one that was.
        ({"inc/a.h": ONCE, "inc/b.h": ONCE}, ("inc/a.h",), True),
        ({"inc/a.h": ONCE, "inc/b.h": OTHER}, ("inc/a.h",), False),
        # In a folder that is not searched.
        ({"inc/a.h": ONCE, "more/b.h": ONCE}, ("inc/a.h",), False),
    ],
)
def test_equal_pragma_once_headers_are_found(
    tmp_path: Path, files: dict[str, str], read: tuple[str, ...], *, is_equal: bool
) -> None:
    source = b"#include <a.h>\n#include <b.h>\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    headers = {f"{tmp_path}/{name}": files[name].encode() for name in read}
    headers[f"{tmp_path}/k.cu"] = source
    assert has_equal_headers(headers, unread_headers(headers, [f"{tmp_path}/inc"])) is is_equal


@pytest.mark.parametrize(("named", "is_equal"), [('"b.h"', True), ("<b.h>", False)])
def test_equal_header_beside_the_source_counts_in_quotes(
    tmp_path: Path, named: str, *, is_equal: bool
) -> None:
    (tmp_path / "inc").mkdir()
    for name in ("inc/a.h", "b.h"):
        (tmp_path / name).write_text(ONCE)
    headers = {
        f"{tmp_path}/inc/a.h": ONCE.encode(),
        f"{tmp_path}/k.cu": f"#include <a.h>\n#include {named}\n".encode(),
    }
    assert has_equal_headers(headers, unread_headers(headers, [f"{tmp_path}/inc"])) is is_equal


def test_path_in_an_include_folder_is_relative_to_it() -> None:
    includes = ("/own/inc", "/more/../inc")
    assert include_spelling("/inc/sub/a.h", includes) == "<include>/sub/a.h"
    assert include_spelling("/include/a.h", includes) == "/include/a.h"


@pytest.mark.parametrize(
    ("text", "programs"),
    [(b"int a;", ()), (b'char *a = "22:13:20";', (("$SOURCE_DATE_EPOCH", "1700691200"),))],
)
def test_set_clock_is_a_condition_for_texts_with_its_time(
    tmp_path: Path, text: bytes, programs: tuple[tuple[str, str], ...]
) -> None:
    reading = ObservedReads((), (), (), (), 0, "1700691200", preprocessed=(text,))
    read = describe_reads(reading, resolver(tmp_path), TextScans())
    assert read is not None
    assert read.row.programs == programs


def test_missing_headers_are_not_equal(tmp_path: Path) -> None:
    headers = {f"{tmp_path}/inc/a.h": ONCE.encode(), f"{tmp_path}/inc/b.h": OTHER.encode()}
    assert not has_equal_headers(headers, unread_headers(headers, [f"{tmp_path}/inc"]))


def test_name_is_relative_to_each_containing_folder(tmp_path: Path) -> None:
    looked = resolver(tmp_path, "inc", f"{tmp_path}/inc/deep", "../other")
    files = ("inc/deep/a.h", f"{tmp_path}/inc/b.h", "inc/../c.h", "/usr/include/d.h")
    assert set(_searched_for(files, looked)) == {"deep/a.h", "a.h", "b.h", "../c.h"}
