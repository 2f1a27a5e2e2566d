"""An installed environment, slimmed where it is: what changes, what doesn't, and the way back."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slim_site_samples import (
    LIBRARY,
    NOTE,
    OWN,
    Environment,
    NothingLoads,
    contents,
    effects,
    made,
    request,
    slim,
    snapshot,
)
from slim_wheel_samples import METADATA, fat_wheel

from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import (
    DiskFullError,
    InputError,
    OutputError,
    TargetError,
    UndoError,
    UsageError,
    VerifyError,
    WheelError,
)
from archsplit.slim.installed import _symlinked_folder
from archsplit.slim.site_packages import _freed_text, commit_site, slim_site, undo_site
from archsplit.slim.transaction import (
    _MARKER,
    _MARKER_TEXT,
    TRANSACTION_FOLDER,
    Transaction,
    check_free_space,
    check_writable,
    open_transaction,
)
from archsplit.system.temporary_files import is_marked_name
from handmade_samples import Maker, container, held, image
from killed_children import leave_half_an_output
from target_lists import parse_targets

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.system.process import Command, CompletedProcess


NINE = [["sm_90"], ["compute_80"], ["sm_90a"]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def environment(original: Environment, tmp_path: Path) -> Environment:
    return original.copy(tmp_path / "env")


@pytest.fixture
def site(environment: Environment) -> Path:
    return environment.site


def rows(site: Path, own: str = OWN) -> dict[str, tuple[str, str]]:
    with (site / own / "RECORD").open(newline="") as file:
        return {path: (digest, size) for path, digest, size in csv.reader(file)}


def row_of(path: Path) -> tuple[str, str]:
    digest = hashlib.sha256(path.read_bytes()).digest()
    text = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return f"sha256={text}", str(path.stat().st_size)


def test_libraries_get_smaller_and_load(site: Path) -> None:
    before, size = rows(site), (site / LIBRARY).stat().st_size
    report = slim_site(replace(request(site), tries_loading=True), effects())
    assert held(site / LIBRARY) == NINE
    assert (site / LIBRARY).stat().st_size < size
    assert report.checks == (
        f"{LIBRARY}: loads",
        "other/libother.so: can't be loaded here, and couldn't be before: libneighbour.so: cannot "
        "open shared object file: No such file or directory",
        "changed libraries that could not be tried here: 1 of 2",
    )
    after = rows(site)
    assert after.pop(NOTE) == row_of(site / NOTE)
    assert after.pop(LIBRARY) == row_of(site / LIBRARY)
    assert after == {path: row for path, row in before.items() if path != LIBRARY}
    assert rows(site, "other-1.dist-info")["other/libother.so"] == row_of(
        site / "other/libother.so"
    )


def test_note_lists_removed_targets(site: Path) -> None:
    slim(site)
    note = json.loads((site / NOTE).read_text())
    assert note["source"] == {"distribution": "fat-1.2.3"}
    (file,) = note["files"]
    assert file["path"] == LIBRARY
    assert {row["target"] for row in file["removed"]} >= {"sm_80", "sm_86", "compute_90"}


@pytest.mark.parametrize("mode", [0o444, 0o755])
def test_permissions_stay(site: Path, mode: int) -> None:
    (site / LIBRARY).chmod(mode)
    slim(site)
    assert (site / LIBRARY).stat().st_mode & 0o7777 == mode


def test_undo_puts_the_very_same_files_back(site: Path) -> None:
    before, inode = snapshot(site), (site / LIBRARY).stat().st_ino
    slim(site)
    assert undo_site(site) == ("restored 6 files",)
    assert snapshot(site) == before
    assert (site / LIBRARY).stat().st_ino == inode


def test_commit_removes_the_old_files(site: Path) -> None:
    slim(site)
    slimmed = contents(site)
    (said,) = commit_site(site)
    assert said.endswith("this can't be undone any more")
    assert contents(site) == {
        n: s for n, s in slimmed.items() if not n.startswith(TRANSACTION_FOLDER)
    }
    with pytest.raises(UndoError, match=r"fat-1\.2\.3, other-1 are gone") as caught:
        undo_site(site)
    assert caught.value.exit_code == 18
    assert "pip install --force-reinstall --no-deps fat==1.2.3 other==1" in str(caught.value)
    assert commit_site(site) == (f"there is nothing to commit in {site}",)


def record_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record what is flushed, renamed and removed, in order."""
    calls: list[tuple[str, str]] = []
    real_sync, real_replace, real_unlink = os.fsync, os.replace, os.unlink
    real_tree = shutil.rmtree

    def sync(descriptor: int) -> None:
        calls.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_sync(descriptor)

    def move(old: Path, new: Path) -> None:
        calls.append(("replace", str(new)))
        real_replace(old, new)

    def unlink(path: Path, *, dir_fd: int | None = None) -> None:
        calls.append(("unlink", str(path)))
        real_unlink(path, dir_fd=dir_fd)

    def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
        calls.append(("rmtree", str(path)))
        real_tree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", move)
    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(shutil, "rmtree", remove_tree)
    return calls


def test_new_files_are_flushed_before_the_journal_and_folders_before_each_state(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_disk(monkeypatch)
    slim(site)
    journal = ("replace", str(site / TRANSACTION_FOLDER / "journal.json"))
    switching, slimmed = (at for at, call in enumerate(calls) if call == journal)
    # Its content, under the temporary name: the rename may reach the disk before.
    for at in (switching, slimmed):
        kind, path = calls[at - 1]
        assert kind == "sync"
        assert Path(path).parent == site / TRANSACTION_FOLDER
        assert is_marked_name(Path(path).name)
    new = {path for kind, path in calls[switching:slimmed] if kind == "replace"} - {journal[1]}
    assert str(site / LIBRARY) in new
    assert str(site / OWN / "RECORD") in new
    waiting = site / TRANSACTION_FOLDER / "new"
    flushed = {path for kind, path in calls[:switching] if kind == "sync"}
    assert {str(waiting / Path(path).relative_to(site)) for path in new} <= flushed
    assert {str(waiting), str(waiting / "fat"), str(site)} <= flushed
    last = max(at for at, call in enumerate(calls) if call[0] == "replace" and call[1] in new)
    folders = {
        str((site / LIBRARY).parent),
        str(site / OWN),
        str(site / TRANSACTION_FOLDER / "old"),
    }
    assert folders <= {path for kind, path in calls[last:slimmed] if kind == "sync"}
    assert ("sync", str(site / TRANSACTION_FOLDER)) in calls[slimmed:]
    calls.clear()
    commit_site(site)
    removed = calls.index(("rmtree", str(site / TRANSACTION_FOLDER / "old")))
    assert journal in calls[:removed]
    assert ("sync", str(site / TRANSACTION_FOLDER)) in calls[calls.index(journal) : removed]


def test_an_undo_flushes_folders_before_the_journal_goes(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slim(site)
    calls = record_disk(monkeypatch)
    undo_site(site)
    gone = calls.index(("unlink", str(site / TRANSACTION_FOLDER / "journal.json")))
    last = max(at for at, call in enumerate(calls) if call == ("replace", str(site / LIBRARY)))
    assert last < gone
    assert {str((site / LIBRARY).parent), str(site / OWN)} <= {
        path for kind, path in calls[last:gone] if kind == "sync"
    }


def test_an_undo_without_its_store_is_an_error(site: Path) -> None:
    assert undo_site(site) == (f"there is nothing to undo in {site}",)
    slim(site)
    shutil.rmtree(site / TRANSACTION_FOLDER)
    with pytest.raises(UndoError, match="another program has removed"):
        undo_site(site)


@pytest.mark.parametrize("act", [undo_site, commit_site, slim])
def test_old_files_without_a_journal_are_never_removed(
    site: Path, act: Callable[[Path], object]
) -> None:
    slim(site)
    (site / TRANSACTION_FOLDER / "journal.json").unlink()
    before = snapshot(site)
    with pytest.raises(UndoError, match=r"journal\.json is gone"):
        act(site)
    assert snapshot(site) == before


def test_a_folder_of_another_program_is_not_taken_for_the_store(site: Path) -> None:
    (site / TRANSACTION_FOLDER).mkdir()
    (site / TRANSACTION_FOLDER / "mine").write_text("x")
    before = snapshot(site)
    with pytest.raises(OutputError, match="did not make"):
        slim(site)
    undo_site(site)
    commit_site(site)
    assert snapshot(site) == before


def test_pip_knows_its_way_afterwards(environment: Environment) -> None:
    site = environment.site
    slim(site)
    assert environment.pip("check").returncode == 0
    commit_site(site)
    done = environment.pip("uninstall", "--yes", "fat", "other")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in site.iterdir()] == []


def test_a_dry_run_changes_nothing(site: Path) -> None:
    before = snapshot(site)
    dry = slim(site, dry_run=True)
    assert snapshot(site) == before
    report = slim(site)
    assert (dry.size_after, dry.output) == (report.size_after, None)


def test_commit_reports_the_freed_space() -> None:
    assert _freed_text(4_000_000, 1_500_000).startswith("freed 2.5 MB: 4.0 MB of old files became")
    text = "slimming takes 2.5 MB more than before: the old files are shared"
    assert _freed_text(1_500_000, 4_000_000).startswith(text)


def test_slimming_twice_is_refused_until_committed(site: Path) -> None:
    slim(site)
    with pytest.raises(UsageError, match=r"slimmed already: --device 9\.0"):
        slim(site, "8.6")
    commit_site(site)
    report = slim(site)
    assert report.output is None
    assert not (site / TRANSACTION_FOLDER).exists()


def test_an_environment_can_be_slimmed_further(site: Path) -> None:
    slim(site, "9.0", "8.6")
    commit_site(site)
    between = contents(site)
    slim(site)
    assert held(site / LIBRARY) == NINE
    assert list(rows(site)).count(NOTE) == 1
    undo_site(site)
    assert contents(site) == between


@pytest.mark.parametrize("state", ["switching", "undoing"])
def test_an_interrupted_run_is_not_mixed_with_another(state: str, site: Path) -> None:
    before = snapshot(site)
    slim(site)
    journal = site / TRANSACTION_FOLDER / "journal.json"
    journal.write_text(journal.read_text().replace('"slimmed"', f'"{state}"'))
    with pytest.raises(UsageError, match=r"with other options|undo of"):
        slim(site, "8.6")
    with pytest.raises(UsageError, match=r"an earlier run on .* was interrupted"):
        commit_site(site)
    undo_site(site)
    assert snapshot(site) == before


def test_damaged_new_file_is_not_installed(site: Path) -> None:
    before = snapshot(site)
    slim(site)
    journal = site / TRANSACTION_FOLDER / "journal.json"
    journal.write_text(journal.read_text().replace('"slimmed"', '"switching"'))
    (site / TRANSACTION_FOLDER / "new/fat").mkdir(parents=True)
    (site / TRANSACTION_FOLDER / "new" / LIBRARY).write_bytes(b"")
    with pytest.raises(VerifyError, match=f"the new files for {LIBRARY} are damaged"):
        slim(site)
    undo_site(site)
    assert snapshot(site) == before


def test_a_linked_folder_of_a_distribution_is_left(site: Path, tmp_path: Path) -> None:
    (site / OWN).rename(tmp_path / OWN)
    (site / OWN).symlink_to(tmp_path / OWN)
    before = snapshot(tmp_path / OWN)
    report = slim(site)
    assert f"{OWN} is a symbolic link: its files were skipped" in report.notes
    assert snapshot(tmp_path / OWN) == before


def test_undo_refuses_a_file_changed_since(site: Path) -> None:
    slim(site)
    (site / LIBRARY).write_bytes(b"mine")
    slimmed = snapshot(site)
    with pytest.raises(VerifyError, match=LIBRARY):
        undo_site(site)
    assert snapshot(site) == slimmed
    undo_site(site, force=True)
    assert held(site / LIBRARY)[0] == ["sm_80", "sm_90", "compute_90"]


def test_removed_distribution_is_not_restored(environment: Environment) -> None:
    site = environment.site
    before = contents(site)
    slim(site)
    assert environment.pip("uninstall", "--yes", "fat").returncode == 0
    said = undo_site(site)
    assert said == (
        "restored 3 files",
        f"{OWN} has changed since, and is left as it is",
    )
    assert contents(site) == {n: s for n, s in before.items() if not n.startswith("fat")}


def test_reinstalled_distribution_is_not_undone(environment: Environment, tmp_path: Path) -> None:
    site = environment.site
    slim(site)
    name = "fat-2-py3-none-manylinux_2_17_x86_64.whl"
    environment.install(fat_wheel(tmp_path, name=name, library=b"another one"))
    said = undo_site(site)
    assert said[1:] == (f"{OWN} has changed since, and is left as it is",)
    assert (site / LIBRARY).read_bytes() == b"another one"


def test_file_not_matching_record_is_refused(site: Path) -> None:
    with (site / LIBRARY).open("ab") as file:
        file.write(b"more")
    before = snapshot(site)
    with pytest.raises(WheelError, match=f"{LIBRARY} doesn't match its hash in {OWN}/RECORD"):
        slim(site)
    with pytest.raises(WheelError, match="doesn't match its hash"):
        slim(site, dry_run=True)
    assert snapshot(site) == before
    slim(site, ignore_record=True)
    assert rows(site)[LIBRARY] == row_of(site / LIBRARY)


@pytest.mark.parametrize("hash_text", ["", "md5=1B2M2Y8AsgTpgAmy7PhCfg"])
def test_a_row_without_a_sound_hash_matches_nothing(hash_text: str, site: Path) -> None:
    record = site / OWN / "RECORD"
    old = rows(site)[LIBRARY][0]
    record.write_bytes(record.read_bytes().replace(old.encode(), hash_text.encode()))
    with pytest.raises(WheelError, match="doesn't match its hash"):
        slim(site)


def test_a_row_may_have_another_algorithm(site: Path) -> None:
    record = site / OWN / "RECORD"
    digest = hashlib.sha512((site / LIBRARY).read_bytes()).digest()
    text = "sha512=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
    old = rows(site)[LIBRARY][0]
    record.write_bytes(record.read_bytes().replace(old.encode(), text.encode()))
    slim(site)
    assert rows(site)[LIBRARY] == row_of(site / LIBRARY)


def test_cache_with_shared_files_is_unchanged(site: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.link(site / LIBRARY, cache / "linked")
    shutil.move(site / "other/libother.so", cache / "pointed-at")
    (site / "other/libother.so").symlink_to(cache / "pointed-at")
    kept, before = snapshot(cache), snapshot(site)
    report = slim(site)
    assert any("2 libraries shared" in note for note in report.notes)
    assert snapshot(cache) == kept
    assert not (site / "other/libother.so").is_symlink()
    assert held(site / "other/libother.so")[0] == ["sm_90"]
    undo_site(site)
    assert snapshot(site) == before
    assert (site / LIBRARY).samefile(cache / "linked")


def test_a_link_within_the_environment_stays_one(site: Path) -> None:
    (site / LIBRARY).rename(site / "fat/libfat.so.1")
    (site / LIBRARY).symlink_to("libfat.so.1")
    slim(site)
    assert (site / LIBRARY).readlink().name == "libfat.so.1"
    assert held(site / LIBRARY)[0] == ["sm_90"]
    assert rows(site)[LIBRARY] == row_of(site / "fat/libfat.so.1")


def test_library_behind_a_linked_folder_is_skipped(site: Path, tmp_path: Path) -> None:
    (site / "fat").rename(tmp_path / "elsewhere")
    (site / "fat").symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    report = slim(site)
    assert f"{LIBRARY} is below the symbolic link fat, and was skipped" in report.notes
    assert snapshot(tmp_path / "elsewhere") == before
    assert [file.path for file in report.files] == ["other/libother.so"]


def test_linked_outermost_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "real/b").mkdir(parents=True)
    (tmp_path / "site/plain").mkdir(parents=True)
    (tmp_path / "site/a").symlink_to(tmp_path / "real")
    (tmp_path / "site/real").symlink_to("a/b")
    # The environment itself may be behind a link.
    (tmp_path / "link").symlink_to("site")
    for site in (tmp_path / "site", tmp_path / "link"):
        assert _symlinked_folder(site, "a/b/c.so") == "a"
        assert _symlinked_folder(site, "real/c.so") == "real"
        assert _symlinked_folder(site, "plain/c.so") is None


def test_library_outside_of_the_folder_is_skipped(site: Path) -> None:
    (site.parent / "libfar.so").write_bytes((site / LIBRARY).read_bytes())
    with (site / OWN / "RECORD").open("a") as file:
        file.write("../libfar.so,,\n")
    report = slim(site)
    assert any(note.startswith("../libfar.so is outside of") for note in report.notes)


def test_a_file_of_two_distributions_is_right_in_both_records(
    environment: Environment, tmp_path: Path
) -> None:
    site = environment.site
    library = (site / LIBRARY).read_bytes()
    name = "third-3-py3-none-manylinux_2_17_x86_64.whl"
    environment.install(fat_wheel(tmp_path, name=name, library=library, more={LIBRARY: library}))
    slim(site)
    third = rows(site, "third-3.dist-info")
    assert third[LIBRARY] == rows(site)[LIBRARY] == row_of(site / LIBRARY)


def test_editable_packages_are_left(environment: Environment, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "libmine.so").write_bytes((environment.site / LIBRARY).read_bytes())
    own = environment.site / "mine-1.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(METADATA.replace("Name: fat", "Name: mine"))
    (own / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    (environment.site / "mine.pth").write_text(f"{source}\n")
    (own / "RECORD").write_text("mine.pth,,\nmine-1.dist-info/RECORD,,\n")
    before = snapshot(source)
    report = slim(environment.site)
    assert snapshot(source) == before
    assert "mine-1 is installed editable: its source folder was skipped" in report.notes


def test_library_without_code_for_the_device_is_skipped(
    environment: Environment, tmp_path: Path
) -> None:
    site = environment.site
    (tmp_path / "old").mkdir()
    library = Maker(folder=tmp_path / "old").library((container(image("sm_70")),)).read_bytes()
    name = "old-4-py3-none-manylinux_2_17_x86_64.whl"
    environment.install(fat_wheel(tmp_path, name=name, library=library))
    report = slim(site)
    assert (
        "old-4 is left unchanged: it registers no code for --device 9.0 --keep-ptx none"
        in report.notes
    )
    assert (site / "old/libold.so").read_bytes() == library
    undo_site(site)
    slim(site, "9.0", "7.0")
    assert held(site / LIBRARY) == NINE
    assert (site / "old/libold.so").read_bytes() == library
    undo_site(site)
    with pytest.raises(TargetError, match=r"nothing in it runs on 5\.0"):
        slim(site, "9.0", "5.0")
    # Each package may lack a target, and one of them must have it.
    wanted = Selection(keep=frozenset(parse_targets("sm_90,sm_90a,sm_80,sm_70,sm_60")))
    with pytest.raises(TargetError, match="nothing in it is for sm_60; it has sm_70, sm_80, "):
        slim_site(replace(request(site), selection=wanted), effects(NothingLoads()))
    order = Selection(keep=frozenset(parse_targets("sm_90,sm_90a,sm_80")), ptx=PtxPolicy.ALL)
    slim_site(replace(request(site), selection=order), effects(NothingLoads()))
    assert held(site / "old/libold.so") == [["sm_70"]]


def test_a_damaged_library_is_left(site: Path) -> None:
    content = (site / LIBRARY).read_bytes()
    (site / LIBRARY).write_bytes(content[: len(content) // 2])
    report = slim(site)
    assert any(note.startswith(f"{LIBRARY} is left unchanged: ") for note in report.notes)


def test_a_damaged_record_is_refused(site: Path) -> None:
    (site / OWN / "RECORD").write_text("one,two\n")
    with pytest.raises(WheelError, match=r"row 1 has \d+ columns?, not 3"):
        slim(site)


def test_record_row_with_an_impossible_file_name_is_refused(site: Path) -> None:
    with (site / OWN / "RECORD").open("a") as file:
        file.write("x" * 300 + ",,\n")
    with pytest.raises(InputError, match="File name too long"):
        slim(site)


def test_foreign_journal_is_refused(site: Path) -> None:
    slim(site)
    journal = site / TRANSACTION_FOLDER / "journal.json"
    text = journal.read_text()
    for wrong in (
        "text",
        "[]",
        "[" * 100_000,
        text.replace('"schema": 1', '"schema": 2'),
        text.replace('"slimmed"', '"other"'),
        text.replace(f'"{LIBRARY}"', '"../../etc/passwd"'),
        text.replace('"new": "', '"new": "x'),
    ):
        journal.write_text(wrong)
        with pytest.raises(InputError, match=r"has schema|not a journal"):
            undo_site(site)


def test_the_journal_survives_a_power_cut_before_a_file_changes(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, sync, changed_at = (site / LIBRARY).read_bytes(), os.fsync, dict[int, bool]()

    def record_fsync(descriptor: int) -> None:
        sync(descriptor)
        changed = (site / LIBRARY).read_bytes() != original
        changed_at.setdefault(os.fstat(descriptor).st_ino, changed)

    monkeypatch.setattr(os, "fsync", record_fsync)
    slim(site)
    for folder in (site / TRANSACTION_FOLDER, site):
        assert changed_at[folder.stat().st_ino] is False


def test_second_slim_of_a_site_is_refused(site: Path) -> None:
    with (
        open_transaction(site),
        pytest.raises(OutputError, match="another archsplit is working on"),
    ):
        slim(site)


@pytest.mark.parametrize(
    ("files", "is_ours"),
    [
        ({}, True),
        ({_MARKER: _MARKER_TEXT[:9]}, True),
        ({_MARKER: _MARKER_TEXT, "notes": ""}, True),
        ({_MARKER: _MARKER_TEXT[:9], "notes": ""}, False),
        ({_MARKER: "another text"}, False),
        ({"notes": ""}, False),
    ],
)
def test_folder_of_a_killed_run_is_known_by_its_marker(
    tmp_path: Path, files: dict[str, str], *, is_ours: bool
) -> None:
    transaction = Transaction(site=tmp_path)
    transaction.folder.mkdir()
    for name, text in files.items():
        (transaction.folder / name).write_text(text)
    refused = pytest.raises(OutputError, match="archsplit did not make")
    with contextlib.nullcontext() if is_ours else refused:
        transaction.make_folder()


def test_a_full_disk_is_known_before(site: Path) -> None:
    with pytest.raises(DiskFullError, match="are needed in addition to the old files"):
        check_free_space(site, 1 << 60)


def test_undo_removes_unfinished_files_of_a_killed_run(site: Path) -> None:
    before = snapshot(site)
    slim(site)
    assert leave_half_an_output(site / TRANSACTION_FOLDER / "journal.json")
    undo_site(site)
    assert not (site / TRANSACTION_FOLDER).exists()
    assert snapshot(site) == before


class InTheWay(NothingLoads):
    """A stand-in runner that puts a file where the folder for an old file will be needed."""

    def __init__(self, site: Path) -> None:
        super().__init__()
        self.site = site

    def run(self, command: Command) -> CompletedProcess:
        old = self.site / TRANSACTION_FOLDER / "old"
        old.mkdir(exist_ok=True)
        (old / "other-1.dist-info").write_text("in the way")
        return super().run(command)


def test_failure_while_files_are_replaced_is_undone(site: Path) -> None:
    before = snapshot(site)
    with pytest.raises(OutputError, match="can't write"):
        slim_site(replace(request(site), tries_loading=True), effects(InTheWay(site)))
    assert snapshot(site) == before


def test_failure_before_files_are_replaced_changes_nothing(site: Path) -> None:
    before = snapshot(site)
    with pytest.raises(VerifyError, match="can't be loaded, but could before"):
        slim_site(replace(request(site), tries_loading=True), effects(OnlyOldOnesLoad()))
    assert snapshot(site) == before


class OnlyOldOnesLoad(NothingLoads):
    """A stand-in for a machine that finds every new library broken."""

    def run(self, command: Command) -> CompletedProcess:
        done = super().run(command)
        return done if TRANSACTION_FOLDER in command.argv[-1] else done._replace(returncode=0)


def test_unwritable_folder_is_refused_in_advance(site: Path) -> None:
    check_writable(site, [LIBRARY])
    with pytest.raises(OutputError, match=r"can't write .*missing"):
        check_writable(site, [LIBRARY, "missing/libfat.so"])


def test_no_folder_and_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        slim(tmp_path / "missing")
    assert slim(tmp_path).files == ()
    assert os.listdir(tmp_path) == []
