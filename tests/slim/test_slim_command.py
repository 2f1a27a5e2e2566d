"""The verb, on files: what is written, under which name, and what is said of it."""

from __future__ import annotations

import argparse
import io
import json
import os
import random
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from slim_wheel_samples import NAME, fat_wheel

from archsplit.cli import slim
from archsplit.errors import (
    BinaryFormatError,
    InputError,
    NothingToDoError,
    OutputError,
    TargetError,
    UsageError,
)
from archsplit.formats.fatbin import read_containers
from archsplit.formats.reader import open_file
from archsplit.slim.report import RemovedImages, SlimmedFile, SlimReport, _slimmed_files
from handmade_samples import THREE, Maker, container, held, image, in_memory, lz4_image
from shared_frames import frame, record

if TYPE_CHECKING:
    from pathlib import Path


def run(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    slim.add_to(parser.add_subparsers())
    arguments = parser.parse_args(["slim", *map(str, argv)])
    code: int = arguments.run(arguments, Console(stderr=True))
    return code


@pytest.fixture
def library(maker: Maker) -> Path:
    library = maker.library()
    library.chmod(0o755)
    return library


def test_library_is_slimmed_into_a_new_file(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = library.read_bytes()
    words = (library, "--device", "9.0", "--try-load", "--out", tmp_path / "out")
    assert run(*words) == 0
    new = tmp_path / "out" / "libsample.slim.cc90.so"
    assert os.listdir(tmp_path / "out") == [new.name]
    assert library.read_bytes() == before
    assert held(new) == [["sm_90", "compute_90"], ["compute_80"], ["sm_90a", "compute_90"]]
    assert len(in_memory(new, 3)) == 3
    assert new.stat().st_mode & 0o777 == 0o755
    said = capsys.readouterr().out
    assert "libsample.so: loads" in said
    assert "--keep-ptx none saves" in said
    assert "more on disk; then GPUs newer than 9.0 find no code" in said
    assert "8.6" in said
    assert "stops" in said
    # No borders, and the GPU that was asked for is first.
    assert not set("┃│━─┏┗") & set(said)
    first = said.partition("\nGPU ")[2].splitlines()[1].rstrip().split("  ")
    assert (first[0], first[-1].strip()) == ("9.0 H100, H200", "as before")


def test_report_is_written_as_json(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(library, "--device=9.0", "--device=8.6", "--json", "--out", tmp_path / "out") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["choice"] == "--device 8.6 --device 9.0 --keep-ptx newest"
    (file,) = report["files"]
    assert {row["target"] for row in file["removed"]} == {"sm_80", "sm_90"}
    eight = next(each for each in report["effects"] if each["capability"] == "8.0")
    assert eight == {
        "capability": "8.0",
        "before": {"native": 2, "none": 1},
        "after": {"native": 1, "ptx": 1, "none": 1},
        "stops": 0,
    }


def test_images_of_other_gpus_leave_shared_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = container(frame(record("sm_80", 0, 24), record("sm_90", 24, 16)))
    fatbin = tmp_path / "shared.fatbin"
    fatbin.write_bytes(shared + container(image("sm_80"), image("sm_90")))
    assert run(fatbin, "--device", "9.0", "--json", "--out", tmp_path / "out") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert [(row["target"], row["count"]) for row in file["removed"]] == [("sm_80", 2)]
    new = tmp_path / "out" / "shared.slim.cc90.fatbin"
    first, second = read_containers(open_file(new))
    assert [str(one.target) for one in first.entries()] == ["sm_90"]
    assert second.body.to_bytes() == image("sm_90")


def test_images_left_in_shared_frames_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = random.Random(1).randbytes(2000)
    records = (record("sm_80", 0, 8), record("sm_90", 8, 2000), record("sm_90", 2008, 2000))
    shared = container(frame(*records, content=bytes(8) + noise * 2))
    fatbin = tmp_path / "shared.fatbin"
    fatbin.write_bytes(shared + container(image("sm_80"), image("sm_90")))
    assert run(fatbin, "--device", "9.0", "--out", tmp_path / "out") == 0
    assert "kept 3 images: in frames of several (kind 256)" in capsys.readouterr().out
    fatbin.write_bytes(shared)
    with pytest.raises(NothingToDoError, match=r"shared\.fatbin: 3 images, 2\.29 kB, in frames of"):
        run(fatbin, "--device", "9.0", "--out", tmp_path / "out")


def test_dry_run_writes_nothing(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(library, "--drop", "sm_86", "--dry-run", "--out", out) == 0
    assert not out.exists()
    said = capsys.readouterr().out
    assert "B would be saved; nothing was written" in said
    assert "--drop sm_86" in said


def test_slim_without_code_to_remove_changes_nothing(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--drop", "sm_75", "--out", tmp_path / "out")
    said = (
        r"nothing to take out\n  libsample.so: 9 images, \d{3} kB, kept by --drop sm_75\nhint: --c"
    )
    with pytest.raises(NothingToDoError, match=said):
        run(library, *words)
    with pytest.raises(NothingToDoError):
        run(library, *words, "--json")
    assert json.loads(capsys.readouterr().out)["output"] is None
    assert not (tmp_path / "out").exists()
    assert run(library, *words, "--copy") == 0
    assert (tmp_path / "out" / library.name).read_bytes() == library.read_bytes()
    assert "Copied the file as it is: " in capsys.readouterr().err
    with pytest.raises(OutputError, match="is the input"):
        run(library, *words[:-1], library.parent, "--copy")


def test_libraries_are_loaded_with_their_dependencies(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker.run("gcc", "-shared", "-x", "c", "/dev/null", "-o", "libneeded.so")
    flags = ("-Wl,--no-as-needed", "-L.", "-lneeded")
    fat = fat_wheel(
        tmp_path, library=Maker(folder=maker.folder, flags=flags).library().read_bytes()
    )
    words = (fat, "--device=9.0", "--out", tmp_path / "out", "--try-load")
    assert run(*words) == 0
    assert "changed libraries that could not be tried here: 1 of 1" in capsys.readouterr().out
    more = ("--site-packages", maker.folder)
    assert run(*words, *more) == 0
    assert "libfat.so: loads" in capsys.readouterr().out
    with pytest.raises(UsageError, match="only says where --try-load finds libraries"):
        run(*words[:-1], *more)


def test_device_code_outside_of_the_fatbin_sections_is_named(maker: Maker, tmp_path: Path) -> None:
    content = container(image("sm_80"), image("sm_90"))
    (maker.folder / "raw.bin").write_bytes(content)
    (maker.folder / "raw.S").write_text(
        '.section .rodata\n.balign 8\n.incbin "raw.bin"\n.section .note.GNU-stack,"",%progbits\n'
    )
    maker.run("gcc", "-shared", "-o", "libraw.so", "raw.S")
    wheel = fat_wheel(tmp_path, library=(maker.folder / "libraw.so").read_bytes())
    said = r"libfat.so: 2 images, \S+ [kM]?B, outside of the fatbin sections, in .rodata"
    with pytest.raises(NothingToDoError, match=said):
        run(wheel, "--device", "9.0", "--out", tmp_path / "out")
    with pytest.raises(NothingToDoError) as refusal:
        run(wheel, "--device", "9.0", "--out", tmp_path / "out")
    assert "--unregistered zero overwrites 8.19 kB" in (refusal.value.hint or "")
    bare = fat_wheel(tmp_path, library=b"no library")
    with pytest.raises(NothingToDoError, match="it has no device code"):
        run(bare, "--device", "9.0", "--out", tmp_path / "out")


def test_wheel_is_slimmed_with_label_and_driver_note(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = fat_wheel(tmp_path)
    code = run(wheel, "--device=9.0", "--recompress=9", "--label=my", "--out", tmp_path / "out")
    assert code == 0
    assert os.listdir(tmp_path / "out") == [NAME.replace("1.2.3", "1.2.3+my")]
    said = capsys.readouterr().out
    assert "compressed images need driver 550.54.14 (CUDA 12.4) or later" in said


def test_result_is_the_last_line_after_the_zstd_hint(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = maker.library((container(lz4_image("sm_80"), lz4_image()),)).read_bytes()
    wheel = fat_wheel(tmp_path, library=library)
    assert run(wheel, "--device=9.0", "--out", tmp_path / "a") == 0
    assert run(wheel, "--device=9.0", "--recompress=9", "--out", tmp_path / "b") == 0
    first, second = capsys.readouterr().out.split("--device 9.0 --keep-ptx newest")[1:]
    saves = "--recompress 9 saves about "
    *_, note, result = first.splitlines()
    assert note.startswith(saves)
    assert result.endswith(" before")
    assert saves not in second
    assert os.listdir(tmp_path / "b")[0].split("-")[2] == "0slim.cc90.zstd"


def test_fatbin_is_slimmed_into_a_new_file(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fatbin = tmp_path / "three.fatbin"
    fatbin.write_bytes(b"".join(THREE))
    assert run(fatbin, "--keep=sm_90,sm_80,compute_80", "--out", tmp_path / "out") == 0
    assert os.listdir(tmp_path / "out") == ["three.slim.sm80.sm90.compute80.fatbin"]


@pytest.mark.parametrize("gpu", ["H100", "sm_90a", "90", "compute_90", "h200 nvl,9.0"])
def test_a_gpu_has_many_names(library: Path, tmp_path: Path, gpu: str) -> None:
    run(library, "--device", "9.0", "--out", tmp_path / "a")
    run(library, "--device", gpu, "--out", tmp_path / "b")
    (expected,), (found,) = (tmp_path / "a").iterdir(), (tmp_path / "b").iterdir()
    assert (found.name, found.read_bytes()) == (expected.name, expected.read_bytes())


def test_targets_have_many_spellings(library: Path, tmp_path: Path) -> None:
    run(library, "--keep", "sm_90", "--out", tmp_path / "a", "--keep-ptx", "newest")
    run(library, "--keep", "H100", "--out", tmp_path / "b", "--keep-ptx", "newest")
    (expected,), (found,) = (tmp_path / "a").iterdir(), (tmp_path / "b").iterdir()
    assert (found.name, found.read_bytes()) == (expected.name, expected.read_bytes())


def test_library_of_unchanged_length_is_reported(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = maker.library((container(image("sm_80", 8), image("sm_90", 8)),))
    assert run(library, "--device", "9.0", "--out", tmp_path / "out") == 0
    assert "keeps its length, with zeros" in capsys.readouterr().out


def test_slim_refuses_contradictory_options(library: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    text, cubin = tmp_path / "text.txt", tmp_path / "image.cubin"
    text.write_text("text")
    cubin.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\x00" + bytes(44))
    with pytest.raises(UsageError, match="name one of --device"):
        run(library, *out)
    with pytest.raises(UsageError, match="--keep-ptx has no effect"):
        run(library, "--drop", "sm_80", "--keep-ptx", "all", *out)
    with pytest.raises(BinaryFormatError, match="not a library for Linux"):
        run(text, "--device", "9.0", *out)
    with pytest.raises(UsageError, match="a single image"):
        run(cubin, "--device", "9.0", *out)
    with pytest.raises(UsageError, match="--label: 'my text!' is not a local version label"):
        run(tmp_path / "missing.whl", "--device", "9.0", "--label", "my text!")
    for unknown in ("99.9", "H1000"):
        with pytest.raises(TargetError, match=r"no GPU has|unknown GPU"):
            run(library, "--device", unknown, *out)
        with pytest.raises(TargetError, match=r"no GPU has|unknown GPU"):
            run(library, "--keep", unknown, *out)
    # PTX serves them, so all machine code would go.
    for source in ((library,), ("--site-packages", tmp_path)):
        with pytest.raises(TargetError, match=r"'sm_122': no GPU has the compute capability 12\.2"):
            run(*source, "--keep", "sm_90,sm_122")
    with pytest.raises(TargetError, match=r"nothing in it runs on 5\.0"):
        run(library, "--device", "5.0", *out)
    with pytest.raises(TargetError, match=r"8\.6 took sm_80"):
        run(library, "--keep", "sm_86", "--keep-ptx", "none", *out)
    with pytest.raises(InputError, match="no such file"):
        run(tmp_path / "missing.so", "--device", "9.0", *out)
    with pytest.raises(InputError, match="no such file"):
        run(tmp_path / NAME, "--device", "9.0", *out)
    assert not (tmp_path / "out").exists()


def test_truncated_library_is_refused_and_leaves_nothing(library: Path, tmp_path: Path) -> None:
    library.write_bytes(library.read_bytes()[:-1000])
    with pytest.raises(BinaryFormatError):
        run(library, "--device", "9.0", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_input_is_not_the_output(library: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "libsample.slim.cc90.so").hardlink_to(library)
    before = library.read_bytes()
    with pytest.raises(OutputError, match="is the input"):
        run(library, "--device", "9.0", "--out", tmp_path / "out")
    assert library.read_bytes() == before


@pytest.mark.parametrize(("count", "left"), [(8, 0), (9, 1), (20, 12)])
def test_notes_after_the_eighth_are_counted(
    library: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    left: int,
) -> None:
    notes = [f"<note {number}>" for number in range(count)]
    monkeypatch.setattr("archsplit.slim.report._notes", lambda *_: notes)
    assert run(library, "--device", "9.0", "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert [note for note in notes if note in said] == notes[:8]
    noun = "note" if left == 1 else "notes"
    assert (f"{left} more {noun}: --json has all" in said) == (left > 0)
    assert ("more note" in said) == (left > 0)


def many_files(count: int, targets: int) -> SlimReport:
    removed = tuple(
        RemovedImages(kind="SASS", target=f"sm_{80 + number}", count=1, file_bytes=1000)
        for number in range(targets)
    )
    files = tuple(
        SlimmedFile(
            path=f"lib{number}.so",
            size_before=10_000,
            size_after=5000 + number,
            mode="shrink",
            note=None,
            removed=removed,
        )
        for number in range(count)
    )
    return SlimReport(
        source="x.whl",
        output=None,
        size_before=10_000,
        size_after=5000,
        sha256=None,
        choice="--device 9.0",
        files=files,
        effects=(),
    )


def table_of(report: SlimReport) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_slimmed_files(report))
    return console.export_text()


@pytest.mark.parametrize(("targets", "left"), [(3, 0), (4, 1), (8, 5)])
def test_targets_after_the_third_are_counted(targets: int, left: int) -> None:
    said = table_of(many_files(1, targets))
    assert said.count("sm_") == 3
    assert (f", {left} more" in said) == (left > 0)
    assert ("more" in said) == (left > 0)


@pytest.mark.parametrize(("count", "left"), [(12, ""), (13, "1 more file "), (20, "8 more files ")])
def test_files_after_the_twelfth_are_added_up(count: int, left: str) -> None:
    said = table_of(many_files(count, 1))
    assert said.count(".so") == 12
    assert left in said
    assert ("more file" in said) == bool(left)
