"""A hit that is found without the command line being read: what it may import, start and trust."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.cache.file_digests import FileDigests
from archsplit.cache.sealed_blob import seal, sealed_digest
from archsplit.cache.usage import stat_text
from archsplit.cli import nvcc as cli_nvcc
from archsplit.compiler.direct_hit import (
    SECTIONS,
    _is_shadowed,
    restore_hit,
    shadow_candidates,
    watched_paths,
    write_record,
)
from archsplit.compiler.file_resolver import FileResolver
from archsplit.compiler.machine_facts import PROGRAM_GROUP, ReplyCache
from archsplit.compiler.tool_identity import compiler_files, script_target

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

ARGUMENTS = ("-c", "k.cu", "-o", "k.o", "-arch=sm_80", "-MD", "-MF", "k.d", "-MT", "k o")
WATCHED = """
import json, sys
started, before = [], set(sys.modules)
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec"}
sys.addaudithook(lambda event, arguments: started.append(event) if event in STARTS else None)
from archsplit.cli.nvcc import launcher
import os
os._exit = sys.exit
try:
    launcher()
except SystemExit as ended:
    new = sorted(set(sys.modules) - before)
    print(json.dumps({"code": ended.code, "started": started, "modules": new}))
"""
ALLOWED = {
    *("atexit", "gc"),  # no files: parts of the interpreter
    *("_sha256", "_sha2", "zlib", "__future__"),  # the rest is imported by Python's start
    *("archsplit", "archsplit.cache", "archsplit.cli", "archsplit.compiler", "archsplit.nvcc"),
    *("archsplit.system", "archsplit.cache.usage", "archsplit.cache.sealed_blob"),
    *("archsplit.cli.nvcc", "archsplit.compiler.direct_hit", "archsplit.nvcc.driver_search"),
    "archsplit.nvcc.variables",
    *("archsplit.system.env", "archsplit.system.mounts", "archsplit.system.outputs"),
    *("archsplit.system.temporary_files", "archsplit.system.file_lock", "fcntl"),  # 0.4 ms
}
"""The modules of a hit: one more takes 0.2 ms or much more, of the 50 that a hit may take."""

SIGNALS = {"signal", "enum", "functools", "collections", "operator", "reprlib", "types", "keyword"}
SIGNALS |= {"itertools", "_collections", "_functools", "_operator", "heapq", "_weakref"}


class Place:
    """A folder with one source, and the launcher run in it."""

    def __init__(self, folder: Path, toolkit: Toolkit, *, has_base: bool) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "CUDA_HOME": str(toolkit.root),
            "HOME": str(folder),
            # Not the folder itself: a folder "archsplit" in it would hide the package from "-c".
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "ARCHSPLIT_CACHE_DIR": str(folder / "cache"),
            "ARCHSPLIT_CACHE_BASE_DIR": str(folder) if has_base else "",
        }
        (folder / "run").mkdir()
        (folder / "k.cu").write_text('#include "k.h"\n#warning seen\n__global__ void k(T*) {}\n')
        (folder / "k.h").write_text("typedef float T;\n")

    def run(self, code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.folder,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    def watched(self, *arguments: str, **more: str) -> tuple[list[str], set[str], str]:
        """Return the programs and modules that a call uses, and its standard error."""
        done = self.run(WATCHED, *(arguments or ARGUMENTS), **more)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["code"] == 0, done.stderr
        return told["started"], set(told["modules"]), done.stderr

    def made(self) -> dict[str, bytes]:
        return {name: (self.folder / name).read_bytes() for name in ("k.o", "k.d")}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="no base"),
        pytest.param(True, id="base", marks=pytest.mark.stress),
    ],
)
def place(
    tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit, request: pytest.FixtureRequest
) -> Place:
    return Place(tmp_path_factory.mktemp("direct"), toolkit, has_base=request.param)


@pytest.mark.nvcc
def test_a_hit_starts_nothing_and_imports_little(place: Place) -> None:
    started, modules, said = place.watched()
    assert started
    # 50 ms of a compilation of one second.
    assert modules.isdisjoint({"argparse", "dataclasses", "inspect"})
    first = place.made()
    for name in first:
        (place.folder / name).unlink()
    started, modules, again = place.watched()
    assert started == []
    assert modules <= ALLOWED
    assert (place.made(), again) == (first, said)
    assert "seen" in again

    # What says the same in another way, or at another time, is the same.
    os.utime(place.folder / "k.h")
    assert place.watched()[0] == []
    assert place.watched(MAKEFLAGS="-j8 -- O=b", MAKELEVEL="2", O="b")[0] == []
    cache = place.folder / "cache"
    statistics = "".join(path.read_text() for path in (cache / "statistics").iterdir())
    assert statistics.count('"local"') == 3

    # What says something else is not.
    (place.folder / "k.h").write_text("typedef double T;\n")
    started, _, _ = place.watched()
    assert started
    assert place.made()["k.o"] != first["k.o"]
    (place.folder / "k.h").write_text("typedef float T;\n")
    for more in ({"NVCC_APPEND_FLAGS": "-DX"}, {"CPATH": "/nowhere"}, {"ARCHSPLIT_CACHE": "off"}):
        assert place.watched(**more)[0]
    assert place.watched(ARCHSPLIT_NVCC_OPTIONS="--explain")[2].count("cache hit") == 1
    started, _, explained = place.watched(ARCHSPLIT_NVCC_OPTIONS="--explain")
    assert (started, explained.count("cache hit")) == ([], 1)

    # A store that was damaged is the whole way's to mend.
    place.watched()
    for path in (cache / "direct").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    for path in (place.folder / "cache" / "ac").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    started, _, _ = place.watched()
    assert started
    assert place.made() == first

    # So is one whose files are FIFOs and folders.
    files = [path for path in cache.rglob("*") if path.is_file()]
    for number, path in enumerate(files):
        path.unlink()
        make_irregular = os.mkfifo if number % 2 else os.mkdir
        make_irregular(path)
    started, _, _ = place.watched()
    assert started
    assert place.made() == first
    assert place.watched()[0] == []


@pytest.mark.nvcc
def test_command_line_for_nvcc_itself_starts_no_other_program(place: Place) -> None:
    code = WATCHED.replace("launcher()", "").replace(
        "try:",
        "os.execve = lambda *given: sys.exit(0)\ntry:\n    launcher()",
    )
    for arguments in (
        *(("--version",), ("-run", "k.cu"), ("--help",), ("-E", "k.cu"), ("a.o", "-o", "prog")),
        ("-c", "missing.cu"),
    ):
        done = place.run(code, *arguments)
        told = json.loads(done.stdout.splitlines()[-1])
        assert (told["code"], told["started"]) == (0, [])
        assert set(told["modules"]) <= {*ALLOWED, *SIGNALS, "archsplit.nvcc.cmdline"}


@pytest.mark.nvcc
def test_options_in_files_are_a_part_of_the_hit(place: Place) -> None:
    (place.folder / "flags").write_text("-DA -optf more")
    (place.folder / "more").write_text("-DB")
    line = ("-c", "k.cu", "-o", "o.o", "-arch=sm_80", "--options-file", "flags")
    assert place.watched(*line)[0]
    started, modules, _ = place.watched(*line)
    assert (started, modules - ALLOWED) == ([], set())
    for name, text in (("more", "-DC"), ("flags", "-DA")):
        (place.folder / name).write_text(text)
        assert place.watched(*line)[0], name


@pytest.mark.nvcc
def test_a_store_without_writes_has_the_same_hits(place: Place) -> None:
    place.watched()
    made, cache = place.made(), place.folder / "cache"
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    (place.folder / "k.o").unlink()
    os.utime(place.folder / "k.cu")
    assert place.watched(ARCHSPLIT_CACHE="read-only")[0] == []
    assert place.made() == made
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_new_name_or_link_leading_elsewhere_is_a_miss(tmp_path: Path) -> None:
    store, key = tmp_path / "store", "ab" * 32
    entry = store / "ac" / "cd" / ("cd" * 32)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(seal(b"object"))
    near = tmp_path / "include" / "near"
    near.mkdir(parents=True)
    (near / "beside.h").write_text("")
    (near / "link.h").symlink_to(tmp_path / "later.h")
    names = ("beside.h", "link.h", "new.h", "below/new.h")
    (near / "below").mkdir()
    candidates = shadow_candidates([str(near)], names)
    # Tests don't wait until the times of a new folder say something.
    watched = watched_paths([str(near)], candidates, since=time.time_ns() + 10_000_000_000)
    assert {*watched} == {str(near), str(near / "below"), str(near / "link.h")}
    empty: dict[str, list[str]] = {name: [] for name in SECTIONS}
    hit = ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""]
    record = {
        **empty,
        "hit": hit,
        "folders": [str(near)],
        "watched": [text for pair in watched.items() for text in pair],
        "names": [*names],
        "shadowing": [str(near / "beside.h")],
    }
    write_record(
        str(store / "direct" / key),
        {**record, "outputs": [str(tmp_path / "k.o"), "0", "6", ""]},
    )
    environment = {"ARCHSPLIT_CACHE_DIR": str(store)}

    def is_hit() -> bool:
        return restore_hit(key, environment) is not None

    assert is_hit()
    assert (tmp_path / "k.o").read_bytes() == b"object"
    for new in (near / "new.h", near / "below" / "new.h", tmp_path / "later.h"):
        new.parent.mkdir(exist_ok=True)
        new.write_text("")
        assert not is_hit(), new
        new.unlink()
        assert is_hit(), new
    (near / "beside.h").unlink()
    assert not is_hit()


def test_folder_without_a_stat_is_listed(tmp_path: Path) -> None:
    (tmp_path / "new.h").write_text("")
    watched = [str(tmp_path), stat_text(str(tmp_path))]
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    record |= {"folders": [str(tmp_path)], "watched": watched, "names": ["new.h"]}
    assert not _is_shadowed(record, is_foreign=False)
    assert _is_shadowed(record, is_foreign=True)


def test_another_program_of_the_name_earlier_on_path_is_a_miss(tmp_path: Path) -> None:
    store, key = tmp_path / "store", "ab" * 32
    entry = store / "ac" / "cd" / ("cd" * 32)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(seal(b"object"))
    first, second = tmp_path / "first" / "ccbin", tmp_path / "second" / "ccbin"
    for program in (first, second):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    hit = ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""]
    places = [str(tmp_path / "k.o"), "0", "6", ""]
    record |= {"hit": hit, "outputs": places, "programs": ["ccbin", str(second)]}
    write_record(str(store / "direct" / key), record)
    path = f"{first.parent}:{second.parent}"
    environment = {"ARCHSPLIT_CACHE_DIR": str(store), "PATH": path}
    assert restore_hit(key, environment) is None
    first.unlink()
    assert restore_hit(key, environment) is not None


def test_folder_in_place_of_a_file_is_a_miss(tmp_path: Path) -> None:
    store, key, header = tmp_path / "store", "ab" * 32, tmp_path / "k.h"
    entry = store / "ac" / "cd" / ("cd" * 32)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(seal(b"object"))
    header.write_text("")
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    hit = ["ef" * 32, entry.name, sealed_digest(entry.read_bytes()), "1.0", "", "", ""]
    files = [str(header), hashlib.sha256(b"").hexdigest(), "before"]
    places = [str(tmp_path / "k.o"), "0", "6", ""]
    write_record(
        str(store / "direct" / key), {**record, "hit": hit, "files": files, "places": places}
    )
    environment = {"ARCHSPLIT_CACHE_DIR": str(store)}
    assert restore_hit(key, environment) is not None
    header.unlink()
    header.mkdir()
    assert restore_hit(key, environment) is None


def gcc() -> str:
    found = shutil.which("gcc")
    assert found is not None
    return found


def remembered(replies: ReplyCache, question: str, *, reply: str | None = None) -> str | None:
    environment = {"PATH": os.environ["PATH"]}
    text = reply or f"COLLECT_GCC={gcc()}\n"
    search = "install: /nowhere/\n"
    files = compiler_files(question, environment, text, search=search, cwd=Path("/"))
    if files:
        replies.store(question, environment, "ab", files=files, since=time.time_ns())
    return found_reply(replies, question, environment)


def found_reply(replies: ReplyCache, question: str, environment: dict[str, str]) -> str | None:
    replies.recheck()
    found = replies.find(question, environment)
    return None if found is None else found.reply


def test_a_reply_is_remembered_while_its_compiler_is_the_same(tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "gcc"
    compiler.parent.mkdir()
    shutil.copy2(gcc(), compiler)
    os.utime(compiler, ns=(1, 1))
    replies = ReplyCache(tmp_path / "store", cwd=tmp_path)
    # Copied just now: who knows whether it changes again within the same tick.
    assert remembered(replies, f"{compiler} -###") is None
    assert remembered(replies, "gcc -###") == "ab"
    assert ReplyCache(tmp_path / "store", cwd=tmp_path / "x").find("gcc -###", {}) is None
    assert replies.find("gcc -###", {"PATH": f"{compiler.parent}:{os.environ['PATH']}"}) is None
    assert ReplyCache(None, cwd=tmp_path).find("gcc -###", {}) is None
    (reply,) = (tmp_path / "store").iterdir()
    for make_irregular in (os.mkfifo, os.mkdir):
        reply.unlink()
        make_irregular(reply)
        assert found_reply(replies, "gcc -###", {"PATH": os.environ["PATH"]}) is None
        assert remembered(replies, "gcc -###") == "ab"
    assert [path.name for path in (tmp_path / "store").iterdir()] == [reply.name]


def test_missing_options_have_the_values_of_the_parser() -> None:
    parsed = vars(cli_nvcc._parse_options_variable("--reproducible"))
    missing = cli_nvcc._parse_options_variable("")
    names = {name for name in dir(missing) if not name.startswith("_")}
    assert {name: getattr(missing, name) for name in names} == {
        **{name: value for name, value in parsed.items() if not name.startswith("remote")},
        "reproducible": False,
    }


@pytest.mark.parametrize(
    ("query", "variables", "is_found"),
    [
        ("gcc -###", {}, True),
        ("gcc -I/a -isystem /b -m64 -x c++ -E -v /dev/null", {"LC_ALL": "C"}, True),
        ("/bin/gcc -B /a -print-prog-name=as", {}, True),
        ("bin/gcc -###", {}, False),
        ("gcc -### -B bin", {}, False),
        ("gcc -### -Bbin", {}, False),
        ("gcc -I c -E -v /dev/null", {}, False),
        ("gcc -### '--sysroot=a b'", {}, False),
        ("gcc -###", {"PATH": "bin:/bin"}, False),
        ("gcc -###", {"PATH": "/bin:"}, False),
        ("gcc -###", {"COMPILER_PATH": "bin"}, False),
    ],
)
def test_reply_without_relative_paths_is_known_in_all_folders(
    query: str, variables: dict[str, str], is_found: bool, tmp_path: Path
) -> None:
    environment = {"PATH": "/bin", **variables}
    here = ReplyCache(tmp_path / "store", cwd=tmp_path)
    here.store(query, environment, "ab", files=[gcc()], since=time.time_ns())
    assert found_reply(here, query, environment) == "ab"
    elsewhere = ReplyCache(tmp_path / "store", cwd=tmp_path / "x")
    assert (found_reply(elsewhere, query, environment) == "ab") is is_found


def test_a_reply_is_forgotten_when_a_folder_of_the_compiler_changes(tmp_path: Path) -> None:
    specs, environment = tmp_path / "lib", {"PATH": os.environ["PATH"]}
    specs.mkdir()
    replies = ReplyCache(tmp_path / "store", cwd=tmp_path)
    search = f"programs: ={specs}:/nowhere\n"
    files = compiler_files("gcc", environment, "COLLECT_GCC=gcc\n", search=search, cwd=tmp_path)
    since = time.time_ns() + 10_000_000_000
    replies.store("gcc -###", environment, "ab", files=files, since=since)
    assert found_reply(replies, "gcc -###", environment) == "ab"
    (specs / "specs").write_text("*cpp:\n-DX\n")
    assert found_reply(replies, "gcc -###", environment) is None


def test_reply_is_forgotten_when_a_compiler_appears_earlier_on_path(tmp_path: Path) -> None:
    folder_of_gcc = gcc().removesuffix("/gcc")
    environment = {"PATH": f"{tmp_path}/one:{tmp_path}/two:{folder_of_gcc}:{tmp_path}/last"}
    replies = ReplyCache(tmp_path / "store", cwd=tmp_path)
    reply = "COLLECT_GCC=gcc\n"
    files = compiler_files("gcc -###", environment, reply, search="", cwd=tmp_path)
    replies.store("gcc -###", environment, "ab", files=files, since=time.time_ns())
    for folder, digest in (("last", "ab"), ("two", None)):
        (tmp_path / folder).mkdir()
        shutil.copy2(gcc(), tmp_path / folder / "gcc")
        assert found_reply(replies, "gcc -###", environment) == digest


@pytest.mark.parametrize(
    ("question", "reply"),
    [("gcc -### -march=native", None), ("gcc -###", "clang version 15\n")],
    ids=["the machine is asked", "no GNU compiler"],
)
def test_reply_with_unknown_inputs_is_not_cached(
    question: str, reply: str | None, tmp_path: Path
) -> None:
    assert remembered(ReplyCache(tmp_path, cwd=tmp_path), question, reply=reply) is None


def test_a_script_is_followed_only_if_it_does_nothing_else(tmp_path: Path) -> None:
    script, target = tmp_path / "nvcc", os.path.realpath(gcc())
    for text, leads in (
        (f'#!/bin/sh\nexec {gcc()} "$@"\n', target),
        (f'#!/bin/sh\n# of a package\nexec {gcc()} "$@"\n', target),
        (f'#!/bin/sh\nX=1 exec {gcc()} "$@"\n', None),
        (f'#!/bin/sh\nexec {gcc()} -O2 "$@"\n', None),
        (f'#!/bin/sh\n. /etc/x\nexec {gcc()} "$@"\n', None),
        (f'#!/bin/sh\nexec {script} "$@"\n', None),
        (f'#!/bin/bash\nexec {gcc()} "$@"\n', None),
    ):
        script.write_text(text)
        assert script_target(str(script)) == leads, text
    assert script_target(str(tmp_path / "gone")) is None


@pytest.mark.nvcc
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_leave_outputs_intact(place: Place, closed: str) -> None:
    place.watched()
    made = place.made()
    for cache in ("on", "off"):
        (place.folder / "k.o").unlink()
        code = "from archsplit.cli.nvcc import launcher; launcher()"
        words = shlex.join([sys.executable, "-c", code, *ARGUMENTS])
        done = subprocess.run(
            ["sh", "-c", f"{words} {closed}"],
            cwd=place.folder,
            env={**place.environment, "ARCHSPLIT_CACHE": cache},
            check=False,
        )
        assert done.returncode == 0
        assert place.made()["k.d"] == made["k.d"]
        assert (place.folder / "k.o").read_bytes()[:4] == b"\x7fELF"


_REFUSED = """
import os, sys
from archsplit.cli.nvcc import launcher

def tell(program, argv, environment):
    print(*argv[1:], "archsplit.compiler.wrapper_graph" in sys.modules, flush=True)
    os._exit(0)

os.execve = tell
sys.argv = ["archsplit-nvcc", sys.argv[1], "-arch=sm_80", "-c", "missing.cu"]
launcher()
"""


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SOURCE_DATE_EPOCH", "1"),
        ("ARCHSPLIT_NVCC_OPTIONS", "--reproducible --jobs=2 --cache on -j 3"),
    ],
)
def test_missing_source_is_never_planned(
    toolkit: Toolkit, tmp_path: Path, variable: str, text: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, str(toolkit.nvcc)],
        cwd=tmp_path,
        env={**os.environ, "ARCHSPLIT_CACHE_DIR": str(tmp_path / "cache"), variable: text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-arch=sm_80 -c missing.cu False\n"


def test_the_digest_of_a_tool_is_saved_for_all_requests(tmp_path: Path) -> None:
    # An old file: nothing is saved of one that has just changed.
    tool = tmp_path / "nvcc"
    tool.symlink_to(os.path.realpath(sys.executable))
    digests = FileDigests(tmp_path / "digests")
    resolver = FileResolver(cwd=tmp_path, environment={}, digests=digests, group="a request")
    digest = resolver.tool_digest(str(tool))
    digests.save()
    (saved,) = (tmp_path / "digests").glob("*/*")
    assert saved.name == PROGRAM_GROUP
    assert json.loads(saved.read_bytes())[str(tool)][1] == digest
