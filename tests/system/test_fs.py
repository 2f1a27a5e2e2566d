from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from archsplit.errors import DiskFullError, InputError, OutputError
from archsplit.system import file_lock, fs, temporary_files
from killed_children import leave_half_an_output


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    fs.write_file(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["file"]


def test_text_with_a_non_utf_8_name_is_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xffa")
    fs.write_file(tmp_path / name, f"<h1>{name}</h1>")
    assert (tmp_path / name).read_bytes() == b"<h1>\\udcffa</h1>"


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), fs.atomic_replace(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_ctrl_c_just_after_a_file_was_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.open

    def interrupted(path: Path, flags: int, mode: int) -> int:
        os.close(made(path, flags, mode))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fs.write_file(tmp_path / "file", "content")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="no space left"), fs.output_errors(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_to_a_full_device_is_a_disk_full_error(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(DiskFullError), fs.output_errors(full), full.open("wb", buffering=0) as file:
        file.write(b"x")


def test_a_stable_folder_is_the_same_next_time_and_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with fs.stable_dir("one") as first, fs.stable_dir("other") as other:
        (first / "left").mkdir()
        (first / "left" / "file").write_text("")
        order: list[str] = []

        def wait() -> None:
            with fs.stable_dir("one") as again:
                order.append("second")
                assert again == first
                assert os.listdir(again) == []

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join(timeout=10)
    assert order == ["first", "second"]
    assert other != first
    assert os.listdir(tmp_path) == []


def test_a_stable_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with fs.stable_dir("one") as first:
        pass
    first.mkdir(mode=0o755)
    (first / "theirs").write_text("")
    with fs.stable_dir("one") as other:
        assert other != first
    assert os.listdir(first) == ["theirs"]


def test_uncreatable_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="can't write") as caught,
        fs.output_dir(tmp_path / "file" / "folder"),
    ):
        pass
    assert caught.value.hint is not None
    assert caught.value.exit_code == 10


def test_too_long_name_is_an_output_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="File name too long"),
        fs.output_dir(tmp_path / ("x" * 300)),
    ):
        pass
    assert not [*tmp_path.iterdir()]


def test_an_output_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    with fs.output_dir(tmp_path / "a" / "b") as folder:
        assert folder.is_dir()
        assert os.listdir(folder) == []
    assert folder.is_dir()


def test_an_unused_output_folder_is_removed_on_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), fs.output_dir(tmp_path / "a" / "b"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError), fs.output_dir(tmp_path / "a") as folder:
        (folder / "kept").touch()
        raise RuntimeError
    assert os.listdir(tmp_path / "a") == ["kept"]


def test_a_temporary_folder_is_removed_on_success_and_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), fs.temporary_dir(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "x").write_text("x")
        raise RuntimeError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["mkdir", "try_lock"])
def test_ctrl_c_just_after_a_temporary_folder_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    make = Path.mkdir

    def interrupt(at: Path | int, mode: int = 0o700) -> None:
        if isinstance(at, Path):
            make(at, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path if moment == "mkdir" else temporary_files, moment, interrupt)
    with pytest.raises(KeyboardInterrupt), fs.temporary_dir(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    for read in (fs.read_file, fs.sha256):
        with pytest.raises(InputError, match=r"can't read .*gone: No such file"):
            read(tmp_path / "gone")


def test_digest_matches_the_content(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "x").write_bytes(content)
    assert fs.sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    assert fs.read_file(tmp_path / "x") == content


def abandoned(parent: Path) -> Path:
    """Make a temporary folder in a process that is killed."""
    child = os.fork()
    if child == 0:
        with fs.temporary_dir(parent) as folder:
            (folder / "half-written.whl").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (folder,) = (path for path in parent.glob(".archsplit-*") if path.is_dir())
    return folder


def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    assert [path.name for path in left.iterdir()] == ["half-written.whl"]
    with fs.temporary_dir(tmp_path) as folder:
        assert set(os.listdir(tmp_path)) == {folder.name, folder.stem}
    assert os.listdir(tmp_path) == []


def test_link_in_place_of_an_abandoned_folder_costs_its_target_nothing(tmp_path: Path) -> None:
    common, mine = tmp_path / "common", tmp_path / "mine"
    common.mkdir()
    left = abandoned(common)
    left.rename(mine)
    left.symlink_to(mine)
    with fs.temporary_dir(common):
        assert os.listdir(mine) == ["half-written.whl"]


def test_next_output_removes_leftovers_of_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "toy.whl"
    path.write_text("old")
    (tmp_path / ".toy.whl.1a2b3c4d").write_text("mine")
    left = leave_half_an_output(path)
    assert len(left) == 1
    assert path.read_text() == "old"
    fs.write_file(path, "new")
    assert sorted(os.listdir(tmp_path)) == [".toy.whl.1a2b3c4d", "toy.whl"]


def test_file_removed_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a new file for abandoned, for a moment."""
    lock = file_lock.try_lock
    seen: list[str] = []

    def remove_first(descriptor: int) -> bool:
        if not seen:
            seen.extend(os.listdir(tmp_path))
            temporary_files.remove_abandoned(str(tmp_path))
            assert os.listdir(tmp_path) == []
        return lock(descriptor)

    monkeypatch.setattr(temporary_files, "try_lock", remove_first)
    fs.write_file(tmp_path / "file", "new")
    assert len(seen) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_file_removed_by_another_process_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = file_lock.try_lock
    answers = iter([False, True])
    monkeypatch.setattr(
        temporary_files, "try_lock", lambda descriptor: next(answers) and lock(descriptor)
    )
    with fs.temporary_dir(tmp_path) as folder:
        assert folder.is_dir()
    assert next(answers, None) is None


@pytest.mark.parametrize(
    "name",
    [
        ".archsplit-slim",
        ".archsplit-cache",
        ".archsplit-notes",
        ".archsplit-1a2b3c4d",
        ".archsplit-1a2b3c4d00000000",
        ".archsplit-1a2b3c4d00000000.d",
        ".archsplit-1A2B3C4D51668534",
        ".archsplit- 1a 2b51668534",
    ],
)
def test_a_file_or_folder_with_another_name_survives(tmp_path: Path, name: str) -> None:
    assert temporary_files.marked_name(bytes.fromhex("1a2b3c4d")) == ".archsplit-1a2b3c4d51668534"
    (tmp_path / "folders" / name).mkdir(parents=True)
    (tmp_path / "folders" / name / "mine").write_text("x")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / name).write_text("x")
    (tmp_path / "files" / f"{name}.lock").write_text("x")
    for folder in ("folders", "files"):
        for path in (tmp_path / folder).iterdir():
            os.utime(path, (0, 0))
        with fs.temporary_dir(tmp_path / folder):
            pass
    assert (tmp_path / "folders" / name / "mine").read_text() == "x"
    assert sorted(os.listdir(tmp_path / "files")) == [name, f"{name}.lock"]


def test_a_folder_without_its_marker_survives(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    left.with_suffix("").unlink()
    with fs.temporary_dir(tmp_path):
        pass
    assert os.listdir(tmp_path) == [left.name]


def test_a_folder_in_use_is_not_removed(tmp_path: Path) -> None:
    with fs.temporary_dir(tmp_path) as first:
        os.utime(first, (0, 0))
        with fs.temporary_dir(tmp_path):
            assert first.exists()


def test_a_stable_folder_never_replaces_a_folder_without_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with fs.stable_dir("one") as first:
        pass
    first.mkdir(mode=0o700)
    (first / "mine").write_text("x")
    with fs.stable_dir("one") as other:
        assert other != first
    assert (first / "mine").read_text() == "x"


def test_unremovable_temporary_folder_keeps_its_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with fs.temporary_dir(tmp_path) as folder:
            (folder / "busy").mkdir()  # a folder with files only is removed without `shutil`
    assert set(os.listdir(tmp_path)) == {folder.name, folder.stem}
    with fs.temporary_dir(tmp_path):
        assert not folder.exists()
    assert os.listdir(tmp_path) == []
