"""Outputs that exist and are no regular files: written to, never replaced."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import OutputError
from archsplit.system import fs, outputs
from archsplit.system.fs import replace_all

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_folder_with_files_at_the_path_of_a_stored_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.mkdir()
    outputs.store_file(path, b"an empty folder is replaced")
    path.unlink()
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        outputs.store_file(path, b"new")
    assert [one.name for one in path.iterdir()] == ["notes.txt"]
    assert os.listdir(tmp_path) == ["stored"]


def by_replacing(path: Path) -> None:
    fs.write_file(path, "new")


def by_putting(path: Path) -> None:
    finished = path.parent / "finished"
    finished.write_text("new")
    with fs.output_errors(path):
        fs.put_file(finished, path)


def by_moving(path: Path) -> None:
    source = path.parent / "source"
    source.mkdir()
    for name in (path.name, "another"):
        (source / name).write_text("new")
    replace_all([path.name, "another"], source=source, target=path.parent)


def by_writing_over(path: Path) -> None:
    with fs.output_errors(path):
        outputs.overwrite_file(path, b"new")


ways = pytest.mark.parametrize("write", [by_replacing, by_putting, by_moving, by_writing_over])


@ways
def test_a_device_stays(tmp_path: Path, null_device: Path, write: Callable[[Path], None]) -> None:
    before = null_device.stat()
    write(null_device)
    assert os.path.samestat(before, null_device.stat())
    assert stat.S_ISCHR(null_device.stat().st_mode)
    assert {path.name for path in tmp_path.iterdir()} <= {"null", "finished", "source", "another"}


@ways
def test_a_fifo_takes_the_content(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    write(path)
    reader.join(timeout=10)
    assert read == ["new"]
    assert path.is_fifo()


# A folder's outputs replace a link: see test_fs_replace_all.py.
@pytest.mark.parametrize("write", [by_replacing, by_putting, by_writing_over])
def test_a_link_is_followed(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "real").write_text("a longer old text")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    fs.write_file(tmp_path / "dangling", "new")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "made").read_text() == "new"


def test_a_link_to_a_program_gives_a_program(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with fs.atomic_replace(tmp_path / "link", mode=0o755) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o755


def test_failure_leaves_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(RuntimeError), fs.atomic_replace(tmp_path / "link") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (tmp_path / "real").read_text() == "old"


def test_folder_is_refused_as_an_output(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="can't write"):
        fs.write_file(tmp_path / "folder", "new")
    assert (tmp_path / "folder").is_dir()


def test_another_name_of_an_old_file_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old")
    (tmp_path / "other").hardlink_to(tmp_path / "one")
    outputs.overwrite_file(tmp_path / "one", b"new")
    assert ((tmp_path / "one").read_text(), (tmp_path / "other").read_text()) == ("new", "old")


@pytest.mark.parametrize("write", ["overwrite_file", "store_file"])
def test_output_of_a_killed_writer_stays_old(tmp_path: Path, write: str) -> None:
    path = tmp_path / "a.o"
    path.write_bytes(b"old")
    program = (
        "import os, sys\n"
        "from functools import partial\n"
        "from pathlib import Path\n"
        f"from archsplit.system.outputs import {write} as write\n"
        "from killed_children import is_killed\n"
        "path = Path(sys.argv[1])\n"
        "found, left = [], set()\n"
        "while is_killed(partial(write, path, b'new'), len(found)):\n"
        "    found.append(path.read_bytes())\n"
        "    path.write_bytes(b'old')\n"
        "    assert not is_killed(partial(write, path, b'new'), 99)\n"
        "    left |= {*os.listdir(path.parent)}\n"
        "    path.write_bytes(b'old')\n"
        "print(sorted(set(found)), path.read_bytes(), left)\n"
    )
    # In a process of its own: a process with threads should not fork.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    argv = (sys.executable, "-c", program, str(path))
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment)
    # Its last changes come after the rename: the next writer does what is left of them.
    assert done.stdout == "[b'new', b'old'] b'new' {'a.o'}\n", done.stderr


def test_an_output_with_the_longest_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 255)
    outputs.overwrite_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == [path.name]


def test_unwritable_output_stays_old(tmp_path: Path) -> None:
    path = tmp_path / "a.o"
    path.write_bytes(b"old")
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from archsplit.system.outputs import overwrite_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        "overwrite_file(Path(sys.argv[1]), b'longer than the limit')\n"
    )
    argv = (sys.executable, "-c", program, str(path))
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.o"]


def test_unwritable_copy_does_not_blame_its_source(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"longer than the limit")
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from archsplit.system.fs import copy_into\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        "source = Path(sys.argv[1])\n"
        "copy_into(source, source.parent / 'out')\n"
    )
    argv = (sys.executable, "-c", program, str(tmp_path / "a.whl"))
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert "OutputError: can't write" in done.stderr
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("redirected", [True, False])
def test_standard_output_goes_on_behind_it(tmp_path: Path, *, redirected: bool) -> None:
    program = (
        "from pathlib import Path\n"
        "from archsplit.system.fs import write_file\n"
        "write_file(Path('/dev/stdout'), 'file ')\n"
        "print('text')\n"
    )
    argv = (sys.executable, "-c", program)
    out = tmp_path / "out"
    if redirected:
        with out.open("w") as file:
            file.write("before ")
            file.flush()
            subprocess.run(argv, stdout=file, check=True)
        assert out.read_text() == "before file text\n"
    else:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == "file text\n"


def test_a_file_without_room_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"earlier\n")
    outputs.append_to_file(path, b"more\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            outputs.append_to_file(path, b"0123456789")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"earlier\nmore\n"
