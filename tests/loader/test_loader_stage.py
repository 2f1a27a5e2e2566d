"""The compiled loader that archsplit carries: what it is, and how it is compiled again."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import build_loader
import pytest
from build_loader import build_loader_and_stub, observe, stale_files

from archsplit.errors import OutputError, ToolFailedError, ToolNotFoundError
from archsplit.formats.elf import ElfMachine, FileType, Machine
from archsplit.release import loader
from archsplit.release.identity import LOADER_LIBRARY
from archsplit.release.loader import (
    DIGESTS,
    STUB_LIBRARY,
    copy_loader,
    copy_loader_and_stub,
    prebuilt,
)
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from loader_objects import LOADER

if TYPE_CHECKING:
    from loader_stubs import Workbench

MOST_BYTES = 100_000
"""The limit of each compiled file: they are committed, and in every copy of archsplit."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(folder: Path, machine: ElfMachine = "x86_64") -> tuple[Path, Path]:
    folder.mkdir(parents=True)
    return build_loader_and_stub(folder=folder, runner=SubprocessRunner(), machine=machine)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_copies_equal_the_compiled_files(tmp_path: Path, machine: ElfMachine) -> None:
    loader, stub = copy_loader_and_stub(folder=tmp_path, machine=machine)
    assert observe(loader).machine == observe(stub).machine == Machine[machine.upper()]
    assert (observe(loader).soname, observe(stub).soname) == (LOADER_LIBRARY, STUB_LIBRARY)
    assert max(loader.stat().st_size, stub.stat().st_size) < MOST_BYTES


@pytest.mark.stress
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_sources_make_the_same_bytes_again(tmp_path: Path, machine: ElfMachine) -> None:
    for again in build(tmp_path / "deeper and longer than the other", machine):
        assert digest(again) == digest(Path(str(prebuilt())) / machine / again.name)


def test_a_changed_source_makes_the_compiled_files_stale(tmp_path: Path) -> None:
    tree = shutil.copytree(LOADER, tmp_path / "loader", symlinks=True)
    folder = tree / "prebuilt"
    assert stale_files(folder) == ()
    with (tree / "src" / "api.c").open("a") as file:
        file.write("/* another */\n")
    (tree / "src" / "new.h").touch()
    assert stale_files(folder) == ("../src/api.c", "../src/new.h")
    text = (folder / DIGESTS).read_text()
    (folder / DIGESTS).write_text(text.replace("-Os", "-O2"))
    assert DIGESTS in stale_files(folder)
    (folder / DIGESTS).unlink()
    assert "x86_64/libarchsplit_loader.so" in stale_files(folder)


def test_sha256sum_reads_the_digests() -> None:
    command = ["sha256sum", "--check", "--strict", "--quiet", DIGESTS]
    done = subprocess.run(command, cwd=str(prebuilt()), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("fault", ["changed", "missing", "no digests"])
def test_a_damaged_copy_of_archsplit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folder = Path(shutil.copytree(str(prebuilt()), tmp_path / "prebuilt"))
    monkeypatch.setattr(loader, "prebuilt", lambda: folder)
    library = folder / "x86_64" / LOADER_LIBRARY
    if fault == "changed":
        library.write_bytes(library.read_bytes() + b"\0")
    else:
        (library if fault == "missing" else folder / DIGESTS).unlink()
    with pytest.raises(ToolFailedError, match="hint: pip install --force-reinstall"):
        copy_loader(folder=tmp_path)
    assert not (tmp_path / LOADER_LIBRARY).exists()


def test_missing_folder_of_the_copy_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        copy_loader(folder=tmp_path / "none")


def test_needs_no_glibc_after_2_17(workbench: Workbench) -> None:
    text = subprocess.run(
        ["readelf", "-dVW", str(workbench.library)], capture_output=True, text=True, check=True
    ).stdout
    versions = {tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([\d.]+)", text)}
    assert max(versions) == (2, 17)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    assert f"soname: [{LOADER_LIBRARY}]" in text


def test_exports_the_public_functions_and_nothing_else(workbench: Workbench) -> None:
    found = observe(workbench.library)
    assert found.type == FileType.LIBRARY
    assert len(found.exports) == 22
    assert all(name.startswith("archsplit_") for name in found.exports)


def test_missing_folder_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        build_loader_and_stub(folder=tmp_path / "none", runner=SubprocessRunner())


def test_missing_compiler_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ToolNotFoundError, match=r"hint: pip install .*ziglang=="):
        build_loader_and_stub(folder=tmp_path, runner=SubprocessRunner())
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_compiler_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_loader, "version", lambda _: "0.13.0")
    words = r"ziglang 0.13.0 is installed, but .* 0.15.2\nhint: pip install ziglang==0.15.2"
    with pytest.raises(ToolNotFoundError, match=words):
        build_loader_and_stub(folder=tmp_path, runner=SubprocessRunner())


def test_check_with_another_version_of_the_compiler_names_the_version_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_loader, "version", lambda _: "0.13.0")
    assert build_loader.run_loader_build(["--check"]) == ToolNotFoundError.exit_code
    said = capsys.readouterr().err
    assert "ziglang 0.13.0 is installed, but the loader is built with 0.15.2" in said
    assert "is not what the sources make" not in said


def test_other_machine_than_asked_for_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    fake = FakeCompiler(workbench.library.read_bytes())
    with pytest.raises(ToolFailedError, match="ELF machine: found x86_64, expected aarch64"):
        build_loader_and_stub(folder=tmp_path, runner=fake, machine="aarch64")


class FakeCompiler:
    """Fails, or leaves a library of another kind than it was asked for."""

    def __init__(self, library: bytes | None) -> None:
        self.library = library

    def run(self, command: Command) -> CompletedProcess:
        if self.library is not None:
            (command.cwd / LOADER_LIBRARY).write_bytes(self.library)
        status = int(self.library is None)
        return CompletedProcess(
            returncode=status, stdout="", stderr="the compiler's words", seconds=0.0
        )

    def cancel(self) -> None:
        pass


def test_failing_compiler_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError, match="the compiler's words"):
        build_loader_and_stub(folder=tmp_path, runner=FakeCompiler(None))
    assert list(tmp_path.iterdir()) == []


def test_other_result_than_asked_for_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError, match="plugin loader is wrong") as caught:
        build_loader_and_stub(folder=tmp_path, runner=FakeCompiler(workbench.template))
    assert "exports: found stub_answer, expected archsplit_best_target archsplit_" in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []
