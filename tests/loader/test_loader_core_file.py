"""An installed core as ``archsplit_core_read`` and the loader of Python read it."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import split_site
from loader_stubs import Workbench, run, write_table

from archsplit_loader import _bindings

if TYPE_CHECKING:
    from pathlib import Path

BAD_CORE = 7


@pytest.fixture(scope="module")
def library(workbench: Workbench) -> ctypes.CDLL:
    found = _bindings.open_library(str(workbench.folder))
    core = ctypes.POINTER(ctypes.POINTER(_bindings.CoreStruct))
    found.archsplit_core_read.argtypes = [ctypes.c_char_p, core]
    found.archsplit_core_free.argtypes = [ctypes.POINTER(_bindings.CoreStruct)]
    found.archsplit_core_free.restype = None
    return found


def read(library: ctypes.CDLL, folder: Path) -> tuple[str, str]:
    """Return the texts of a core whose loader can be made: table, folder of the plugins."""
    core = ctypes.POINTER(_bindings.CoreStruct)()
    assert library.archsplit_core_read(os.fsencode(folder), core) == 0
    found = core.contents
    assert found.size == ctypes.sizeof(_bindings.CoreStruct)
    texts = _bindings.text(found.table), _bindings.text(found.folders[0])
    loader = ctypes.c_void_p()
    status = library.archsplit_loader_create(core, loader)
    library.archsplit_core_free(core)
    if status != 0:
        assert status == BAD_CORE
        raise ValueError(_bindings.text(library.archsplit_last_error()))
    library.archsplit_loader_destroy(loader)
    return texts


def test_missing_folder_is_not_a_core(library: ctypes.CDLL, tmp_path: Path) -> None:
    core = ctypes.POINTER(_bindings.CoreStruct)()
    missing = os.fsencode(tmp_path / "missing")
    assert library.archsplit_core_read(missing, core) == BAD_CORE
    assert library.archsplit_last_error().endswith(b"can't be found: No such file or directory")
    with pytest.raises(ValueError, match="NULL"):
        _ = core.contents


def test_core_of_libraries_is_read(
    library: ctypes.CDLL, workbench: Workbench, tmp_path: Path
) -> None:
    face = workbench.core(tmp_path / "a site")
    plugins = tmp_path / "a site" / "vecsort_plugins"
    expected = (f"{face}/core.pack", str(plugins))
    assert read(library, face) == expected
    write_table(face, sm_90="ab" * 32)
    assert read(library, face) == expected


def test_core_of_packs_is_read(library: ctypes.CDLL, workbench: Workbench, tmp_path: Path) -> None:
    site = split_site(workbench, tmp_path)
    expected = (f"{site.face}/core.pack", f"{tmp_path}/toy_plugins")
    assert read(library, site.face) == expected


def test_damaged_table_is_refused(
    library: ctypes.CDLL, workbench: Workbench, tmp_path: Path
) -> None:
    face = workbench.core(tmp_path)
    table = face / "core.pack"
    content = table.read_bytes()
    unread = range(40, 48)  # the sizes of absent kinds of rows, and `reserved`
    for at in sorted({*range(len(content))} - {*unread}):
        table.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"core.pack\); install the core again"):
            read(library, face)
    for size in range(len(content)):
        table.write_bytes(content[:size])
        with pytest.raises(ValueError, match="install the core again"):
            read(library, face)
    table.unlink()
    with pytest.raises(ValueError, match="can't be opened: No such file"):
        read(library, face)
    os.mkfifo(table)
    with pytest.raises(ValueError, match="not a regular file"):
        read(library, face)


def test_plugin_is_held_against_the_targets_of_the_table(
    workbench: Workbench, tmp_path: Path
) -> None:
    face = workbench.core(tmp_path)
    workbench.plugin(tmp_path, "sm_100")
    done = run([sys.executable, str(face)], workbench.environment("10.0"))
    assert "is for sm_100, but vecsort 1.2.3 has no plugin for that" in done.stdout
