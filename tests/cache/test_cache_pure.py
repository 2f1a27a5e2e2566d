"""Keys, entries and manifests: what goes in comes out, and nothing else does."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.cache.entry import (
    CacheEntry,
    KeyComponent,
    ManifestRow,
    compute_key,
    decode_entry,
    decode_manifest,
    encode_entry,
    encode_manifest,
    file_spans,
    key_differences,
)
from archsplit.cache.sealed_blob import (
    DamagedError,
    decode_result,
    decompressed_limit,
    encode_result,
    entry_action,
    is_sealed,
    seal,
    sha256_digest,
    unseal,
)
from archsplit.formats.reapi_messages import decode_message, encode_message, new_message

TEXT = st.text(max_size=8)
PARTS = st.lists(st.builds(KeyComponent, TEXT, TEXT), max_size=4).map(tuple)
ENTRIES = st.builds(
    CacheEntry,
    components=PARTS,
    files=st.dictionaries(TEXT, st.binary(max_size=64), max_size=3),
    notes=st.dictionaries(TEXT, TEXT, max_size=2),
    stdout=TEXT,
    stderr=TEXT,
    cpu_seconds=st.floats(0, 1e6),
)


@given(PARTS, PARTS)
def test_other_parts_have_another_key(
    one: tuple[KeyComponent, ...], other: tuple[KeyComponent, ...]
) -> None:
    assert (compute_key(one) == compute_key(other)) == (one == other)


def test_key_is_unchanged() -> None:
    key = compute_key([KeyComponent("flag", "-O3"), KeyComponent("program cicc", "ab")])
    assert key == "c575c7e0c17397b63b76c66adc138814e07d902e5400588bc284f0deaa655286"


def test_undecodable_bytes_are_keyed_unchanged() -> None:
    assert compute_key([KeyComponent("flag", "\udcff")]) != compute_key(
        [KeyComponent("flag", "\udcfe")]
    )


@given(ENTRIES)
def test_an_entry_survives(entry: CacheEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(ENTRIES, st.data())
def test_a_changed_entry_is_noticed(entry: CacheEntry, data: st.DataObject) -> None:
    blob = encode_entry(entry)
    at = data.draw(st.integers(0, len(blob) - 1))
    flipped = bytes([*blob[:at], blob[at] ^ data.draw(st.integers(1, 255)), *blob[at + 1 :]])
    for damaged in (flipped, blob[:at]):
        assert not is_sealed(damaged)
        with pytest.raises(DamagedError):
            decode_entry(damaged)


@pytest.mark.parametrize("content", [b"", b"\0", b"\2\0\0\0[]", b"\2\0\0\0{}", b"\3\0\0\0{}"])
def test_sealed_bytes_without_an_entry_are_refused(content: bytes) -> None:
    for decode in (decode_entry, file_spans):
        with pytest.raises(DamagedError):
            decode(seal(content))


def test_small_content_is_hashed_without_the_interpreters_own_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_sha2", "_sha256"):
        monkeypatch.setitem(sys.modules, name, None)
    assert sha256_digest(b"x") == hashlib.sha256(b"x").digest()


def test_entry_with_the_fields_of_an_older_version_is_read() -> None:
    entry = CacheEntry(components=(), files={}, stdout="text", cpu_seconds=2.0)
    content = unseal(encode_entry(entry))
    fields = json.loads(content[4:]) | {"seconds": 1.0, "memory": 9, "versions": {}}
    head = json.dumps(fields).encode()
    assert decode_entry(seal(len(head).to_bytes(4, "little") + head)) == entry


def test_the_files_of_an_entry_have_places_in_its_content() -> None:
    blob = encode_entry(CacheEntry(components=(), files={"b": b"12", "a": b"345"}))
    content = unseal(blob)
    assert {name: content[slice(*span)] for name, span in file_spans(blob).items()} == {
        "a": b"345",
        "b": b"12",
    }


@pytest.mark.parametrize("size", [0, 1000, 3 << 20])
def test_content_of_each_size_survives_its_seal(size: int) -> None:
    content = bytes(range(256)) * (size // 256)
    assert unseal(seal(content)) == content


def test_wrong_length_is_refused() -> None:
    content = unseal(encode_entry(CacheEntry(components=(), files={"a": b"123"})))
    with pytest.raises(DamagedError, match="lengths"):
        decode_entry(seal(content + b"4"))


def test_sealed_garbage_is_refused() -> None:
    # Neither zlib's nor Zstandard's.
    for packed in (b"x", b"\x28\xb5\x2f\xfd" + b"x"):
        with pytest.raises(DamagedError, match="unpacked"):
            unseal(encode_result(packed))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_sealed_blob_equals_the_protobuf_librarys_message(size: int) -> None:
    packed = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    digest = new_message("Digest", hash=hashlib.sha256(packed).hexdigest(), size_bytes=size)
    file = new_message("OutputFile", path="entry", digest=digest)
    apart = new_message("ActionResult", output_files=[file])
    assert encode_result(packed, inline=False) == encode_message(apart)
    assert decode_result(encode_message(apart)) == (digest.hash, size, None)
    file.contents = packed
    whole = new_message("ActionResult", output_files=[file])
    # The library leaves out bytes that are empty.
    assert encode_result(packed, inline=bool(packed)) == encode_message(whole)
    assert is_sealed(encode_result(packed))


def test_the_action_of_an_entry_is_the_librarys() -> None:
    root, commanded, action = entry_action("ac/" + "ab" * 32)
    words = ["archsplit", "cache", "ac/" + "ab" * 32]
    command = new_message("Command", arguments=words, output_paths=["entry"])
    assert (root, commanded) == (b"", encode_message(command))
    digests = [
        new_message("Digest", hash=hashlib.sha256(each).hexdigest(), size_bytes=len(each))
        for each in (commanded, root)
    ]
    expected = new_message("Action", command_digest=digests[0], input_root_digest=digests[1])
    assert action == encode_message(expected)


def test_extra_fields_of_a_server_are_ignored() -> None:
    result = decode_message("ActionResult", seal(b"object"))
    result.execution_metadata.worker = "10.0.0.1"
    result.execution_metadata.execution_start_timestamp.seconds = 5
    result.exit_code = 1
    other = new_message("OutputFile", path="log")
    result = new_message(
        "ActionResult",
        output_files=[other, *result.output_files],
        exit_code=1,
        execution_metadata=result.execution_metadata,
    )
    # No part of a value may look like a tag.
    fixed = b"\x7d" + b"\xff" * 4 + b"\x79" + b"\xff" * 8
    assert unseal(fixed + encode_message(result)) == b"object"


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", "not a result"),
        # A group, a number in place of a file, and a file whose path is a number.
        (b"\x0b", "not a message"),
        (b"\x10\x01", "not a result"),
        (b"\x12\x02\x08\x01", "not a result"),
        (b"\x12\x07\x0a\x05entry", "no digest"),
        (b"\x12\x09\x0a\x05entry\x10\x01", "no digest"),
        (b"\x12\x09\x0a\x05entry\x12\x00", "no digest"),
        (b"\x12\x7f", "truncated"),
        (b"\x12", "truncated"),
        (b"\x80", "truncated"),
        (b"\x10" + b"\xff" * 11, "too long"),
        (encode_result(b"x", inline=False), "digest is wrong"),
    ],
)
def test_a_message_of_another_kind_is_refused(blob: bytes, why: str) -> None:
    with pytest.raises(DamagedError, match=why):
        unseal(blob)
    assert not is_sealed(blob)


ROW = ManifestRow(
    files=(("k.cu", "ab"),), programs=(("gcc", "cd"),), folders=(".",), names=("k.cu",)
)


def test_a_manifest_survives() -> None:
    other = ManifestRow(files=(("k.cu", "ff"),), shadowing=("x/k.cu",))
    assert decode_manifest(encode_manifest([ROW, other], request="r"), request="r") == (ROW, other)


def test_row_lists_the_dependencies_of_its_result() -> None:
    row = ManifestRow(files=ROW.files, programs=ROW.programs, shadowing=("x/k.cu",))
    assert row.components("r") == (
        ("request", "r"),
        ("file k.cu", "ab"),
        ("program gcc", "cd"),
        ("shadowing", "x/k.cu"),
    )


def test_another_requests_manifest_is_refused() -> None:
    with pytest.raises(DamagedError, match="another request"):
        decode_manifest(encode_manifest([ROW], request="r"), request="s")


@pytest.mark.parametrize("text", [b"[]", b"{}", b"x", b'{"request":"r","texts":[],"rows":[{}]}'])
def test_sealed_text_without_a_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_manifest(seal(text), request="r")


@pytest.mark.parametrize("texts", [b"[1]", b"[null]", b"1", b'[["ab"]]'])
@pytest.mark.parametrize("files", [b"[0,0]", b"[]"])
def test_a_manifest_with_other_things_than_texts_is_refused(texts: bytes, files: bytes) -> None:
    text = b'{"request":"r","texts":%s,"rows":[[%s,[],[],[],[]]]}' % (texts, files)
    with pytest.raises(DamagedError):
        decode_manifest(seal(text), request="r")


@pytest.mark.parametrize("files", [b"[0]", b"[0,1,0]", b"[0,2]", b'[0,"a"]', b"1", b'"ab"'])
def test_row_without_pairs_is_refused(files: bytes) -> None:
    text = b'{"request":"r","texts":["a","b"],"rows":[[%s,[],[],[],[]]]}' % files
    with pytest.raises(DamagedError):
        decode_manifest(seal(text), request="r")


def test_a_manifest_keeps_its_first_rows() -> None:
    rows = [ManifestRow(files=(("k.cu", str(number)),)) for number in range(40)]
    assert decode_manifest(encode_manifest(rows, request="r"), request="r") == tuple(rows[:16])


def test_differences_name_the_changed_components() -> None:
    digests = ("0" * 64, "1" * 64)
    old = [
        KeyComponent("flag", "-O2"),
        KeyComponent("flag", "-c"),
        KeyComponent("program cicc", digests[0]),
        KeyComponent("x", "1"),
    ]
    new = [
        KeyComponent("flag", "-O3"),
        KeyComponent("flag", "-c"),
        KeyComponent("program cicc", digests[1]),
        KeyComponent("y", ""),
    ]
    assert key_differences(old[:2], [*old[:2]]) == ()
    assert key_differences(old, new) == (
        "flag: -O3, before -O2",
        "program cicc: 111111111111, before 000000000000",
        "x is gone: 1",
        "y is new: nothing",
    )


def test_changed_order_is_shown_in_full() -> None:
    old, new = (
        [KeyComponent("flag", "a"), KeyComponent("flag", "b")],
        [KeyComponent("flag", "b"), KeyComponent("flag", "a")],
    )
    assert key_differences(old, new) == ("flag: b a, before a b",)


def test_a_value_more_or_less_is_new_or_gone() -> None:
    less = (KeyComponent("file", "a"),)
    more = (*less, KeyComponent("file", "b"))
    assert key_differences(less, more) == ("file is new: b",)
    assert key_differences(more, less) == ("file is gone: b",)


BOMBS = {
    "zstd": "zstd.compress(bytes(SIZE), 1)",
    "zstd, no size": "zstd.compress(bytes(SIZE), options=WITHOUT_SIZE)",
    "zlib": "isal_zlib.compress(bytes(SIZE), 3)",
}


@pytest.mark.parametrize("packed", BOMBS.values(), ids=BOMBS)
def test_small_blob_of_gigabytes_is_refused_before_they_are_in_memory(packed: str) -> None:
    program = f"""if True:
        import re, sys, time
        from isal import isal_zlib
        from archsplit.formats.zstd import zstd
        from archsplit.cache.sealed_blob import DamagedError, encode_result, unseal
        if len(sys.argv) == 1:
            SIZE = 1 << 30
            WITHOUT_SIZE = {{zstd.CompressionParameter.content_size_flag: 0}}
            sys.stdout.buffer.write(encode_result({packed}))
        else:
            blob = sys.stdin.buffer.read()
            began = time.process_time()
            try:
                unseal(blob)
            except DamagedError:
                seconds = time.process_time() - began
                # Not ru_maxrss: a child begins with what its parent had.
                status = open("/proc/self/status").read()
                print(int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) << 10, seconds)
    """

    def run(*words: str, given: bytes = b"") -> bytes:
        argv = [sys.executable, "-c", program, *words]
        return subprocess.run(argv, input=given, stdout=subprocess.PIPE, check=True).stdout

    bomb = run()
    assert len(bomb) < 5_000_000
    memory, seconds = run("unseal", given=bomb).split()
    assert 0 < int(memory) < 300_000_000
    assert float(seconds) < 1


def test_extremely_compressible_content_is_stored_raw() -> None:
    content = bytes(65 << 20)
    blob = seal(content)
    assert len(blob) > len(content)
    assert unseal(blob) == content


def test_each_compressed_byte_may_stand_for_64_bytes() -> None:
    free = 64 << 20
    assert [decompressed_limit(size) for size in (0, 1 << 20, (1 << 20) + 1)] == [
        free,
        free,
        free + 64,
    ]


def test_small_content_is_sealed_without_zstandard() -> None:
    # The import of Zstandard takes longer than zlib with less than 256 KiB.
    for size, start in (((1 << 18) - 1, b"\x78"), (1 << 18, b"\x28\xb5\x2f\xfd")):
        (file,) = decode_message("ActionResult", seal(bytes(size))).output_files
        assert file.contents.startswith(start)
