"""The jobserver of the real GNU make, and made-up pipes where make can't be brought to it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pool_samples import MB, budget

from archsplit.scheduler.pool import Denied, LocalPool, PoolRequest, WaitReason
from archsplit.scheduler.pool_choice import Jobserver, TokenPool, connect_jobserver

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBER = Path(__file__).with_name("pool_member.py")


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[int]:
    """A pipe as make 4.4 makes it for ``-j3``: two tokens besides the one that each member has."""
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, b"+-")
    yield descriptor
    os.close(descriptor)


def connected(folder: Path) -> Jobserver:
    found = connect_jobserver(
        {"MAKEFLAGS": f"kw -j3 --jobserver-auth=fifo:{folder / 'fifo'} -- A=b"}
    )
    assert found.reason == ""
    assert found.jobserver is not None
    return found.jobserver


def tokens(descriptor: int) -> bytes:
    """Return the tokens in the pipe, and put them back."""
    with contextlib.suppress(BlockingIOError):
        content = os.read(descriptor, 100)
        os.write(descriptor, content)
        return content
    return b""


def test_one_slot_is_free_and_each_other_a_token(tmp_path: Path, fifo: int) -> None:
    server = connected(tmp_path)
    assert server.jobs == 3
    assert [server.acquire() for _ in range(4)] == [True, True, True, False]
    assert tokens(fifo) == b""
    for _ in range(3):
        server.release()
    # The very bytes that were taken, for they may have a meaning.
    assert sorted(tokens(fifo)) == sorted(b"+-")
    assert server.acquire()
    assert len(tokens(fifo)) == 2
    server.close()


def test_closing_gives_all_back(tmp_path: Path, fifo: int) -> None:
    server = connected(tmp_path)
    assert all(server.acquire() for _ in range(3))
    server.close()
    assert sorted(tokens(fifo)) == sorted(b"+-")


def test_tokens_are_slots_and_memory_is_separate(tmp_path: Path, fifo: int) -> None:
    memory = LocalPool(100, budget(tmp_path, limit=1000))
    pool = TokenPool(connected(tmp_path), memory, slots=8)
    first = pool.acquire(PoolRequest(600 * MB))
    assert not isinstance(first, Denied)
    refused = pool.acquire(PoolRequest(600 * MB))
    assert isinstance(refused, Denied)
    assert refused.reason is WaitReason.MEMORY
    # A token that was taken in vain is back at once.
    assert len(tokens(fifo)) == 2
    assert pool.idle_slots() == 2
    second, third = pool.acquire(PoolRequest(100 * MB)), pool.acquire(PoolRequest(0))
    assert not isinstance(second, Denied)
    assert not isinstance(third, Denied)
    assert pool.idle_slots() == 0
    refused = pool.acquire(PoolRequest(0))
    assert isinstance(refused, Denied)
    assert refused.reason is WaitReason.SLOT
    assert refused.retry is not None
    second.update_resident(300 * MB)
    assert second.entry.resident == 300 * MB
    assert (pool.free_memory(), len(pool.entries())) == (700 * MB, 3)
    second.release()
    third.release()
    first.release()
    assert len(tokens(fifo)) == 2
    pool.close()


def test_pool_takes_no_more_slots_than_the_user_allows(tmp_path: Path, fifo: int) -> None:
    pool = TokenPool(connected(tmp_path), LocalPool(100, budget(tmp_path)), slots=1)
    assert pool.idle_slots() == 1
    assert not isinstance(pool.acquire(PoolRequest(0)), Denied)
    assert pool.idle_slots() == 0
    assert isinstance(pool.acquire(PoolRequest(0)), Denied)
    assert len(tokens(fifo)) == 2
    pool.close()
    assert len(tokens(fifo)) == 2


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """As make up to 4.3 makes it, for ``-j2``."""
    reading, writing = os.pipe()
    os.write(writing, b"+")
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


@pytest.mark.parametrize("word", ["--jobserver-auth", "--jobserver-fds"])
def test_the_pipe_style_reads_without_blocking_make(pipe: tuple[int, int], word: str) -> None:
    reading, writing = pipe
    # Of several the last one counts.
    flags = f" -j --jobserver-auth=0,0 {word}={reading},{writing}"
    server = connect_jobserver({"MAKEFLAGS": flags}).jobserver
    assert server is not None
    assert server.jobs is None
    assert [server.acquire() for _ in range(3)] == [True, True, False]
    # make's own end still blocks, as make expects it to.
    assert os.get_blocking(reading)
    server.close()
    assert os.read(reading, 9) == b"+"


@pytest.mark.parametrize("flags", ["", "k", "-j8", " -- --jobserver-auth=3,4", "j8 -- X=y"])
def test_without_a_jobserver_there_is_nothing_to_say(flags: str) -> None:
    assert connect_jobserver({"MAKEFLAGS": flags}) == (None, "")
    assert connect_jobserver({}) == (None, "")


def reason(name: str) -> str:
    found = connect_jobserver({"MAKEFLAGS": f"-j4 --jobserver-auth={name}"})
    assert found.jobserver is None
    return found.reason.removeprefix(f"make's jobserver {name} can't be used: ")


def test_unusable_jobserver_has_a_reason(tmp_path: Path, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    (tmp_path / "file").write_text("")
    assert reason("-2,-2") == "make has switched it off"
    assert reason("3") == "make has switched it off"
    assert reason(f"fifo:{tmp_path}/none") == "No such file or directory"
    assert reason(f"fifo:{tmp_path}/file") == f"{tmp_path}/file is not a pipe"
    swapped = f"{writing},{reading}"
    assert "are not the two ends of a pipe" in reason(swapped)
    assert "are not the two ends of a pipe" in reason(f"{reading},{reading}")
    other = os.open(tmp_path / "file", os.O_RDWR)
    assert "is not a pipe" in reason(f"{other},{other}")
    assert "are not the two ends of a pipe" in reason(f"{reading},{other}")
    os.close(other)
    os.close(writing)
    assert reason(f"{reading},{writing}") == "make has closed it; begin the recipe's line with +"


MEMBER_COMMAND = shlex.join([sys.executable, str(MEMBER)])
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not installed")


def make(folder: Path, recipe: str, *, jobs: int, goals: int) -> subprocess.CompletedProcess[str]:
    names = " ".join(f"g{number}" for number in range(goals))
    (folder / "Makefile").write_text(f"all: {names}\n{names}:\n\t{recipe}\n")
    inherited = {name: text for name, text in os.environ.items() if name != "MAKEFLAGS"}
    return subprocess.run(
        ["make", f"-j{jobs}", "-s"],
        cwd=folder,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_make
def test_under_make_no_more_runs_than_make_allows(tmp_path: Path) -> None:
    recipe = f"+{MEMBER_COMMAND} . 16 4"
    done = make(tmp_path, recipe, jobs=3, goals=4)
    # make counts its tokens at the end, and complains of each that is missing.
    assert (done.returncode, done.stderr) == (0, "")
    counts = list(map(int, (tmp_path / "counts").read_text().split()))
    assert len(counts) == 16
    assert max(counts) <= 3
    assert max(counts) > 1


@needs_make
def test_without_a_plus_make_closes_the_pipe_and_the_users_slots_are_shared(tmp_path: Path) -> None:
    version = subprocess.run(["make", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Make (\d+)\.(\d+)", version.stdout)
    assert found is not None
    if tuple(map(int, found.groups())) >= (4, 4):
        pytest.skip("make 4.4 and later give the jobserver to every recipe")
    done = make(tmp_path, f"{MEMBER_COMMAND} . 2 3", jobs=4, goals=4)
    assert done.returncode == 0
    assert done.stderr.count("make has closed it; begin the recipe's line with +") == 4
    assert max(map(int, (tmp_path / "counts").read_text().split())) == 2


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {folder!r})
import pool_member
{how}
pool_member.COUNT = "sleep 30"
try:
    pool_member.main(".", "16", "4")
except (KeyboardInterrupt, ValueError):
    pass
"""
BY_SIGNAL = """
def stop(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
"""
BY_EXCEPTION = """
def fail(*_):
    raise ValueError
from archsplit.scheduler.executor import MemoryWatchdog
MemoryWatchdog.check = fail
"""


@needs_make
@pytest.mark.parametrize("how", [BY_SIGNAL, BY_EXCEPTION], ids=["SIGTERM", "an exception"])
def test_tokens_are_given_back_however_it_ends(tmp_path: Path, how: str) -> None:
    (tmp_path / "member.py").write_text(INTERRUPTED.format(folder=str(MEMBER.parent), how=how))
    done = make(tmp_path, f"+{shlex.quote(sys.executable)} member.py", jobs=3, goals=2)
    assert "token" not in done.stderr
    assert done.returncode == 0, done.stderr
