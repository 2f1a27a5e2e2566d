"""RECORDs of installed packages: read as loosely as installers write, changed only on request."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import InputError, WheelError
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.record import (
    InstalledDistribution,
    InstalledFile,
    RecordRow,
    read_distributions,
)
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from pathlib import Path

RECORD = (
    "../../../bin/tool,sha256=AAAA,12\r\n"
    '"a, b/lib.so",sha256=BBBB,7\r\n'
    "a/./__pycache__/x.pyc,,\r\n"
    "/etc/a.conf,,\r\n"
    "a-1.dist-info/RECORD,,\r\n"
)


def installed(site: Path, record: str = RECORD, name: str = "a-1") -> Path:
    own = site / f"{name}.dist-info"
    own.mkdir()
    (own / "RECORD").write_bytes(record.encode())
    return own


def test_distributions_come_by_name(tmp_path: Path) -> None:
    for name in ("b-2", "a-1"):
        installed(tmp_path, name=name)
    (tmp_path / "c-3.dist-info").mkdir()  # as some distributors install: without RECORD
    (tmp_path / "a").mkdir()
    found = list(read_distributions(tmp_path))
    assert [(each.name, each.record) for each in found] == [
        ("a-1", "a-1.dist-info/RECORD"),
        ("b-2", "b-2.dist-info/RECORD"),
    ]


def test_places_are_within_site_packages(tmp_path: Path) -> None:
    installed(tmp_path)
    (found,) = read_distributions(tmp_path)
    assert [row.normalized_path for row in found.rows] == [
        None,
        "a, b/lib.so",
        "a/__pycache__/x.pyc",
        None,
        "a-1.dist-info/RECORD",
    ]


def test_only_changed_rows_of_record_change(tmp_path: Path) -> None:
    own = installed(tmp_path)
    (found,) = read_distributions(tmp_path)
    assert found.updated_record({}) == (own / "RECORD").read_bytes()
    entries = {
        path: RecordRow(path=path, digest=hashlib.sha256(b"new").digest(), size=3)
        for path in ("a, b/lib.so", "a-1.dist-info/note.json")
    }
    text = entries["a, b/lib.so"].hash_text
    expected = RECORD.replace("sha256=BBBB,7", f"{text},3")
    expected += f"a-1.dist-info/note.json,{text},3\r\n"
    assert found.updated_record(entries).decode() == expected


def test_lines_end_as_they_did() -> None:
    row = InstalledFile(path="x", hash_text="", size="")
    assert InstalledDistribution(folder="a-1.dist-info", rows=(row,)).updated_record({}) == b"x,,\n"


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (b"one,two\n", "row 1 has 2 columns, not 3"),
        (b"\xff,,\n", "is not CSV in UTF-8"),
        (b'"a"b,,\n', "is not CSV in UTF-8"),
    ],
)
def test_a_damaged_one_is_refused(record: bytes, match: str, tmp_path: Path) -> None:
    (installed(tmp_path) / "RECORD").write_bytes(record)
    with pytest.raises(WheelError, match=match):
        list(read_distributions(tmp_path))


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read"):
        list(read_distributions(tmp_path / "missing"))


def test_members_are_installed_by_their_scheme(tmp_path: Path) -> None:
    members = {
        "foo/a.py": None,
        "foo-1.data/purelib/foo/b.py": "foo/b.py",
        "foo-1.data/platlib/foo/c.so": "foo/c.so",
        "foo-1.data/scripts/foo": "",
    }
    path = tmp_path / "foo-1-py3-none-any.whl"
    with path.open("wb") as file:
        content = {
            **dict.fromkeys(members, b"x"),
            "foo-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: foo\nVersion: 1\n",
            "foo-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\n"
            b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        packed = {name: pack(text) for name, text in content.items()}
        write_members(file, WheelName.parse(path.name), packed)
    with open_wheel(path) as wheel:
        for name, place in members.items():
            assert wheel.installed_path(name) == (name if place is None else place or None)
