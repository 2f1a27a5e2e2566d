"""Compiling the loader for core wheels, with the real compiler."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import OutputError, ToolFailedError, ToolNotFoundError
from archsplit.formats.elf import ElfMachine, FileType, Machine
from archsplit.release.identity import LOADER_LIBRARY
from archsplit.release.loader_build import build_loader, observe
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(folder: Path, machine: ElfMachine = "x86_64") -> Path:
    folder.mkdir(parents=True)
    return build_loader(folder=folder, runner=SubprocessRunner(), machine=machine)


def test_bytes_do_not_depend_on_the_folder(workbench: Workbench, tmp_path: Path) -> None:
    library = build(tmp_path / "deeper and longer than the other")
    assert digest(library) == digest(workbench.library)
    assert list(library.parent.iterdir()) == [library]


def test_other_machines_are_compiled_for(tmp_path: Path) -> None:
    first = build(tmp_path / "a", "aarch64")
    assert observe(first).machine == Machine.AARCH64
    assert digest(first) == digest(build(tmp_path / "b", "aarch64"))


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
    assert len(found.exports) == 20
    assert all(name.startswith("archsplit_") for name in found.exports)


def test_missing_folder_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        build_loader(folder=tmp_path / "none", runner=SubprocessRunner())


def test_missing_compiler_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ToolNotFoundError, match="hint: pip install ziglang"):
        build_loader(folder=tmp_path, runner=SubprocessRunner())
    assert list(tmp_path.iterdir()) == []


def test_other_machine_than_asked_for_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    fake = FakeCompiler(workbench.library.read_bytes())
    with pytest.raises(ToolFailedError, match="ELF machine: found x86_64, expected aarch64"):
        build_loader(folder=tmp_path, runner=fake, machine="aarch64")


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
        build_loader(folder=tmp_path, runner=FakeCompiler(None))
    assert list(tmp_path.iterdir()) == []


def test_other_result_than_asked_for_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError, match="plugin loader is wrong") as caught:
        build_loader(folder=tmp_path, runner=FakeCompiler(workbench.template))
    assert "exports: found stub_answer, expected archsplit_best_target archsplit_" in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []
