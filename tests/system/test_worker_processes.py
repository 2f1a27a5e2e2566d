"""A map over forked processes, in programs of their own: pytest has threads, so it can't fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")

# Python's warning about a fork beside other threads is an error.
FORK_WARNING = ("-W", "error:This process")

SETUP = """
import os, signal, sys, threading, time
from pathlib import Path
from archsplit.system import worker_processes
from archsplit.system.worker_processes import WorkerProcesses, map_in_processes

worker_processes.available_cores = lambda: 3
ME = os.getpid()

def run(function, items, size=1 << 30, **options):
    return map_in_processes(function, items, lambda _: size, WorkerProcesses(), **options)

def is_child():
    return os.getpid() != ME

def children():
    return Path(f"/proc/self/task/{ME}/children").read_text().split()
"""


def program(text: str) -> list[str]:
    return [sys.executable, *FORK_WARNING, "-c", SETUP + textwrap.dedent(text)]


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(text),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_runs(text: str) -> None:
    done = run(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_results_come_in_order_from_three_processes() -> None:
    assert_runs(
        """
        def work(item):
            time.sleep(0.05)
            # More than a pipe holds.
            return item, os.getpid(), "x" * 300_000

        before = os.listdir("/proc/self/fd")
        found = run(work, range(12))
        assert [item for item, _, _ in found] == list(range(12))
        pids = {pid for _, pid, _ in found}
        assert ME not in pids and len(pids) > 1, pids
        assert {len(text) for _, _, text in found} == {300_000}
        assert run(work, []) == []
        assert children() == [] and os.listdir("/proc/self/fd") == before
        """
    )


def test_the_largest_begin_first() -> None:
    assert_runs(
        """
        begun = map_in_processes(
            lambda size: (time.sleep(0.01), time.monotonic())[1],
            list(range(1, 20)),
            lambda size: size << 30,
            WorkerProcesses(),
        )
        assert sorted(begun[-3:]) < sorted(begun[:3])
        """
    )


def test_work_stays_in_this_process_if_it_cannot_fork() -> None:
    assert_runs(
        """
        def pid(_):
            return os.getpid()

        def no_fork():
            raise BlockingIOError(11, "Resource temporarily unavailable")

        # Without permission, for little work, for one item, for more items than a pipe holds.
        assert set(map_in_processes(pid, [1, 2, 3], lambda _: 1 << 30, None)) == {ME}
        assert set(run(pid, [1, 2, 3], size=100)) == {ME}
        assert run(pid, [1]) == [ME]
        assert set(run(pid, range(10_000))) == {ME}
        # On two cores.
        worker_processes.available_cores = lambda: 2
        assert set(run(pid, [1, 2, 3])) == {ME}
        worker_processes.available_cores = lambda: 3
        assert ME not in run(pid, [1, 2, 3])
        # Without memory for two of them.
        memory = worker_processes.SystemMemory
        worker_processes.SystemMemory = lambda: type("", (), {"available": lambda _: 100 << 20})()
        assert set(run(pid, [1, 2, 3])) == {ME}
        worker_processes.SystemMemory = memory
        # Where the system refuses, and beside another thread.
        fork, os.fork = os.fork, no_fork
        assert set(run(pid, [1, 2, 3])) == {ME}
        os.fork = fork
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        assert set(run(pid, [1, 2, 3])) == {ME}
        """
    )


def test_an_error_is_raised_as_without_processes() -> None:
    assert_runs(
        """
        from archsplit.errors import InputError

        def work(item):
            if item in {2, 4}:
                raise InputError(f"can't read {item}", hint="look") from ValueError(item)
            return item

        for workers in (None, WorkerProcesses()):
            try:
                map_in_processes(work, range(200), lambda _: 1 << 30, workers)
            except InputError as error:
                assert str(error) == "can't read 2\\nhint: look"
                assert repr(error.__cause__) == "ValueError(2)"
            else:
                sys.exit("no error")
        """
    )


def test_item_of_dying_workers_is_done_by_the_parent() -> None:
    assert_runs(
        """
        def dies(item):
            if is_child() and item == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return item

        assert run(dies, range(40)) == list(range(40))

        def all_die(item):
            if is_child():
                os._exit(3)
            return item

        assert run(all_die, range(40)) == list(range(40))
        # A parent that ignores the ends of its children.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert run(dies, range(40)) == list(range(40))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A function can't be pickled.
        assert [one() for one in run(lambda item: lambda: item, range(5))] == list(range(5))

        def exits(item):
            if is_child():
                sys.exit("not here")
            return item

        assert run(exits, range(5)) == list(range(5))
        assert children() == []
        """
    )


def test_few_open_files_are_enough() -> None:
    assert_runs(
        """
        import resource

        for most in range(4, 24):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, 24))
            assert run(lambda item: item, range(40)) == list(range(40)), most
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        before = os.listdir("/proc/self/fd")
        # One pipe fits, and a second one doesn't.
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 2, 24))
        assert run(lambda item: item, range(40)) == list(range(40))
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        assert children() == [] and os.listdir("/proc/self/fd") == before
        """
    )


def test_more_items_than_a_small_pipe_holds() -> None:
    assert_runs(
        """
        import fcntl

        # A user with many pipes gets pipes of one page, 1024 indexes.
        pipe = os.pipe

        def small_pipe():
            ends = pipe()
            fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 4096)
            return ends

        os.pipe = small_pipe
        assert run(lambda item: item, range(5000)) == list(range(5000))
        assert ME not in run(lambda _: os.getpid(), range(100))
        """
    )


def test_workers_end_with_their_parent() -> None:
    text = """
        def work(item):
            sys.stdout.write(f"{os.getpid()}\\n")
            sys.stdout.flush()
            time.sleep(600)

        run(work, range(3))
        """
    with subprocess.Popen(program(text), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        parent.kill()
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        # A container's first process may collect no children: they stay as zombies.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_workers_without_output(stop: signal.Signals) -> None:
    text = """
        def interrupt(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGINT, interrupt)

        def work(item):
            sys.stdout.write(f"{os.getpid()}\\n")
            sys.stdout.flush()
            time.sleep(600)

        try:
            run(work, range(3))
        except KeyboardInterrupt:
            assert children() == []
            sys.exit(130)
        """
    with subprocess.Popen(
        program(text),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        # Ctrl-C reaches the whole group; `kill` one process.
        if stop is signal.SIGINT:
            os.killpg(parent.pid, stop)
        else:
            parent.send_signal(stop)
        assert parent.wait(60) == 130
        assert parent.stderr.read() == ""
    wait_until_gone(pids)
