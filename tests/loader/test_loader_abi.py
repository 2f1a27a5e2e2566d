"""The two boundaries that must not drift: the structs of the C API, and the descriptor."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, Stub, Workbench, compile_c, target_row

from archsplit.arch.compat import published_targets
from archsplit.arch.target import Target
from archsplit.formats import descriptor
from archsplit_loader import _bindings
from loader_objects import LOADER

if TYPE_CHECKING:
    from pathlib import Path

STRUCTS = {
    "core": _bindings.CoreStruct,
    "summary": _bindings.SummaryStruct,
    "candidate": _bindings.CandidateStruct,
    "device": _bindings.DeviceStruct,
    "choice": _bindings.ChoiceStruct,
    "service": _bindings.ServiceStruct,
    "target": _bindings.TargetStruct,
}


@pytest.fixture(scope="module")
def library(workbench: Workbench) -> ctypes.CDLL:
    return _bindings.open_library(str(workbench.folder))


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> _bindings.CoreStruct:
    """The core of a table, devices not asked for."""
    table = os.fsencode(workbench.core(tmp_path) / "core.pack")
    return _bindings.CoreStruct(size=ctypes.sizeof(_bindings.CoreStruct), flags=1, table=table)


@pytest.fixture
def loader(library: ctypes.CDLL, core: _bindings.CoreStruct) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert library.archsplit_loader_create(core, handle) == 0
    return handle


def test_python_structs_are_laid_out_as_in_c(tmp_path: Path) -> None:
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof(archsplit_{name}));')
        lines += [
            f'printf("%zu\\n", offsetof(archsplit_{name}, {field[0]}));'
            for field in struct._fields_
        ]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "archsplit/plugin_loader.h"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
    )
    program = compile_c(tmp_path / "layout", str(source))
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    expected = []
    for struct in STRUCTS.values():
        expected.append(ctypes.sizeof(struct))
        expected += [getattr(struct, field[0]).offset for field in struct._fields_]
    assert [int(number) for number in printed] == expected


def test_older_callers_get_no_more_than_they_have_room_for(
    library: ctypes.CDLL, loader: ctypes.c_void_p
) -> None:
    summary = _bindings.SummaryStruct(size=8, note_count=77)
    assert library.archsplit_loader_summary(loader, summary) == 0
    assert (summary.size, summary.driver_state, summary.note_count) == (8, 1, 77)


def test_newer_caller_gets_the_written_size(library: ctypes.CDLL, loader: ctypes.c_void_p) -> None:
    known = ctypes.sizeof(_bindings.SummaryStruct)
    room = (ctypes.c_uint8 * (known + 16))()
    summary = ctypes.cast(room, ctypes.POINTER(_bindings.SummaryStruct))
    summary.contents.size = known + 16
    assert library.archsplit_loader_summary(loader, summary) == 0
    assert summary.contents.size == known
    assert bytes(room)[known:] == bytes(16)


@pytest.mark.parametrize("size", [0, 3])
def test_struct_without_a_size_is_refused(
    library: ctypes.CDLL, loader: ctypes.c_void_p, size: int
) -> None:
    summary = _bindings.SummaryStruct(size=size)
    assert library.archsplit_loader_summary(loader, summary) == 1
    assert library.archsplit_last_error() == b"a struct is needed, with its size set"


def test_numbers_out_of_range_are_refused(library: ctypes.CDLL, loader: ctypes.c_void_p) -> None:
    candidate = _bindings.CandidateStruct(size=ctypes.sizeof(_bindings.CandidateStruct))
    assert library.archsplit_loader_candidate(loader, 0, candidate) == 1
    assert library.archsplit_loader_note(loader, 0) is None
    assert library.archsplit_verdict_name(999) == b"unknown"
    library.archsplit_loader_destroy(loader)
    library.archsplit_loader_destroy(None)


@pytest.mark.parametrize("size", [0, 8])
def test_core_without_a_table_is_refused(
    library: ctypes.CDLL, core: _bindings.CoreStruct, size: int
) -> None:
    handle = ctypes.c_void_p()
    core.size = size
    assert library.archsplit_loader_create(core, handle) == 1
    assert library.archsplit_last_error() == b"a core needs a table"
    assert handle.value is None


@pytest.mark.parametrize("digest", [b"1" * 63, b"1" * 65, b"x" * 64])
def test_malformed_digest_is_refused(
    library: ctypes.CDLL, core: _bindings.CoreStruct, digest: bytes
) -> None:
    handle = ctypes.c_void_p()
    core.digests = (ctypes.c_char_p * 2)(digest, None)
    assert library.archsplit_loader_create(core, handle) == 1
    words = b"a core's digests are 64 hexadecimal digits each"
    assert library.archsplit_last_error() == words


def test_missing_symbol_is_an_error(library: ctypes.CDLL, workbench: Workbench) -> None:
    plugin = ctypes.CDLL(str(workbench.folder / "stub.so"))
    address = ctypes.c_void_p()
    find = library.archsplit_plugin_symbol
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    assert find(plugin._handle, b"stub_answer", address) == 0
    assert address.value
    assert find(plugin._handle, b"stub_question", address) == 6
    assert b"undefined symbol: stub_question" in library.archsplit_last_error()


def test_constants_match_the_splitter() -> None:
    text = (LOADER / "include" / "archsplit" / "plugin.h").read_text()
    found = dict(re.findall(r"^#define ARCHSPLIT_(\w+) (\S+)", text, re.MULTILINE))
    assert found["NOTE_SECTION"] == f'"{descriptor.NOTE_SECTION}"'
    assert found["NOTE_NAME"] == f'"{descriptor.OWNER}"'
    assert int(found["NOTE_TYPE"]) == descriptor.NOTE_TYPE
    assert (int(found["CONTRACT_MAJOR"]), int(found["CONTRACT_MINOR"])) == descriptor.CONTRACT
    assert int(found["SHAPE_LIBRARY"]) == descriptor.Shape.LIBRARY
    assert int(found["SHAPE_DEVICE"]) == descriptor.Shape.DEVICE


NOT_PROBED = {"30", "32", "35", "37", "52", "53", "62", "72", "107a", "107f"}
"""Capabilities that the table of loader_probe.c lacks, which has no room for all."""
DESCRIPTOR = descriptor.Descriptor(
    package="vecsort",
    version="1.2.3",
    build_id=b"\x11" * 32,
    interface_hash=b"\x22" * 32,
    cuda_version=13000,
    shape=descriptor.Shape.LIBRARY,
    targets=tuple(
        each for each in published_targets() if str(each).partition("_")[2] not in NOT_PROBED
    ),
)


def test_pack_of_the_splitter_is_read_by_the_loader(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(descriptor.encode_note(DESCRIPTOR))
    source = tmp_path / "plugin.s"
    source.write_text(
        f'.section {descriptor.NOTE_SECTION}, "a", %note\n.balign 4\n.incbin "{tmp_path}/note"\n'
    )
    plugin = compile_c(tmp_path / "plugin.so", "-shared", str(source), str(HERE / "stub_plugin.c"))
    content = plugin.read_bytes()
    other = content.index(b"archsplit\0\0\0" + b"\xa5" * 512) - 4
    plugin.write_bytes(content[:other] + b"\x02" + content[other + 1 :])  # a note of type 2
    done = workbench.probe("--file", plugin, "--skip")
    assert f"candidate accepted: {plugin}" in done.stdout


def test_pack_of_the_tests_is_read_by_the_splitter() -> None:
    names = ("sm_90", "sm_120f", "compute_100a")
    found = descriptor.decode_note(Stub(targets=names).encode())
    assert found.targets == tuple(map(Target.parse, names))
    assert (found.package, found.version, found.cuda_version) == ("vecsort", "1.2.3", 13000)
    assert target_row("sm_120f") == (1, 12, 0, ord("f"))
