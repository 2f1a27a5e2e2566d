from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import OutputError
from archsplit.system.fs import check_output_names, replace_all

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_text(f"new {name}")
    (target / "b").write_text("old b")
    return source, target


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))}


def test_all_files_are_moved_and_replaced(folders: tuple[Path, Path]) -> None:
    source, target = folders
    replace_all(["a", "b"], source=source, target=target)
    assert contents(target) == {"a": "new a", "b": "new b"}


def test_links_are_replaced_and_their_files_stay(folders: tuple[Path, Path]) -> None:
    source, target = folders
    outside = target.parent / "outside"
    outside.write_text("precious")
    (target / "a").symlink_to(outside)
    (target / "c").symlink_to("nowhere")
    replace_all(["a", "c"], source=source, target=target)
    assert contents(target) == {"a": "new a", "b": "old b", "c": "new c"}
    assert outside.read_text() == "precious"


def test_failure_restores_links(folders: tuple[Path, Path]) -> None:
    source, target = folders
    (target / "a").symlink_to("b")
    (target / "c").symlink_to("nowhere")
    (source / "b").unlink()
    with pytest.raises(OutputError):
        replace_all(["a", "c", "b"], source=source, target=target)
    assert [str((target / name).readlink()) for name in ("a", "c")] == ["b", "nowhere"]
    assert (target / "b").read_text() == "old b"


def test_failure_restores_the_old_files(folders: tuple[Path, Path]) -> None:
    source, target = folders
    (source / "c").unlink()
    with pytest.raises(OutputError, match="c: No such file"):
        replace_all(["a", "b", "c"], source=source, target=target)
    assert contents(target) == {"b": "old b"}


def test_a_folder_in_the_way_is_named_before_anything_moves(folders: tuple[Path, Path]) -> None:
    source, target = folders
    (target / "c").mkdir()
    with pytest.raises(OutputError, match="a folder of that name is in the way"):
        replace_all(["a", "b", "c"], source=source, target=target)
    with pytest.raises(OutputError, match="in the way"):
        check_output_names(target, ["c"])
    (target / "c").rmdir()
    assert contents(target) == {"b": "old b"}


def test_ctrl_c_waits_until_it_is_done(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    real = type(source).replace

    def interrupted(self: Path, to: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return real(self, to)

    monkeypatch.setattr(type(source), "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_all(["a", "b"], source=source, target=target)
    assert contents(target) == {"a": "new a", "b": "new b"}


@pytest.mark.parametrize("is_symlink", [True, False])
@pytest.mark.parametrize("has_links", [True, False])
def test_no_name_is_ever_missing(
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_links: bool,
    is_symlink: bool,
) -> None:
    source, target = folders
    for name in ("a", "c"):
        (target / name).write_text(f"old {name}")
    if is_symlink:
        (target / "a").unlink()
        (target / "a").symlink_to("nowhere")
    seen: list[list[str]] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        del arguments
        if event in {"os.rename", "os.link", "os.remove", "open"} and watching:
            watching.clear()
            seen.append(sorted(os.listdir(target)))
            watching.append(True)

    def no_link(*names: object, follow_symlinks: bool) -> None:
        del follow_symlinks
        raise PermissionError(names)

    if not has_links:
        monkeypatch.setattr(os, "link", no_link)
    watching = [True]
    sys.addaudithook(watch)
    replace_all(["a", "b", "c"], source=source, target=target)
    watching.clear()
    assert len(seen) >= 6
    assert all(names == ["a", "b", "c"] for names in seen)
    assert contents(target) == {name: f"new {name}" for name in "abc"}
