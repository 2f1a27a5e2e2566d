"""``archsplit cache verify``: results made again, and compared with what is known of them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from recipe_project import Project

from archsplit.arch.target import Target
from archsplit.cache.entry import decode_entry, encode_entry
from archsplit.cache.local import LocalStore, StoreKind
from archsplit.cache.sealed import DamagedError

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

SECRET = "nobody-must-ever-see-this"
SOURCE = """\
#include "h.h"
static __global__ void kernel(int *p) { p[threadIdx.x] = VALUE; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store, a folder with a source, and archsplit."""

    folder: Path
    store: Path
    nvcc: Path

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "ARCHSPLIT_CACHE": "on",
            "ARCHSPLIT_CACHE_DIR": str(self.store),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
            "ARCHSPLIT_CACHE_REMOTE": f"http://me:{SECRET}@127.0.0.1:9/cache",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        start = "from archsplit.cli.main import entry_point; entry_point()"
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return done

    def verify(self, *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
        done = self.run("cache", "verify", "--json", "--sample", "all", *words, code=code)
        return json.loads(done.stdout), done.stderr

    def tamper(self, step: str) -> None:
        """Change the result of a step, as faulty memory would before it is stored."""
        store = LocalStore(self.store, warn=pytest.fail)
        for key in store.keys(StoreKind.ACTION):
            blob = store.get(StoreKind.ACTION, key) or b""
            try:
                entry = decode_entry(blob)
            except DamagedError:
                continue
            kinds = [part.value for part in entry.components if part.name == "step"]
            is_whole = any(part.name == "file k.cu" for part in entry.components)
            if step in kinds or (is_whole and not step):
                files = {name: content + b" " for name, content in entry.files.items()}
                store.put(StoreKind.ACTION, key, encode_entry(entry._replace(files=files)))
                return
        pytest.fail(f"no {step}")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit) -> Place:
    """A source that was compiled; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("compiled")
    made = Place(folder=folder / "src", store=folder / "store", nvcc=toolkit.nvcc)
    made.folder.mkdir()
    (made.folder / "k.cu").write_text(SOURCE)
    (made.folder / "h.h").write_text("#define VALUE 1\n")
    time.sleep(0.1)
    made.run("nvcc", "--nvcc", str(made.nvcc), "--", "-c", "k.cu", "-o", "k.o", "-arch=sm_80")
    (made.folder / "k.o").unlink()
    return made


@pytest.fixture
def place(tmp_path: Path, compiled: Place) -> Place:
    """The same with a store of its own."""
    shutil.copytree(compiled.store, tmp_path / "store")
    return dataclasses.replace(compiled, store=tmp_path / "store")


def test_what_was_made_is_made_again(place: Place) -> None:
    facts, _ = place.verify()
    assert facts["written_down"] == 1
    names = {name.partition(" of ")[0].partition(" ")[2] for name in facts["same"]}
    assert {"cudafe++", "cicc compute_80", "ptxas sm_80", "host compile to assembly"} <= names
    assert f"the whole of {place.folder}/k.cu" in facts["same"]
    assert facts["different"] == {}
    assert facts["not_made_again"] == []
    # Nothing was left or changed where the sources are.
    assert sorted(path.name for path in place.folder.iterdir()) == ["h.h", "k.cu"]
    # No password was written down anywhere.
    files = [path for path in place.store.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_wrong_results_are_an_error_that_names_the_steps(place: Place) -> None:
    place.tamper("cicc")
    place.tamper("")
    facts, said = place.verify(code=9)
    wrong = ("03 cicc compute_80", "the whole")
    assert sorted(facts["different"]) == [f"{name} of {place.folder}/k.cu" for name in wrong]
    assert all(name in said for name in wrong)
    # They were removed.
    left = set(LocalStore(place.store, warn=pytest.fail).keys(StoreKind.ACTION))
    assert not left & {key for keys in facts["different"].values() for key in keys}


def test_what_cant_be_made_again_is_said_with_the_reason(place: Place) -> None:
    header = place.folder / "h.h"
    for text, why in (("#define VALUE 2\n", "has changed"), ("#error no\n", "failed")):
        header.write_text(text)
        facts, _ = place.verify()
        assert facts["same"] == []
        (row,) = facts["not_made_again"]
        assert row["compilation"] == f"{place.folder}/k.cu"
        assert why in row["why"]
    header.write_text("#define VALUE 1\n")
    moved = place.folder.rename(place.folder.parent / "moved")
    text = dataclasses.replace(place, folder=moved).run("cache", "verify").stdout
    moved.rename(place.folder)
    assert f"{place.folder} is gone" in text
    assert "0 of 0 results" in text


def test_a_sample_is_as_large_as_it_is_asked_for(place: Place) -> None:
    for words, least, most in ((("0",), 0, 0), (("1", "--seed", "x"), 1, 4)):
        facts, _ = place.verify("--sample", *words)
        assert least <= len(facts["same"]) <= most
    assert "neither a number" in place.run("cache", "verify", "--sample=few", code=2).stderr


def test_a_recipes_results_are_made_again(tmp_path: Path, toolkit: Toolkit) -> None:
    place = Place(folder=tmp_path / "p", store=tmp_path / "store", nvcc=toolkit.nvcc)
    project = Project(folder=place.folder, store=place.store, nvcc=place.nvcc)
    project.lay_out()
    project.build(Target.parse("sm_80"))
    facts, _ = place.verify()
    assert facts["written_down"] >= 2
    source = place.folder / "src" / "k.cu"
    assert any(f"cicc compute_80 of {source}" in name for name in facts["same"])
    assert f"the whole of {source}" in facts["same"]
    assert facts["different"] == {}
