"""Records for all checkouts give another checkout a hit without a full lookup."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, Project, settle

from archsplit.cache.sealed_blob import seal, sealed_digest
from archsplit.compiler.direct_hit import (
    SECTIONS,
    invocation_keys,
    read_record,
    record_bases,
    restore_hit,
    watched_texts,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

SOURCE = (
    '#include "h.h"\n#if __has_include("more.h")\n#define N 2\n#endif\nint run() { return N; }\n'
)


def checkout(tmp_path: Path, toolkit: Toolkit, name: str) -> Project:
    project = Project(
        folder=tmp_path / name,
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": "auto", "HOME": str(tmp_path / f"home of {name}")},
    )
    project.write(".git/HEAD", "ref: refs/heads/main\n")
    project.write("src/n.cpp", SOURCE)
    project.write("inc/h.h", "#pragma once\n#ifndef N\n#define N 1\n#endif\n")
    return project


def lines_of(project: Project, *flags: str) -> tuple[str, ...]:
    folder = project.folder
    make = f"-MD -MF {folder}/k.d -I{folder}/inc -c {folder}/src/n.cpp"
    return project.compile(*flags, make=make)


def records(project: Project) -> set[str]:
    return set(os.listdir(project.store / "direct"))


@pytest.mark.nvcc
def test_another_checkout_uses_the_record_without_a_full_lookup(
    tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (checkout(tmp_path, toolkit, name) for name in ("one", "two"))
    lines_of(one)
    before = records(one)
    assert len(before) == 2
    # The whole way is a miss, and the comparison of both ways fails.
    monkeypatch.setattr("archsplit.compiler.wrapper_cache.WrapperCache.restore", lambda _: False)
    with pytest.raises(AssertionError, match="not scanned"):
        lines_of(two)
    monkeypatch.undo()
    assert len(records(one) - before) == 1
    assert lines_of(two)[-1:] == KNOWN
    assert str(one.folder) not in (two.folder / "k.d").read_text()
    assert (two.folder / "k.o").read_bytes() == (one.folder / "k.o").read_bytes()


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["src/more.h", "inc/more.h"])
def test_file_only_in_the_other_checkout_is_a_miss(
    tmp_path: Path, toolkit: Toolkit, name: str
) -> None:
    one, two = (checkout(tmp_path, toolkit, name) for name in ("one", "two"))
    two.write(name, "")
    lines_of(one)
    assert KNOWN[0] not in lines_of(two)
    three = checkout(tmp_path, toolkit, "three")
    three.write(name, "")
    shutil.rmtree(one.folder)
    assert lines_of(three)[-1:] == KNOWN
    (three.folder / name).unlink()
    settle()
    assert lines_of(three)[-1:] == KNOWN
    assert three.is_fresh(make=f"-I{three.folder}/inc -c {three.folder}/src/n.cpp")


@pytest.mark.nvcc
def test_folder_in_a_macro_or_an_option_file_has_no_record_for_all(
    tmp_path: Path, toolkit: Toolkit
) -> None:
    one = checkout(tmp_path, toolkit, "one")
    lines_of(one, f'-DPLACE="{one.folder}/src"')
    one.write("flags", f"-I{one.folder}/inc")
    lines_of(one, "-optf", f"{one.folder}/flags")
    assert len(records(one)) == 2
    settings = one.folder.parent / "home of one" / ".config" / "archsplit" / "cache.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("")
    lines_of(one)
    assert len(records(one)) == 3


def test_keys_of_checkouts_are_equal_if_bases_begin_the_paths(tmp_path: Path) -> None:
    def keys(name: str, *argv: str, **more: str) -> tuple[str, str]:
        folder = tmp_path / name
        (folder / ".git").mkdir(parents=True, exist_ok=True)
        environment: Mapping[str, str] = {
            "ARCHSPLIT_CACHE_BASE_DIR": "auto",
            "HOME": str(tmp_path / f"home of {name}"),
            "PATH": f"/usr/bin:{folder}/bin",
            **more,
        }
        words = [word.replace("TOP", str(folder)) for word in argv]
        bases = record_bases(str(folder), environment)
        return invocation_keys(
            words, cwd=str(folder), environment=environment, nvcc="nvcc", version="1", bases=bases
        )

    for argv in (("-ITOP", "-c", "TOP/k.cu"), ("-I", "TOP/inc"), ("--include-path=TOP,TOP/x",)):
        (own, shared), (other, again) = keys("one", *argv), keys("two", *argv)
        assert own != other
        assert shared == again != ""
    for word in ("/aTOP/k.cu", "-I/aTOP", "TOP2/k.cu"):
        assert keys("one", word)[1] != keys("two", word)[1], word
    assert keys("one", "<base 1>/k.cu")[1] == ""
    # Without a base, the record is for the same folder on all machines.
    no_base = {"ARCHSPLIT_CACHE_BASE_DIR": ""}
    assert "" != keys("one", "k.cu", **no_base)[1] != keys("two", "k.cu", **no_base)[1]
    assert keys("one", "k.cu", ARCHSPLIT_CACHE_CONFIG="/x")[1] == ""
    (tmp_path / "link").symlink_to("one")
    linked = keys("one", "k.cu", PWD=str(tmp_path / "link"))
    assert linked[1] != keys("one", "k.cu", PWD=str(tmp_path / "one"))[1]
    assert keys("one", "k.cu", PWD="/nowhere")[1] != ""


def test_command_line_has_the_name_of_the_nearest_base() -> None:
    def shared(word: str, *bases: str) -> str:
        return invocation_keys(
            [word], cwd="/", environment={}, nvcc="nvcc", version="1", bases=bases
        )[1]

    assert shared("/w/a/k.cu", "/w", "/w/a") == shared("/v/b/k.cu", "/v", "/v/b") != ""


@pytest.mark.parametrize("shared", ["00" * 32, "ff" * 32])
def test_hit_of_a_shared_record_makes_one_for_the_checkout(tmp_path: Path, shared: str) -> None:
    store, key = tmp_path / "store", "ab" * 32
    entry = store / "ac" / "cd" / ("cd" * 32)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(seal(b"object"))
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    record |= {
        "hit": ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""],
        "places": [str(tmp_path / "k.o"), "0", "6", ""],
        "machine": [os.uname().nodename, "/"],
    }
    write_record(str(store / "direct" / shared), record)
    environment, direct = {"ARCHSPLIT_CACHE_DIR": str(store)}, store / "direct"
    # The same folder on the same machine needs no second record.
    assert restore_hit(key, environment, shared_key=shared, bases=()) is not None
    assert os.listdir(direct) == [shared]
    bases = ("/one",)
    assert restore_hit(key, environment, shared_key=shared, bases=bases) is not None
    assert (direct / key).exists()


def test_missing_watched_folder_is_a_miss(tmp_path: Path) -> None:
    store, key = tmp_path / "store", "ab" * 32
    entry = store / "ac" / "cd" / ("cd" * 32)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(seal(b"object"))
    near = tmp_path / "near"
    near.mkdir()
    (near / "asked.h").write_text("")
    # A folder that has just changed has no settled times.
    watched = watched_texts([str(near)], ["asked.h"], since=time.time_ns())
    assert watched == [str(near), ""]
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    record |= {
        "hit": ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""],
        "outputs": [str(tmp_path / "k.o"), "0", "6", ""],
        "folders": [str(near)],
        "names": ["asked.h"],
        "shadowing": [str(near / "asked.h")],
        "watched": watched,
    }
    write_record(str(store / "direct" / key), record)
    environment = {"ARCHSPLIT_CACHE_DIR": str(store)}
    assert restore_hit(key, environment) is not None
    shutil.rmtree(near)
    assert restore_hit(key, environment) is None


def test_record_with_an_unmappable_base_is_not_shared(tmp_path: Path) -> None:
    path, bases = tmp_path / "record", ("/one", "/one/real")
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for text in ("see /one2", "/x/one/k.cu", "in ./one:", "<base 1>/k.cu"):
        write_record(str(path), {**record, "hit": [text, "/one/k.cu"]}, bases)
        assert path.exists() is (text == "see /one2"), text
        path.unlink(missing_ok=True)
    write_record(str(path), {**record, "hit": ["in /one: /one/real/k.cu", "-I/one"]}, bases)
    found = read_record(str(path), ("/two", "/two/real"))
    assert found is not None
    assert found["hit"] == ["in /two: /two/real/k.cu", "-I/two"]
