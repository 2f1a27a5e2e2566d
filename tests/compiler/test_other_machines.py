"""Records of another machine, which came with its cache, give hits to what is the same here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, Project, settle

from archsplit.cache.sealed_blob import seal, sealed_digest
from archsplit.cache.usage import stat_text
from archsplit.compiler.direct_hit import SECTIONS, read_record, restore_hit, write_record
from archsplit.compiler.machine_facts import PROGRAM_GROUP, ReplyCache
from archsplit.system.file_lock import LockedFolder

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

HERE, THERE = "here", "there"
QUERY = "gcc -###"


def move_to(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.uname()
    named = os.uname_result((real[0], machine, *real[2:]))
    monkeypatch.setattr(os, "uname", lambda: named)


@pytest.mark.nvcc
@pytest.mark.parametrize("base", ["", "auto"])
def test_source_on_another_machine_needs_no_full_lookup(
    tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    one = Project(
        folder=tmp_path / "one",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": base, "HOME": str(tmp_path / "home")},
    )
    one.write(".git/HEAD", "ref: refs/heads/main\n")
    one.write("h.h", "#define N 1\n")
    for name in "abc":
        one.write(f"{name}.cpp", f'#include "h.h"\nint {name}() {{ return N; }}\n')
    two = replace(one, folder=tmp_path / "two") if base else one
    if base:
        shutil.copytree(one.folder, two.folder)
        settle()
    elsewhere = replace(two, extra={**one.extra, "HOME": str(tmp_path / "another home")})
    move_to(THERE, monkeypatch)
    made = {}
    for name in "abc":
        assert KNOWN[0] not in one.compile(make=f"-c {name}.cpp")
        made[name] = (one.folder / "k.o").read_bytes()
    move_to(HERE, monkeypatch)
    whole = "archsplit.compiler.wrapper_cache.WrapperCache.restore"
    for name in "ab":
        with monkeypatch.context() as without:
            without.setattr(whole, lambda _: False)
            # The full lookup is a miss, and the comparison of both ways fails.
            with pytest.raises(AssertionError, match="not scanned"):
                elsewhere.compile(make=f"-c {name}.cpp")
    assert elsewhere.compile(make="-c c.cpp")[-1:] == KNOWN
    assert (elsewhere.folder / "k.o").read_bytes() == made["c"]
    assert elsewhere.compile(make="-c c.cpp")[-1:] == KNOWN
    elsewhere.write("h.h", "#define N 2\n")
    assert KNOWN[0] not in elsewhere.compile(make="-c c.cpp")
    assert (elsewhere.folder / "k.o").read_bytes() != made["c"]
    # The other machine's own files are as they were.
    move_to(THERE, monkeypatch)
    if base:
        assert one.compile(make="-c c.cpp")[-1:] == KNOWN


class Store:
    """A store with a record of another machine, and a compiler that this machine has asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.output, self.header = folder / "k.o", folder / "k.h"
        self.header.write_text("1")
        os.utime(self.header, ns=(1, 1))
        self.direct = self.folder / "direct"
        self.facts = self.folder / "digests" / os.uname().nodename
        self.environment = {"ARCHSPLIT_CACHE_DIR": str(self.folder)}
        entry = self.folder / "ac" / "cd" / ("cd" * 32)
        entry.parent.mkdir(parents=True)
        entry.write_bytes(seal(b"object"))
        head = ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""]
        self.record = {
            **{name: [] for name in SECTIONS},
            "hit": head,
            "machine": [THERE, "/"],
            "replies": [QUERY, "ab"],
            "files": [str(self.header), digest("1"), stat_text(str(self.header))],
            "outputs": [str(self.output), "0", "6", ""],
        }
        self.reply("ab")

    def reply(self, reply: str) -> None:
        files = (str(self.folder / "gcc"),)
        ReplyCache(self.facts, cwd="/").store(
            QUERY, self.environment, reply, files=files, since=time.time_ns()
        )

    def is_hit(self, **more: str) -> bool:
        shutil.rmtree(self.direct, ignore_errors=True)
        write_record(str(self.direct / "shared"), self.record)
        found = restore_hit("own", {**self.environment, **more}, shared_key="shared", bases=())
        return found is not None


def test_one_of_many_processes_reads_the_files_of_a_new_machine(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shutil.rmtree(store.direct, ignore_errors=True)
    write_record(str(store.direct / "shared"), store.record)
    with ThreadPoolExecutor(1) as others, LockedFolder(store.folder):
        waiting = others.submit(restore_hit, "own", store.environment, shared_key="shared")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        (store.facts / "files").write_text("{}")
        # Files are known, so that there is nothing to wait for.
        assert restore_hit("own", store.environment, shared_key="shared") is not None
    assert waiting.result() is not None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_reply_of_the_compiler_is_a_condition(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.is_hit()
    own = read_record(str(store.direct / "own"))
    assert own is not None
    # Here, the stats of the compiler's files stand for its reply.
    assert own["compiler_files"] == [str(store.folder / "gcc"), ""]
    store.reply("another")
    assert not store.is_hit()
    store.reply("ab")
    assert store.is_hit()
    (store.folder / "gcc").write_text("")
    assert not store.is_hit()
    shutil.rmtree(store.facts)
    assert not store.is_hit()


def test_times_of_another_machine_say_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    # An image of another machine may have the same times for another content.
    store.record["files"][1] = digest("2")
    assert not store.is_hit()
    store.record["machine"][0] = os.uname().nodename
    assert store.is_hit()


@pytest.mark.parametrize("row", [5, [], ["1 2 3 4 5", "wrong"], [5, digest("1")], None])
def test_digests_of_this_machine_count_with_its_times(tmp_path: Path, row: object) -> None:
    store = Store(tmp_path)
    known = store.facts / PROGRAM_GROUP
    known.write_text(json.dumps({str(store.header): row}))
    assert store.is_hit()
    store.header.write_text("2")
    assert not store.is_hit()
    known.write_text(json.dumps({str(store.header): [stat_text(str(store.header)), digest("1")]}))
    assert store.is_hit()


def test_content_is_read_once_for_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, moment = Store(tmp_path), time.time_ns() + 10_000_000_000
    # A file that has just been made has no settled times.
    monkeypatch.setattr(time, "time_ns", lambda: moment)
    assert store.is_hit(ARCHSPLIT_CACHE="read-only")
    assert not (store.facts / "files").exists()
    assert store.is_hit()
    assert (store.facts / "files").exists()
    monkeypatch.setattr("archsplit.cache.usage._digest", lambda path: f"read {path}")
    assert store.is_hit()
    (store.facts / "files").unlink()
    assert not store.is_hit()
