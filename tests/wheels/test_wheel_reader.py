from __future__ import annotations

import base64
import hashlib
import io
import os
import random
import re
import struct
import time
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.sources import WheelFile
from wheel_samples import (
    EPOCH,
    RECORD,
    TOY_FILES,
    TOY_NAME,
    core_plan,
    hash_of,
    record_of,
    toy_wheel,
    zipped,
)

from archsplit.errors import InputError, WheelError
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.reader import is_sound_without_record, open_wheel
from archsplit.wheels.record import RecordRow
from archsplit.wheels.writer import write_wheel
from archsplit.wheels.zip_reader import open_archive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WHEEL = "toy-1.0.dist-info/WHEEL"
METADATA = "toy-1.0.dist-info/METADATA"


def check(path: Path) -> None:
    with open_wheel(path) as wheel:
        wheel.check_contents()


def test_time_to_check_a_wheel_grows_with_its_members_and_not_faster(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        files = {**TOY_FILES, **{f"toy/{n % 50}/{n}": b"" for n in range(count)}}
        members = [(zipfile.ZipInfo(name), text) for name, text in files.items()]
        path = zipped(
            tmp_path / str(TOY_NAME), [*members, (zipfile.ZipInfo(RECORD), record_of(files))]
        )
        began = time.process_time()
        check(path)
        return time.process_time() - began

    few = min(seconds(1_500) for _ in range(3))
    # Eight times the members: about 8 times the seconds, and 64 times with a search in each row.
    assert seconds(12_000) < 24 * few


def test_written_wheel_reads_back(tmp_path: Path) -> None:
    plan = core_plan()
    with open_wheel(write_wheel(tmp_path, plan, epoch=EPOCH)) as wheel:
        wheel.check_contents()
        assert wheel.name == plan.name
        assert wheel.dist_info == plan.name.dist_info
        assert wheel.info == WheelInfo(generator=plan.generator, tags=plan.name.tags)
        assert wheel.names == tuple(wheel.record)
        assert wheel.names == (*(m.name for m in plan.contents()), f"{wheel.dist_info}/RECORD")
        assert {m.name: wheel.read(m.name) for m in plan.contents()} == {
            m.name: m.content for m in plan.contents()
        }
        assert wheel.metadata().license_files == ["LICENSE", "third_party/NOTICE"]


def test_signed_wheel_of_another_tool_is_accepted(tmp_path: Path) -> None:
    signed = {f"{RECORD}.jws": b"{}", f"{RECORD}.p7s": b""}
    path = toy_wheel(tmp_path, signed, record=record_of(TOY_FILES))
    check(path)
    with open_wheel(path) as wheel, pytest.raises(WheelError, match="is missing"):
        wheel.read("toy/nothing.py")


def test_record_listing_its_own_signature_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"RECORD\.jws: in RECORD, which it signs"):
        check(toy_wheel(tmp_path, {f"{RECORD}.jws": b"{}"}))


def test_stronger_hashes_are_fine(tmp_path: Path) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha512(b"").digest()).decode().rstrip("=")
    record = record_of(TOY_FILES) + f"toy/empty,sha512={digest},0\n".encode()
    check(toy_wheel(tmp_path, {"toy/empty": b""}, record=record))


def test_faults_of_large_and_small_members_are_listed_together(tmp_path: Path) -> None:
    large = {f"toy/{name}.so": name.encode() * (2 << 20) for name in "abc"}
    files = {**TOY_FILES, **large}
    check(toy_wheel(tmp_path, large, record=record_of(files)))
    lies = {**files, "toy/a.so": b"A" * (2 << 20), "toy/c.so": b"C" * (2 << 20)}
    path = toy_wheel(tmp_path, large, record=record_of({**lies, "toy/__init__.py": b"x" * 12}))
    with pytest.raises(WheelError) as caught:
        check(path)
    found = [line.strip() for line in caught.value.message.splitlines()[1:]]
    expected = ("toy/__init__.py", "toy/a.so", "toy/c.so")
    assert found == [f"{name} doesn't match its hash in RECORD" for name in expected]


def test_folders_are_passed_over(tmp_path: Path) -> None:
    path = toy_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("toy/empty/", b"")
    check(path)


def test_sizes_after_the_content_are_accepted(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**TOY_FILES, RECORD: record_of(TOY_FILES)}.items():
            archive.writestr(name, content)
    (tmp_path / TOY_NAME).write_bytes(pipe.getvalue())
    check(tmp_path / TOY_NAME)


def test_member_different_from_record_is_not_read(tmp_path: Path) -> None:
    changed = {"toy/__init__.py": b"ANSWER = 43\n"}
    path = toy_wheel(tmp_path, changed, record=record_of(TOY_FILES))
    with open_wheel(path) as wheel:
        assert wheel.read("toy/text, with a comma.txt") == b"x" * 300
        with pytest.raises(WheelError, match=r"toy/__init__\.py doesn't match its hash in RECORD"):
            wheel.read("toy/__init__.py")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({WHEEL: None}, f"{WHEEL} is missing"),
        ({METADATA: None}, f"{METADATA} is missing"),
        ({WHEEL: b""}, "0 lines Wheel-Version"),
        ({METADATA: b"Name: joy\nVersion: 1.0\n"}, "METADATA is of joy 1.0, another release"),
        ({METADATA: b"Name: toy\nVersion: 1.1\n"}, "METADATA is of toy 1.1, another release"),
        ({METADATA: b"Name: toy\n"}, "METADATA is of toy , another release"),
        (
            {"joy-1.0.dist-info/METADATA": b""},
            "folders *.dist-info: joy-1.0.dist-info, toy-1.0.dist-info; expected one",
        ),
        (
            {WHEEL: TOY_FILES[WHEEL].replace(b"any", b"win_amd64")},
            "WHEEL has the tags py3-none-win_amd64, the file name py3-none-any",
        ),
        ({WHEEL: TOY_FILES[WHEEL] + b"Build: 1\n"}, "build tag '1', the file name ''"),
    ],
)
def test_wheel_with_wrong_metadata_files_is_refused(
    tmp_path: Path, changes: Mapping[str, bytes | None], message: str
) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        check(toy_wheel(tmp_path, changes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("joy-1.0-py3-none-any.whl", "toy-1.0.dist-info is of another release"),
        ("toy-1.0.1-py3-none-any.whl", "toy-1.0.dist-info is of another release"),
        ("toy-1.0-1-py3-none-any.whl", "build tag '', the file name '1'"),
        ("toy-1.0-py2.py3-none-any.whl", "the file name py2-none-any, py3-none-any"),
        ("toy.whl", "not the file name of a wheel"),
    ],
)
def test_wheel_under_another_name_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        check(toy_wheel(tmp_path, name=name))


ROWS = record_of(TOY_FILES)
INIT = f'"toy/__init__.py",{hash_of(TOY_FILES["toy/__init__.py"])},12\n'.encode()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "toy/__init__.py: not in RECORD"),
        (ROWS.replace(INIT, b""), "toy/__init__.py: not in RECORD"),
        (ROWS.replace(f"{RECORD},,\n".encode(), b""), f"{RECORD}: not in RECORD"),
        (ROWS + INIT, "toy/__init__.py: RECORD has 2 rows of it"),
        (ROWS + b"toy/gone.py,,\n", "toy/gone.py: in RECORD, but not in the archive"),
        (ROWS.replace(b",12\n", b",13\n"), "toy/__init__.py: 12 bytes, and 13 bytes in RECORD"),
        (ROWS.replace(b",12\n", b",\n"), "toy/__init__.py: 12 bytes, and no size in RECORD"),
        (ROWS.replace(INIT, b"toy/__init__.py,,12\n"), "toy/__init__.py: RECORD has no hash of it"),
        (ROWS.replace(b"sha256", b"md5"), "RECORD, row 1"),
        (ROWS.replace(b"RECORD,,", b"RECORD,,5"), "RECORD: it can't have its own hash and size"),
        (
            ROWS.replace(hash_of(b"x" * 300).encode(), hash_of(b"").encode()),
            "match its hash in RECORD",
        ),
        (b"\xff", "RECORD is not CSV"),
    ],
)
def test_wheel_with_wrong_record_is_refused(tmp_path: Path, record: bytes, message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        check(toy_wheel(tmp_path, record=record))


@pytest.mark.parametrize(
    ("record", "note"),
    [
        (ROWS.replace(b",12\n", b",13\n"), "__init__.py: 12 bytes, and 13 bytes in RECORD (row 1)"),
        (ROWS + b"toy/gone.py,,\n", "toy/gone.py: in RECORD, but not in the archive (row"),
        (ROWS.replace(b"sha256", b"md5"), "RECORD, row 1"),
        (
            ROWS.replace(hash_of(b"x" * 300).encode(), hash_of(b"").encode()),
            "RECORD has another hash (row ",
        ),
        (b"", "toy/__init__.py: not in RECORD"),
        (b"\xff", "RECORD is not CSV"),
    ],
)
def test_wrong_record_without_effect_is_noted(tmp_path: Path, record: bytes, note: str) -> None:
    path = toy_wheel(tmp_path, record=record)
    assert is_sound_without_record(path)
    with open_wheel(path, ignore_record=True) as wheel:
        wheel.check_contents()
        assert any(note in each for each in wheel.info.notes)
        assert wheel.record.keys() == set(wheel.names)
        assert wheel.record["toy/__init__.py"].hash_text == hash_of(TOY_FILES["toy/__init__.py"])
        assert wheel.record[RECORD].digest is None


def test_many_record_faults_are_summed_up_in_few_notes(tmp_path: Path) -> None:
    many = {f"toy/{number}": b"" for number in range(9)}
    with open_wheel(toy_wheel(tmp_path, many, record=ROWS), ignore_record=True) as wheel:
        assert wheel.info.notes[-1] == "RECORD is wrong in 4 more rows"


def test_nothing_else_is_ignored_with_the_record(tmp_path: Path) -> None:
    assert not is_sound_without_record(toy_wheel(tmp_path, {WHEEL: b""}))
    with open_wheel(toy_wheel(tmp_path), ignore_record=True) as wheel:
        assert wheel.info.notes == ()
    assert not is_sound_without_record(toy_wheel(tmp_path))
    assert not is_sound_without_record(tmp_path / "toy-2.0-py3-none-any.whl")


def test_a_record_as_large_as_no_record_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsplit.wheels.reader.MAX_TEXT_BYTES", 100)
    with pytest.raises(WheelError, match="RECORD has more than 100 bytes"):
        check(toy_wheel(tmp_path))


def test_all_findings_are_listed_by_name(tmp_path: Path) -> None:
    changes = {WHEEL: b"", METADATA: b"", "toy/more.py": b""}
    path = toy_wheel(tmp_path, changes, record=ROWS)
    with pytest.raises(WheelError) as caught:
        check(path)
    title, *findings, hint = str(caught.value).splitlines()
    assert title == f"{path} is not a sound wheel:"
    assert hint == "hint: download it again, or build it again"
    assert [finding.split(" ")[2] for finding in findings] == [
        "METADATA",
        "WHEEL",
        f"{METADATA}:",
        f"{WHEEL}:",
        "toy/more.py:",
    ]


def test_all_differing_contents_are_listed(tmp_path: Path) -> None:
    changes = {"toy/__init__.py": b"ANSWER = 43\n", "toy/text, with a comma.txt": b"y" * 300}
    with pytest.raises(WheelError) as caught:
        check(toy_wheel(tmp_path, changes, record=ROWS))
    assert len(caught.value.message.splitlines()) == 3


def test_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        check(tmp_path / TOY_NAME)
    (tmp_path / TOY_NAME).mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        check(tmp_path / TOY_NAME)


@pytest.mark.timeout(10)
def test_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / TOY_NAME)
    with pytest.raises(InputError, match="not a regular file"):
        check(tmp_path / TOY_NAME)


def test_failing_read_is_an_input_error(tmp_path: Path) -> None:
    """A folder in the place of the open file stands for a disk that fails."""
    folder = os.open(tmp_path, os.O_RDONLY)
    path = toy_wheel(tmp_path, {"toy/large": os.urandom(1 << 20)})
    with open_wheel(path) as wheel:
        file = wheel.archive._zip.fp
        assert file is not None
        os.dup2(folder, file.fileno())
        with pytest.raises(InputError, match="Is a directory"):
            wheel.read("toy/large")
    os.close(folder)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip file" * 100, b"PK\5\6" + bytes(18)])
def test_file_other_than_a_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TOY_NAME).write_bytes(content)
    with pytest.raises(WheelError):
        check(tmp_path / TOY_NAME)


def test_wheel_truncated_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = toy_wheel(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(WheelError):
            check(path)


def contents(path: Path) -> dict[str, bytes]:
    """Read a whole wheel; what we find sound, installer must find sound."""
    with open_wheel(path) as wheel:
        found = {name: wheel.read(name) for name in wheel.names}
    with WheelFile.open(path) as source:
        source.validate_record()
    return found


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_is_refused_or_changes_nothing(tmp_path: Path, flip: int) -> None:
    path = toy_wheel(tmp_path)
    whole, expected = path.read_bytes(), contents(path)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        try:
            assert contents(path) == expected, place
        except WheelError:
            continue


@given(
    place=st.floats(0, 1),
    length=st.integers(0, 40),
    other=st.binary(max_size=40) | st.sampled_from([b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6"]),
)
def test_bytes_put_in_or_cut_out(
    tmp_path_factory: pytest.TempPathFactory, place: float, length: int, other: bytes
) -> None:
    path = toy_wheel(tmp_path_factory.getbasetemp())
    whole, expected = path.read_bytes(), contents(path)
    at = int(place * len(whole))
    path.write_bytes(whole[:at] + other + whole[at + length :])
    try:
        assert contents(path) == expected
    except WheelError:
        return


@given(
    place=st.integers(0, len(record_of(TOY_FILES)) - 1),
    length=st.integers(0, 60),
    other=st.text('abtoy/.,=_-\n"0123456789', max_size=20).map(str.encode) | st.binary(max_size=5),
)
def test_changed_record_is_read_as_it_is_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: int, length: int, other: bytes
) -> None:
    record = ROWS[:place] + other + ROWS[place + length :]
    path = toy_wheel(tmp_path_factory.getbasetemp(), record=record)
    try:
        assert contents(path)[RECORD] == record
    except WheelError:
        return


def member(name: str, **changes: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    for field, value in changes.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (member("../evil.py"), "../evil.py: it has an empty, '.' or '..' component"),
        (member("/evil.py"), "/evil.py: it is absolute"),
        (member("toy\\evil.py"), "toy\\evil.py: it has a backslash"),
        (member("toy/evil.py", external_attr=0o120777 << 16), "it is a symbolic link"),
        (member("toy/evil.py", external_attr=0o010644 << 16), "neither a file nor a folder"),
        (member("toy/evil.py", external_attr=0o140644 << 16), "neither a file nor a folder"),
        (member("toy/evil/", external_attr=0o100644 << 16), "neither a file nor a folder"),
        (member("toy/evil.py", compress_type=zipfile.ZIP_BZIP2), "method 12, neither stored"),
        (member("toy/evil.py", compress_type=zipfile.ZIP_LZMA), "method 14, neither stored"),
        (member("toy/__init__.py/evil.py"), "toy/__init__.py: is a file, and a folder of others"),
    ],
)
def test_members_not_allowed_in_a_wheel_are_refused(
    tmp_path: Path, info: zipfile.ZipInfo, message: str
) -> None:
    path = zipped(tmp_path / TOY_NAME, [(member("toy/__init__.py"), b""), (info, b"")])
    with pytest.raises(WheelError, match=re.escape(message)):
        check(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_member_is_refused(tmp_path: Path) -> None:
    members = [(member("toy/a.py"), b"good"), (member("toy/a.py"), b"evil")]
    with pytest.raises(WheelError, match=re.escape("toy/a.py: occurs 2 times")):
        check(zipped(tmp_path / TOY_NAME, members))


CENTRAL = struct.Struct("<4s6H3L5H2L")
METHOD, CRC, PACKED, UNPACKED, FLAGS = 4, 7, 8, 9, 3


def patched(path: Path, *, central: Mapping[int, int] = {}, local: Mapping[int, int] = {}) -> None:
    """Change fields of the first member's entry in the directory, and of its own header."""
    content = bytearray(path.read_bytes())
    for at, layout, changes, shift in (
        (content.index(b"PK\1\2"), CENTRAL, central, 0),
        (0, struct.Struct("<4s5H3L2H"), local, 1),
    ):
        fields = list(layout.unpack_from(content, at))
        for index, value in changes.items():
            fields[index - shift] = value
        layout.pack_into(content, at, *fields)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("central", "local", "message"),
    [
        ({FLAGS: 1}, {}, "toy/__init__.py: it is encrypted"),
        ({FLAGS: 0x40}, {}, "toy/__init__.py: it is encrypted"),
        ({UNPACKED: 1 << 20}, {}, "bytes can't unpack to 1048576"),
        ({UNPACKED: 13}, {UNPACKED: 13}, "match the size in the archive"),
        ({UNPACKED: 11}, {UNPACKED: 11}, "match the size in the archive"),
        ({METHOD: 0}, {METHOD: 0}, "stored bytes have the size 12"),
        ({PACKED: 5000}, {}, "overlaps the next member"),
        ({}, {METHOD: 0}, "another method or other flags in its header"),
        ({}, {FLAGS: 0x800}, "another method or other flags in its header"),
        ({}, {UNPACKED: 13}, "another size or checksum in its header"),
        ({}, {CRC: 0}, "another size or checksum in its header"),
        ({CRC: 0}, {CRC: 0}, "is damaged: its content doesn't match the checksum in the archive"),
        ({16: 3}, {}, "no header at its offset"),
    ],
)
def test_contradictory_headers_are_refused(
    tmp_path: Path, central: Mapping[int, int], local: Mapping[int, int], message: str
) -> None:
    record = ROWS.replace(b",12\n", f",{central.get(UNPACKED, 12)}\n".encode())
    path = toy_wheel(tmp_path, record=record)
    patched(path, central=central, local=local)
    with pytest.raises(WheelError, match=re.escape(message)):
        check(path)


@pytest.mark.parametrize("size", [11, 13])
def test_member_stream_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = toy_wheel(tmp_path)
    patched(path, central={UNPACKED: size}, local={UNPACKED: size})
    with (
        open_archive(path) as archive,
        archive.open(RecordRow(path="toy/__init__.py")) as stream,
        pytest.raises(WheelError, match="match the size in the archive"),
    ):
        stream.read()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"toy/text", b"toy/tex\0", "it has control characters"),
        (b"toy/text", b"toy/t\xe9xt", "its name is not marked as UTF-8"),
    ],
)
def test_ambiguous_member_names_are_refused(
    tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    path = toy_wheel(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new[: len(old)]))
    with pytest.raises(WheelError, match=message):
        check(path)


def test_member_with_two_names_is_refused(tmp_path: Path) -> None:
    path = toy_wheel(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"toy/__init__", b"toy/__evil__", 1))
    with pytest.raises(WheelError, match="another name in its header"):
        check(path)


def test_folder_member_with_content_is_refused(tmp_path: Path) -> None:
    members = [(member("toy/evil/", external_attr=0o040755 << 16), b"content")]
    with pytest.raises(WheelError, match="a folder with content"):
        check(zipped(tmp_path / TOY_NAME, members))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"#!/bin/sh\n", b"", "bytes before the first member"),
        (b"", b"more", "bytes after the end"),
        (b"", b"\xff" * 22, "bytes after the end"),
    ],
)
def test_bytes_around_the_archive_are_refused(
    tmp_path: Path, before: bytes, after: bytes, message: str
) -> None:
    path = toy_wheel(tmp_path)
    path.write_bytes(before + path.read_bytes() + after)
    with pytest.raises(WheelError, match=message):
        check(path)


def test_member_packed_in_several_blocks_passes_the_check(tmp_path: Path) -> None:
    path = toy_wheel(tmp_path, {"toy/noise": random.Random(1).randbytes(3 << 20)})
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("toy/noise")
    assert (member.compress_type, member.compress_size > 3 << 20) == (zipfile.ZIP_DEFLATED, True)
    check(path)


def test_member_over_the_unpacked_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toy_wheel(tmp_path, {"toy/zeros": bytes(1 << 20)})
    check(path)
    monkeypatch.setattr("archsplit.wheels.zip_reader.MAX_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(WheelError, match="bytes unpacked, the limit is"):
        check(path)


def test_large_wheel_of_almost_only_zeros_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.wheels.zip_reader._FREE_BYTES", 1 << 19)
    zeros, code = bytes(1 << 20), random.Random(1).randbytes(20 << 10)
    check(toy_wheel(tmp_path, {"toy/zeros": zeros, "toy/code": code}))
    with pytest.raises(WheelError, match=r"10\d{5} bytes unpacked, the limit is 524288"):
        check(toy_wheel(tmp_path, {"toy/zeros": zeros}))


def test_members_sharing_the_same_bytes_are_refused(tmp_path: Path) -> None:
    """The trick of https://www.bamsoftware.com/hacks/zipbomb/: many members, one content."""
    path = toy_wheel(tmp_path)
    content = bytearray(path.read_bytes())
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 1)
    CENTRAL.pack_into(content, second, *CENTRAL.unpack_from(content, second)[:-1], 0)
    path.write_bytes(content)
    with pytest.raises(WheelError, match="overlaps the next member"):
        check(path)


def test_member_one_byte_too_long_overlaps(tmp_path: Path) -> None:
    path = toy_wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        size = archive.infolist()[0].compress_size
    patched(path, central={PACKED: size + 1})
    with pytest.raises(WheelError, match="overlaps the next member"):
        check(path)


def test_zip64_records_are_understood(tmp_path: Path) -> None:
    path = tmp_path / TOY_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**TOY_FILES, RECORD: record_of(TOY_FILES)}.items():
            with archive.open(name, "w", force_zip64=True) as stream:
                stream.write(content)
    check(path)
