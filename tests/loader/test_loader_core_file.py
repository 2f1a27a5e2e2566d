"""The reader of ``core.json`` in C, held against the one in Python that every core has."""

from __future__ import annotations

import ctypes
import json
import os
import random
from typing import TYPE_CHECKING

import pytest
from loader_stubs import LIBRARY, Workbench

from archsplit_loader import _bindings
from archsplit_loader._errors import PluginError
from archsplit_loader._reading import read_core

if TYPE_CHECKING:
    from pathlib import Path

BAD_CORE = 7
ROUNDS = 1500
SPLIT = {
    "packs": {"cc90": {"distribution": "vecsort-cc90", "gpus": ["9.0"]}},
    "needs": {"9.0": ["cc90"]},
    "targets": {},
}


@pytest.fixture(scope="module")
def library(workbench: Workbench) -> ctypes.CDLL:
    found = _bindings.open_library(str(workbench.folder))
    core = ctypes.POINTER(ctypes.POINTER(_bindings.CoreStruct))
    found.archsplit_core_read.argtypes = [ctypes.c_char_p, core]
    found.archsplit_core_free.argtypes = [ctypes.POINTER(_bindings.CoreStruct)]
    found.archsplit_core_free.restype = None
    return found


@pytest.fixture
def face(workbench: Workbench, tmp_path: Path) -> Path:
    return workbench.core(tmp_path / "a site")


def read(library: ctypes.CDLL, folder: Path) -> tuple[str, dict[str, object]]:
    """The fault, or what was read, with all that Python can compare."""
    core = ctypes.POINTER(_bindings.CoreStruct)()
    status = library.archsplit_core_read(os.fsencode(folder), core)
    if status != 0:
        assert status == BAD_CORE
        assert ctypes.cast(core, ctypes.c_void_p).value is None
        return _bindings.text(library.archsplit_last_error()), {}
    found = core.contents
    assert found.size == ctypes.sizeof(_bindings.CoreStruct)
    names = ("package", "version", "build_id", "interface_hash", "library", "table")
    facts: dict[str, object] = {name: getattr(found, name) for name in names}
    facts["targets"] = [str(found.targets[index]) for index in range(found.target_count)]
    digests: list[bytes] = []
    while found.digests and found.digests[len(digests)]:
        digests.append(found.digests[len(digests)])
    facts["digests"] = digests
    facts["folders"] = [found.folders[0], found.folders[1]]
    library.archsplit_core_free(core)
    return "", facts


def python_accepts(folder: Path) -> bool:
    try:
        read_core(str(folder))
    except PluginError:
        return False
    return True


def test_a_core_is_read_as_it_is_written(library: ctypes.CDLL, face: Path) -> None:
    fault, facts = read(library, face)
    assert fault == ""
    assert facts == {
        "package": b"vecsort",
        "version": b"1.2.3",
        "build_id": b"11" * 32,
        "interface_hash": b"22" * 32,
        "library": LIBRARY.encode(),
        "table": None,
        "targets": ["sm_80", "sm_90", "compute_120"],
        "digests": [],
        "folders": [os.fsencode(face.parents[1].resolve() / "vecsort_plugins"), None],
    }


def test_a_split_core_has_a_table(library: ctypes.CDLL, face: Path) -> None:
    change(face, **SPLIT)
    fault, facts = read(library, face)
    assert fault == ""
    assert (facts["table"], facts["targets"]) == (os.fsencode(face / "core.pack"), [])


def test_digests_of_the_plugins_are_read(library: ctypes.CDLL, face: Path) -> None:
    recorded = {"sm_80": "ab" * 32, "sm_90": "cd" * 32}
    change(face, digests=recorded)
    fault, facts = read(library, face)
    assert (fault, facts["digests"]) == ("", [b"ab" * 32, b"cd" * 32])
    assert read_core(str(face)).digests == recorded


def change(face: Path, **changes: object) -> None:
    content = json.loads((face / "core.json").read_text()) | changes
    kept = {name: value for name, value in content.items() if value is not ...}
    (face / "core.json").write_text(json.dumps(kept))


CHANGES: dict[str, dict[str, object]] = {
    **{f"no {name}": {name: ...} for name in ("schema", "package", "build_id", "targets")},
    "other schema": {"schema": 2},
    "schema as a text": {"schema": "1"},
    "package is a number": {"package": 5},
    "empty version": {"version": ""},
    "escape in a name": {"library": "lib\x1b[31m.so"},
    "short hash": {"build_id": "11" * 31},
    "hash in capitals": {"interface_hash": "AB" * 32},
    "no target": {"targets": {}},
    "targets as a list": {"targets": ["sm_90"]},
    "unknown target": {"targets": {"gfx942": "vecsort-gfx942"}},
    "target without a number": {"targets": {"sm_": "vecsort"}},
    "target with a number too many": {"targets": {"sm_12345": "vecsort"}},
    "target of another family": {"targets": {"sm_90x": "vecsort"}},
    "target without a distribution": {"targets": {"sm_90": ""}},
    "distribution is a number": {"targets": {"sm_90": 5}},
    "packs as a list": {"packs": []},
    "digests as a list": {"digests": ["ab" * 32]},
    "digest is a number": {"digests": {"sm_90": 5}},
    "short digest": {"digests": {"sm_90": "ab" * 31}},
    "digest of a split core": SPLIT | {"digests": {"sm_90": ""}},
    "empty packs": SPLIT | {"packs": {}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_both_readers_refuse_the_same(
    library: ctypes.CDLL, face: Path, changes: dict[str, object]
) -> None:
    change(face, **changes)
    fault, _ = read(library, face)
    assert fault.startswith(f"{face}/core.json ")
    assert fault.endswith("; install the core again")
    assert not python_accepts(face)


@pytest.mark.parametrize(
    "changes",
    [
        {"later": {"deep": [[1.5e-3, True, None, "\U0001f600"]], "": -0}},
        {"targets": {"sm_90a": "a", "sm_120f": "b", "compute_75": "c"}},
        {"library": "libvécsort.so"},
        {"packs": None},
        {"digests": None},
        {"digests": {}},
        {"digests": {"sm_90": "ab" * 32}},
        SPLIT,
    ],
)
def test_both_readers_accept_the_same(
    library: ctypes.CDLL, face: Path, changes: dict[str, object]
) -> None:
    change(face, **changes)
    assert python_accepts(face)
    fault, facts = read(library, face)
    assert fault == ""
    name = str(changes.get("library", LIBRARY))
    assert facts["library"] == name.encode()  # json wrote é as an escape


def test_what_is_no_file_of_a_core_is_refused(library: ctypes.CDLL, tmp_path: Path) -> None:
    assert f"({tmp_path}/core.json)" in read(library, tmp_path)[0]
    file = tmp_path / "core.json"
    for content, fault in (
        (b"", "an object is expected at byte 0"),
        (b"{} {}", "there is more behind its end at byte 3"),
        (b'{"a": "\xff"}', "it is not UTF-8"),
        (b'{"a": "\\ud800x"}', "half of a character"),
        (b'{"a": "\\u0000"}', "has a NUL"),
        (b'{"a": 01}', "an object has no end"),
        (b"[" * 100, "an object is expected"),
        (b'{"a": ' + b"[" * 100, "nested too deep"),
        (b" " * (1 << 20) + b"{}", "is too big"),
    ):
        file.write_bytes(content)
        assert fault in read(library, tmp_path)[0]
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in read(library, tmp_path)[0]


def test_damaged_files_are_judged_as_in_python(library: ctypes.CDLL, face: Path) -> None:
    """Files with a byte replaced or removed, or truncated; without control characters."""
    content = (face / "core.json").read_bytes()
    chance = random.Random(15)
    judged = {True: 0, False: 0}
    # A file that is emptied and closed each time would be written to the disk each time.
    target = os.open(face / "core.json", os.O_WRONLY)
    for _ in range(ROUNDS):
        at = chance.randrange(len(content))
        new = bytes([chance.choice(b'"{}[]:,\\19a_ ')])[: chance.randrange(2)]
        rest = b"" if chance.randrange(8) == 0 else content[at + 1 :]
        os.ftruncate(target, os.pwrite(target, content[:at] + new + rest, 0))
        accepts = python_accepts(face)
        assert (read(library, face)[0] == "") == accepts, content[:at] + new + rest
        judged[accepts] += 1
    os.close(target)
    assert min(judged.values()) > ROUNDS // 50
