"""An environment is inspected and slimmed by worker processes as without them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from typing import TYPE_CHECKING

import pytest
from slim_site_samples import LIBRARY, NEIGHBOUR, Environment, contents, made, snapshot
from slim_wheel_samples import fat_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")

# Python's warning about a fork beside other threads is an error.
FORK_WARNING = ("-W", "error:This process")

# Three cores, and any work is enough. The last line of standard error has the number of forks.
FORKING = """
import os, sys
from archsplit.cli.main import main
from archsplit.system import worker_processes
worker_processes.available_cores = lambda: 3
worker_processes._LEAST_WORK = 0
forks, fork = [], os.fork
def counted():
    forks.append(0)
    return fork()
os.fork = counted
code = main(sys.argv[1:])
print(f"\\n{len(forks)} forks", file=sys.stderr)
sys.exit(code)
"""
# As many processes as the system permits, so that no thread starts beside them.
FORKING_FULL = FORKING.replace(
    "code = main",
    "import threading\n"
    "start = threading.Thread.start\n"
    "def start_before_forks(thread):\n"
    "    if forks:\n"
    "        raise RuntimeError('can not start new thread')\n"
    "    start(thread)\n"
    "threading.Thread.start = start_before_forks\n"
    "code = main",
)
PLAIN = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("made")
    environment = made(folder)
    # A damaged library beside the others, and a folder of wheels with a damaged one.
    library = (environment.site / LIBRARY).read_bytes()
    (environment.site / "damaged.so").write_bytes(library[:3000])
    wheels = environment.site / "wheels"
    wheels.mkdir()
    for wheel in folder.glob("*.whl"):
        shutil.copy(wheel, wheels)
    (wheels / "text.whl").write_bytes(b"no archive")
    fat_wheel(wheels, name="two-1-py3-none-any.whl", library=library, more={"two/b.so": library})
    return environment


@pytest.fixture
def site(original: Environment, tmp_path: Path) -> Path:
    return original.copy(tmp_path / "an environment").site


def run(program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *FORK_WARNING, "-c", program, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_same(*words: str | Path, code: int = 0) -> str:
    """Run a command with and without processes; return its output."""
    plain, forking = run(PLAIN, *words), run(FORKING, *words)
    assert (forking.returncode, forking.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == code, plain.stderr
    assert re.fullmatch(rf"{re.escape(plain.stderr)}\n[1-9]\d* forks\n", forking.stderr)
    return plain.stdout


def test_inspect_prints_the_same(site: Path) -> None:
    assert "damaged.so" in assert_same("inspect", site, "--json")
    assert_same("inspect", site, "--kernels")
    assert_same("inspect", site, "--require", "sm_75", code=9)
    assert "text.whl" in assert_same("inspect", site / "wheels", "--json")
    wheel = site / "wheels/two-1-py3-none-any.whl"
    assert "two/b.so" in assert_same("inspect", wheel, "--json")
    with zipfile.ZipFile(wheel) as archive:
        start = archive.getinfo("two/b.so").header_offset
    content = bytearray(wheel.read_bytes())
    content[start + 500] ^= 255
    wheel.write_bytes(content)
    assert_same("inspect", wheel, code=8)


def test_workers_are_awaited_with_sigchld_ignored(site: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    done, plain = run(ignoring + FORKING, "inspect", site), run(PLAIN, "inspect", site)
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "forks" in done.stderr


def test_slim_plans_the_same_with_and_without_processes(site: Path) -> None:
    assert LIBRARY in assert_same("slim", "--site-packages", site, "--device=9.0", "--dry-run")
    (site / NEIGHBOUR).write_bytes((site / NEIGHBOUR).read_bytes()[:3000])
    words = ("slim", "--site-packages", site, "--device=9.0", "--dry-run", "--json")
    assert f"{NEIGHBOUR} is left unchanged" in assert_same(*words)
    (site / LIBRARY).write_bytes((site / LIBRARY).read_bytes() + b"more")
    assert_same(*words, code=8)


def test_slim_writes_the_same(original: Environment, tmp_path: Path) -> None:
    found = {}
    for name, program in (("plain", PLAIN), ("forking", FORKING)):
        site = original.copy(tmp_path / name).site
        before = snapshot(site)
        done = run(program, "slim", "--site-packages", site, "--device=9.0")
        assert done.returncode == 0, done.stderr
        found[name] = contents(site)
        assert run(program, "slim", "--site-packages", site, "--undo").returncode == 0
        assert snapshot(site) == before
    assert found["plain"] == found["forking"]


REPLACING = """
import os, shutil, sys
from archsplit.slim import installed, site_packages
target, other = sys.argv.pop(), sys.argv.pop()
def replace():
    if os.path.exists(other):
        os.replace(other, target)
"""
# By an installer, when a worker's plan is on its way, and when all new files were written.
REPLACED_LATE = """
find = installed.open_file
def replaced(path):
    replace()
    return find(path)
installed.open_file = replaced
"""
REPLACED_LAST = """
prepare = site_packages.StagingFolder.prepare
def replaced(*words):
    prepared = prepare(*words)
    replace()
    return prepared
site_packages.StagingFolder.prepare = replaced
"""


@pytest.mark.parametrize("moment", [REPLACED_LATE, REPLACED_LAST], ids=["planned", "written"])
def test_library_replaced_during_the_run_is_refused(
    site: Path, tmp_path: Path, moment: str
) -> None:
    other = tmp_path / "other.so"
    # Of the same bytes and times: an installer that writes the same version again.
    shutil.copy2(site / LIBRARY, other)
    before = contents(site)
    words = ("slim", "--site-packages", site, "--device=9.0", other, site / LIBRARY)
    done = run(REPLACING + moment + FORKING, *words)
    assert done.returncode == 14, done.stderr
    assert f"{site / LIBRARY} changed while it was slimmed\nhint: wait for" in done.stderr
    assert not other.exists()
    assert contents(site) == before


@pytest.mark.parametrize("program", [FORKING, FORKING_FULL], ids=["usual", "full"])
def test_a_terminal_shows_activity_and_processes_work(
    site: Path, tmp_path: Path, program: str
) -> None:
    ours, theirs = os.openpty()
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, *FORK_WARNING, "-c", program, "inspect", str(site), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        # At the same time: a terminal that is not read stops the writer.
        screen = read_all(ours)
        os.close(ours)
        assert child.wait() == 0, screen
    assert (tmp_path / "out").read_text() == run(PLAIN, "inspect", site, "--json").stdout
    assert "reading" in screen
    assert re.search(r"\n[1-9]\d* forks", screen)
    # The cursor is visible again.
    assert screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l")


def read_all(descriptor: int) -> str:
    content = b""
    while True:
        try:
            block = os.read(descriptor, 1 << 16)
        except OSError:
            block = b""
        if not block:
            return content.decode()
        content += block


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_signal_ends_the_command_and_its_workers(
    stop: signal.Signals, site: Path, tmp_path: Path
) -> None:
    before = snapshot(site)
    # Workers wait while they write the new files.
    program = FORKING.replace(
        "code = main",
        "from archsplit.slim import transaction\n"
        "import time\n"
        "def wait(*_):\n"
        f"    open({str(tmp_path)!r} + f'/pid{{os.getpid()}}', 'w').close()\n"
        "    time.sleep(600)\n"
        "transaction.write_plan = wait\n"
        "code = main",
    )
    words = ("slim", "--site-packages", str(site), "--device=9.0")
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stderr is not None
        pids = wait_for_pids(tmp_path, parent)
        assert parent.pid not in pids
        (os.killpg if stop is signal.SIGINT else os.kill)(parent.pid, stop)
        code = parent.wait(60)
        said = parent.stderr.read()
    assert code == (130 if stop is signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in said
    # At once: no worker has the lock of the environment.
    assert run(PLAIN, "slim", "--site-packages", site, "--undo").returncode == 0
    assert snapshot(site) == before


def wait_for_pids(folder: Path, parent: subprocess.Popen[str], count: int = 2) -> Sequence[int]:
    end = time.monotonic() + 120
    while len(found := list(folder.glob("pid*"))) < count:
        assert parent.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    return [int(one.name.removeprefix("pid")) for one in found]
