"""Verdicts on files that may be plugins; the sanitized C program reads real ELF files."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loader_stubs import LIBRARY, SIZE, Stub, Workbench

if TYPE_CHECKING:
    from pathlib import Path

PT_LOAD, PT_NOTE, PT_GNU_STACK = 1, 4, 0x6474E551
FIXED_FIELDS = {
    "total_size": (4, "<I", 511, "malformed", "total size is 511"),
    "fixed_size too small": (0, "<I", 111, "malformed", "fixed size is 111"),
    "fixed_size too big": (0, "<I", 513, "malformed", "fixed size is 513"),
    "contract": (8, "<H", 2, "wrong-contract", "contract 2.0 of plugins, expected 1"),
    "shape": (12, "<I", 2, "wrong-shape", "shape 2, expected 1"),
    "package_offset before": (20, "<I", 100, "malformed", "package's name is 100"),
    "package_offset after": (20, "<I", 506, "malformed", "package's name is 506"),
    "package_offset wraps": (20, "<I", 0xFFFFFFFF, "malformed", "package's name is 4294967295"),
    "package_length": (24, "<I", 0, "malformed", "package's name is 0, expected a length"),
    "package_length long": (24, "<I", 256, "malformed", "package's name is 256"),
    "version_offset": (28, "<I", 512, "malformed", "version is 512"),
    "version_length": (32, "<I", 0xFFFFFFFF, "malformed", "version is 4294967295"),
    "targets_offset": (36, "<I", 508, "malformed", "target table is 508"),
    "targets_offset odd": (36, "<I", 114, "malformed", "target table is 114"),
    "targets_offset before": (36, "<I", 108, "malformed", "target table is 108"),
    "target_size": (40, "<H", 4, "malformed", "size of a target is 4"),
    "target_size odd": (40, "<H", 10, "malformed", "size of a target is 10"),
    "target_count": (42, "<H", 0, "malformed", "number of targets is 0"),
    "target_count many": (42, "<H", 65, "malformed", "number of targets is 65"),
    "kind": (112, "<H", 3, "malformed", "target's kind is 3"),
    "major": (114, "<H", 0, "malformed", "major capability is 0"),
    "major big": (114, "<H", 1000, "malformed", "major capability is 1000"),
    "minor": (116, "<H", 10, "malformed", "minor capability is 10"),
    "suffix": (118, "<H", ord("b"), "malformed", "suffix is 98"),
    "control character": (
        120,
        "<B",
        0x1B,
        "malformed",
        "package's name is 27, expected no control",
    ),
}
PINS = {
    "package": (
        Stub(package=b"othersort"),
        "wrong-package",
        "of othersort, expected one of vecsort",
    ),
    "version": (Stub(version=b"1.2.2"), "wrong-version", "vecsort 1.2.2, expected one for 1.2.3"),
    "longer version": (Stub(version=b"1.2.3.post1"), "wrong-version", "1.2.3.post1"),
    "build": (Stub(build_id=b"\x11" * 31 + b"\x12"), "wrong-build", "expected 1111111111111111..."),
    "interface": (Stub(interface_hash=b"\x23" * 32), "wrong-interface", "2323232323232323..."),
}
HEADER = {
    "32 bits": (4, b"\x01", "not-elf", "class 1"),
    "big-endian": (5, b"\x02", "not-elf", "byte order 2"),
    "an executable": (16, b"\x02\x00", "not-elf", "type 2"),
    "arm": (18, b"\xb7\x00", "wrong-machine", "machine is 183, expected 62"),
    "header size": (54, b"\x20\x00", "malformed", "program header is 32"),
    "no segments": (56, b"\x00\x00", "malformed", "segments is 0"),
    "many segments": (56, b"\xff\xff", "malformed", "segments is 65535"),
    "segments far away": (32, b"\xff" * 8, "truncated", "table of segments takes"),
    "sections far away": (
        40,
        b"\xf0\xff\xff\xff\xff\xff\xff\xff",
        "truncated",
        "table of sections",
    ),
    "magic": (0, b"PK\x03\x04", "not-elf", "50 4b 03 04, expected 7f 45 4c 46"),
}


def verdict_of(workbench: Workbench, path: Path, *arguments: str) -> tuple[str, str]:
    """The verdict and the reason for one plugin file."""
    done = workbench.probe("--file", path, "--skip", *arguments)
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("candidate ")]
    head, _, reason = line.partition(str(path))
    return head.split()[1].rstrip(":"), reason.strip()


def test_right_plugin_is_accepted_and_opened(workbench: Workbench, tmp_path: Path) -> None:
    workbench.plugin(tmp_path, "sm_90")
    done = workbench.probe(tmp_path / "vecsort_plugins", "--open", 0, gpus="9.0")
    assert "candidate accepted: " in done.stdout
    assert "opened, the answer is 42" in done.stdout


@pytest.mark.parametrize("case", PINS)
def test_foreign_plugin_never_runs(workbench: Workbench, tmp_path: Path, case: str) -> None:
    stub, verdict, reason = PINS[case]
    workbench.plugin(tmp_path, "sm_90", stub)
    mark = tmp_path / "mark"
    folder = tmp_path / "vecsort_plugins"
    done = workbench.probe(folder, "--open", 0, gpus="9.0", STUB_MARK=str(mark))
    assert f"candidate {verdict}: " in done.stdout
    assert reason in done.stdout
    assert (
        "failed with 4: no plugin of vecsort 1.2.3 serves device 0, Stand-in GPU 0" in done.stdout
    )
    assert not mark.exists()


def test_run_plugin_leaves_a_mark(workbench: Workbench, tmp_path: Path) -> None:
    workbench.plugin(tmp_path, "sm_90")
    mark = tmp_path / "mark"
    workbench.probe(tmp_path / "vecsort_plugins", "--open", 0, gpus="9.0", STUB_MARK=str(mark))
    assert mark.read_text() == "a constructor ran\n"


@pytest.mark.parametrize("case", FIXED_FIELDS)
def test_every_field_is_checked(workbench: Workbench, tmp_path: Path, case: str) -> None:
    offset, layout, value, verdict, reason = FIXED_FIELDS[case]
    stub = Stub(changes={offset: struct.pack(layout, value)})
    found = verdict_of(workbench, workbench.stub(tmp_path / "p.so", stub))
    assert found[0] == verdict
    assert reason in found[1]


@pytest.mark.parametrize("case", HEADER)
def test_every_header_field_is_checked(workbench: Workbench, tmp_path: Path, case: str) -> None:
    offset, change, verdict, reason = HEADER[case]
    path = workbench.stub(tmp_path / "p.so")
    content = bytearray(path.read_bytes())
    content[offset : offset + len(change)] = change
    path.write_bytes(content)
    found = verdict_of(workbench, path)
    assert found[0] == verdict
    assert reason in found[1]


def test_later_minor_contract_with_more_fields_is_accepted(
    workbench: Workbench, tmp_path: Path
) -> None:
    stub = Stub(contract=(1, 7), fixed_size=144, target_size=16, targets=("sm_80", "compute_90f"))
    found = verdict_of(workbench, workbench.stub(tmp_path / "p.so", stub))
    assert found == ("accepted", "")


def test_reserved_field_is_not_read(workbench: Workbench, tmp_path: Path) -> None:
    stub = Stub(changes={44: b"\xff\xff\xff\xff"})
    assert verdict_of(workbench, workbench.stub(tmp_path / "p.so", stub))[0] == "accepted"


def patched(workbench: Workbench, path: Path, place: bytes, change: bytes) -> Path:
    """A stub in which the bytes ``place``, which are there once, are replaced."""
    content = workbench.stub(path).read_bytes()
    assert content.count(place) == 1
    path.write_bytes(content.replace(place, change))
    return path


NOTE = struct.pack("<III", 10, SIZE, 1) + b"archsplit\0\0\0"


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        (struct.pack("<III", 10, SIZE, 2) + b"archsplit\0\0\0", "no-descriptor", "no archsplit"),
        (struct.pack("<III", 10, SIZE, 1) + b"otherpart\0\0\0", "no-descriptor", "no archsplit"),
        (struct.pack("<III", 11, SIZE, 1) + b"archsplit\0\0\0", "no-descriptor", "no archsplit"),
        (struct.pack("<III", 10, SIZE + 64, 1) + b"archsplit\0\0\0", "malformed", "note's size"),
        (struct.pack("<III", 10, 2**32 - 1, 1) + b"archsplit\0\0\0", "malformed", "note's size"),
        (struct.pack("<III", 2**32 - 1, SIZE, 1) + b"archsplit\0\0\0", "malformed", "note's size"),
        (
            struct.pack("<III", 10, 100, 1) + b"archsplit\0\0\0",
            "malformed",
            "archsplit note is 100",
        ),
    ],
)
def test_notes_are_checked(
    workbench: Workbench, tmp_path: Path, change: bytes, verdict: str, reason: str
) -> None:
    found = verdict_of(workbench, patched(workbench, tmp_path / "p.so", NOTE, change))
    assert found[0] == verdict
    assert reason in found[1]


def test_second_note_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    path = workbench.stub(tmp_path / "p.so")
    content = bytearray(path.read_bytes())
    note, unimportant = segments(content)[PT_NOTE], segments(content)[PT_GNU_STACK]
    content[unimportant : unimportant + 56] = content[note : note + 56]
    path.write_bytes(content)
    found = verdict_of(workbench, path)
    assert found == ("malformed", "is malformed: the number of archsplit notes is 2, expected 1; "
                     "install the plugin again")  # fmt: skip


def segments(content: bytes | bytearray) -> dict[int, int]:
    """Return the offset of the last program header of each type."""
    offset, count = struct.unpack_from("<Q", content, 32)[0], content[56]
    headers = [offset + 56 * index for index in range(count)]
    return {struct.unpack_from("<I", content, header)[0]: header for header in headers}


def without_sections(workbench: Workbench, path: Path) -> bytearray:
    """A plugin that ends with its last segment: only the segments say how long it must be."""
    content = bytearray(workbench.stub(path).read_bytes())
    struct.pack_into("<Q", content, 40, 0)
    struct.pack_into("<HHH", content, 58, 0, 0, 0)
    offset, _, _, size = struct.unpack_from("<QQQQ", content, segments(content)[PT_LOAD] + 8)
    return content[: offset + size]


@pytest.mark.parametrize("missing", [0, 1, 100, 500])
def test_segment_must_fit_the_file(workbench: Workbench, tmp_path: Path, missing: int) -> None:
    path = tmp_path / "p.so"
    content = without_sections(workbench, path)
    path.write_bytes(content[: len(content) - missing])
    done = workbench.probe("--file", path, "--open", 0, gpus="9.0")
    assert ("opened, the answer is 42" in done.stdout) is (missing == 0)
    assert ("bytes, its segment takes" in done.stdout) is (missing > 0)


def test_segment_must_fit_into_memory(workbench: Workbench, tmp_path: Path) -> None:
    path = workbench.stub(tmp_path / "p.so")
    content = bytearray(path.read_bytes())
    struct.pack_into("<Q", content, segments(content)[PT_LOAD] + 40, 1)
    path.write_bytes(content)
    verdict, reason = verdict_of(workbench, path)
    assert verdict == "malformed"
    assert "segment's size in the file is" in reason


def test_endless_notes_are_refused(workbench: Workbench, tmp_path: Path) -> None:
    path = workbench.stub(tmp_path / "p.so")
    content = bytearray(path.read_bytes())
    header = segments(content)[PT_NOTE]
    struct.pack_into("<Q", content, header + 8, len(content))
    struct.pack_into("<Q", content, header + 32, 12 * 1025)
    path.write_bytes(content + bytes(12 * 1025))
    assert verdict_of(workbench, path) == (
        "malformed",
        "is malformed: the number of notes is 1024, expected fewer; install the plugin again",
    )


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 63, 64, 700, 3000, 5500, -64, -1])
def test_truncated_plugin_is_refused_before_dlopen(
    workbench: Workbench, tmp_path: Path, kept: int
) -> None:
    path = workbench.plugin(tmp_path, "sm_90")
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    done = workbench.probe(tmp_path / "vecsort_plugins", "--open", 0, gpus="9.0")
    assert f"candidate truncated: {path} is truncated: it has {path.stat().st_size} bytes, its" in (
        done.stdout
    )
    assert done.returncode == 4


def test_plugin_changed_after_reading_is_not_opened(workbench: Workbench, tmp_path: Path) -> None:
    path = workbench.plugin(tmp_path, "sm_90")
    command = [str(workbench.folder / "probe"), str(tmp_path / "vecsort_plugins"), "--open", "0"]
    mark = tmp_path / "mark"
    with subprocess.Popen(
        [*command, "--wait"],
        env=workbench.environment("9.0", STUB_MARK=str(mark)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        while not child.stdout.readline().startswith("candidate accepted"):
            pass
        workbench.stub(path, Stub(version=b"9.9.9"))
        output, _ = child.communicate("\n")
    assert f"failed with 5: {path} changed since it was read" in output
    assert not mark.exists()


def test_unopenable_plugin_is_an_error_with_dlopens_message(
    workbench: Workbench, tmp_path: Path
) -> None:
    path = workbench.plugin(tmp_path, "sm_90")
    path.write_bytes(path.read_bytes().replace(b"libc.so.6", b"libc.so.7"))
    done = workbench.probe(tmp_path / "vecsort_plugins", "--open", 0, gpus="9.0")
    assert "failed with 5: libc.so.7: cannot open shared object file" in done.stdout


@pytest.mark.parametrize("kind", ["fifo", "folder", "absent", "dangling"])
def test_path_other_than_a_file_is_unreadable(
    workbench: Workbench, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "p.so"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    verdict, reason = verdict_of(workbench, path)
    assert verdict == "unreadable"
    assert reason.startswith("can't be opened: ")


@pytest.mark.parametrize("path", ["plugin.so", "/a/$ORIGIN/p.so", "/a/${LIB}/p.so", "/$LIB/p.so"])
def test_path_with_dlopen_variables_is_refused(workbench: Workbench, path: str) -> None:
    done = workbench.probe("--file", path, "--skip")
    assert f"candidate unreadable: {path} can't be opened by this path" in done.stdout


def test_folder_without_its_library_is_told(workbench: Workbench, tmp_path: Path) -> None:
    folder = tmp_path / "vecsort_plugins"
    (folder / "cuda" / "sm_90").mkdir(parents=True)
    done = workbench.probe(folder, "--skip")
    assert f"candidate missing: {folder}/cuda/sm_90/{LIBRARY} is missing from its folder" in (
        done.stdout
    )


def test_other_folders_are_passed_over(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "vecsort_plugins" / "cuda" / "__pycache__").mkdir(parents=True)
    (tmp_path / "vecsort_plugins" / "cuda" / ".hidden").mkdir()
    done = workbench.probe(tmp_path / "none", tmp_path / "file", tmp_path / "vecsort_plugins")
    assert "candidate" not in done.stdout


def as_other_user(workbench: Workbench, folder: Path) -> str:
    """Return the output for a user without rights; root may read everything."""
    user = 65534 if os.geteuid() == 0 else None
    command = [str(workbench.folder / "probe"), str(folder), "--skip"]
    open_up = [workbench.folder, *workbench.folder.parents]
    reachable = [each for each in (*open_up, *folder.parents) if each.owner() == "root"]
    if user is not None:
        for each in reachable:
            if not each.stat().st_mode & 1 and str(each).startswith("/tmp"):
                each.chmod(0o755)
    done = subprocess.run(
        command, user=user, env={}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("part", ["cuda", "cuda/sm_90", f"cuda/sm_90/{LIBRARY}"])
def test_missing_permission_is_a_verdict(workbench: Workbench, tmp_path: Path, part: str) -> None:
    workbench.plugin(tmp_path, "sm_90")
    folder = tmp_path / "vecsort_plugins"
    (folder / part).chmod(0)
    output = as_other_user(workbench, folder)
    (folder / part).chmod(0o755)
    assert f"candidate unreadable: {folder}/cuda" in output
    assert "Permission denied" in output


def test_of_two_plugins_for_one_target_the_first_folders_counts(
    workbench: Workbench, tmp_path: Path
) -> None:
    first = workbench.plugin(tmp_path / "1", "sm_90")
    second = workbench.plugin(tmp_path / "2", "sm_90")
    done = workbench.probe(
        tmp_path / "1" / "vecsort_plugins", tmp_path / "2" / "vecsort_plugins", "--skip"
    )
    assert f"candidate accepted: {first} \n" in done.stdout
    assert f"candidate shadowed: {second} is not used: {first} has the same target" in done.stdout


def test_refused_plugin_shadows_nothing(workbench: Workbench, tmp_path: Path) -> None:
    workbench.plugin(tmp_path / "1", "sm_90", Stub(version=b"1.2.2"))
    second = workbench.plugin(tmp_path / "2", "sm_90")
    done = workbench.probe(
        tmp_path / "1" / "vecsort_plugins", tmp_path / "2" / "vecsort_plugins", "--skip"
    )
    assert f"candidate accepted: {second}" in done.stdout


@pytest.mark.parametrize("stub", [Stub(), Stub(version=b"0")])
def test_same_file_counts_once(workbench: Workbench, tmp_path: Path, stub: Stub) -> None:
    path = workbench.plugin(tmp_path / "1", "sm_90", stub)
    (tmp_path / "2").symlink_to(tmp_path / "1")
    done = workbench.probe(
        tmp_path / "1" / "vecsort_plugins", tmp_path / "2" / "vecsort_plugins", "--skip"
    )
    assert done.stdout.count("candidate ") == 2
    assert f"candidate shadowed: {tmp_path}/2/vecsort_plugins/cuda/sm_90/{LIBRARY} " in done.stdout
    assert f"is not used: it is the same file as {path}" in done.stdout


def test_plugins_of_several_targets_are_listed_in_order(
    workbench: Workbench, tmp_path: Path
) -> None:
    for target in ("sm_90", "compute_90", "sm_80"):
        workbench.plugin(tmp_path, target)
    done = workbench.probe(tmp_path / "vecsort_plugins", "--skip")
    listed = [line.split("/")[-2] for line in done.stdout.splitlines() if "candidate" in line]
    assert listed == ["compute_90", "sm_80", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "opened"),
    [("9 0", True), ("8 0", True), ("7 5", False), ("12 1", False)],
)
def test_capability_is_served_without_a_device(
    workbench: Workbench, tmp_path: Path, capability: str, opened: bool
) -> None:
    for target in ("sm_90", "sm_80"):
        workbench.plugin(tmp_path, target)
    folder = tmp_path / "vecsort_plugins"
    done = workbench.probe(folder, "--skip", "--capability", *capability.split())
    assert ("opened" in done.stdout) is opened
    if not opened:
        words = capability.replace(" ", ".")
        assert f"no plugin of vecsort 1.2.3 serves capability {words}" in done.stdout
        assert f"{folder}/cuda/sm_80/{LIBRARY} serves other GPUs: sm_80" in done.stdout


def test_stubs_match_this_machine() -> None:
    assert sys.byteorder == "little"
