# ruff: noqa: T201 - a script, whose findings go to standard output
"""Compare nvcc with the drop-in on random command lines.

    python tests/compiler/stress.py --nvcc PATH --peer "archsplit-nvcc {nvcc}" --count 200

Each line is run three times in a fresh copy of the same small folder at the same place: by nvcc, by
the peer, and by the peer again, whose cache now knows the line. Exit code, output, the files and
what they say must be the same, and nothing may be left behind. Devices and FIFOs stay as they are.
A line that differs is printed with the command that runs only it.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from stress_facts import facts_of, normal
from stress_lines import SPECIAL, TWO, Line, line, lines
from stress_sources import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

FALLEN_BACK = b"archsplit: running nvcc itself"
OPTIONS = "--reproducible"
"""Cores that stand idle go into -split-compile otherwise, and ptxas writes that into its cubins."""

_TIMEOUT = 180
_SEEKS = b"Illegal seek"
_AGE = 1_600_000_000
"""When the sources were written, for debug information says so."""
_MOST_SHOWN = 300
_MOST_REPEATS = 8
"""Times that nvcc runs again to see which parts of its output vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run of a compiler.

    Attributes:
        returncode: of the compiler.
        stdout: made comparable.
        stderr: the same, without the line that says that nvcc itself is run.
        files: content of everything that is new or changed, by path.
        left: what it left behind in the folder for temporary files.
        fell_back: that line, or nothing.
        replaced: devices and FIFOs in whose place is a regular file now.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]
    left: tuple[str, ...]
    fell_back: bytes
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A command line, and how the peer's run differs from nvcc's."""

    line: Line
    faults: tuple[str, ...]
    fell_back: bytes


class Field:
    """A folder in which one command line after the other is tried."""

    def __init__(self, root: Path, nvcc: Path, peer: str, options: str = OPTIONS) -> None:
        self._root = root
        self._nvcc = (str(nvcc),)
        self._peer = tuple(word.format(nvcc=nvcc) for word in shlex.split(peer))
        self._options = {"ARCHSPLIT_NVCC_OPTIONS": options}
        self._libraries = nvcc.parents[1] / "lib"
        self._store = root.with_name(f"{root.name}-store")
        self._objects: dict[str, bytes] = {}
        self._prepare()

    def verdict(self, one: Line) -> Verdict:
        """Run a line with both, and with the peer again, and compare."""
        theirs, ours = self._run(self._nvcc, one), self._run(self._peer, one)
        again = self._run(self._peer, one)
        shutil.rmtree(self._store, ignore_errors=True)
        words = " ".join((one.words, *one.files.values()))
        inside = _inside(self._root / "tmp")
        faults = _differences(theirs, ours, words, inside)
        if not faults:
            later = _differences(theirs, again, words, inside)
            faults = [f"again: {fault}" for fault in later]
        # A unit's random name is in compressed and encrypted parts, too, whose sizes depend on it.
        for _ in range(_MOST_REPEATS):
            if not faults:
                break
            varying = _differences(theirs, self._run(self._nvcc, one), words, inside)
            heads = {fault.partition("\n")[0] for fault in varying}
            faults = [
                fault
                for fault in faults
                if fault.partition("\n")[0].removeprefix("again: ") not in heads
            ]
        return Verdict(line=one, faults=tuple(faults), fell_back=ours.fell_back)

    def _prepare(self) -> None:
        for source, name in (("d.cu", "r.o"), ("u.cu", "s.o")):
            made = self._run(self._nvcc, Line(name=name, words=f"-dc {source} -o {name} {TWO}"))
            self._objects[name] = made.files[name]

    def _run(self, compiler: tuple[str, ...], one: Line) -> Result:
        cwd, temporary = self._root / "cwd", self._root / "tmp"
        shutil.rmtree(self._root, ignore_errors=True)
        temporary.mkdir(parents=True)
        before = {**{name: text.encode() for name, text in FILES.items()}, **self._objects}
        before |= {name: self._filled(text).encode() for name, text in one.files.items()}
        for name, content in before.items():
            (cwd / name).parent.mkdir(parents=True, exist_ok=True)
            (cwd / name).write_bytes(content)
            os.utime(cwd / name, (_AGE, _AGE))
        settings = {"PATH": "/usr/bin:/bin", "HOME": str(self._root), "TMPDIR": str(temporary)}
        settings["ARCHSPLIT_CACHE_DIR"] = str(self._store)
        _make_device(cwd / "null")
        with _drained_fifo(cwd / "pipe") as drained:
            done = subprocess.run(
                [*compiler, *shlex.split(self._filled(one.words))],
                cwd=cwd,
                env={**settings, **one.environment, **self._options},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT,
            )
        return self._result(done, cwd, temporary, before, b"".join(drained))

    def _filled(self, words: str) -> str:
        return words.replace("${LIBRARIES}", str(self._libraries))

    def _result(
        self,
        done: subprocess.CompletedProcess[bytes],
        cwd: Path,
        temporary: Path,
        before: dict[str, bytes],
        drained: bytes,
    ) -> Result:
        said = done.stderr.splitlines(keepends=True)
        after = {
            str(path.relative_to(cwd)): path.read_bytes()
            for path in sorted(cwd.rglob("*"))
            if path.is_file()
        }
        if drained:
            after["pipe"] = drained
        return Result(
            returncode=done.returncode,
            stdout=_comparable(done.stdout, temporary),
            stderr=_comparable(b"".join(x for x in said if FALLEN_BACK not in x), temporary),
            files={name: text for name, text in after.items() if text != before.get(name)},
            left=tuple(sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*"))),
            fell_back=b"".join(x for x in said if FALLEN_BACK in x).strip(),
            replaced=tuple(name for name in SPECIAL if (cwd / name).is_file()),
        )


def _make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:  # Only root can; who isn't can't damage the machine's device either.
        path.symlink_to(os.devnull)


@contextmanager
def _drained_fifo(path: Path) -> Iterator[list[bytes]]:
    """Make a FIFO without a waiting program, and read it until the block ends."""
    os.mkfifo(path)
    # Open for writing too: so no end comes before the block ends, however often a program writes.
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    parts: list[bytes] = []
    is_over = threading.Event()

    def drain() -> None:
        while select.select([end], [], [], 0.01)[0] or not is_over.is_set():
            with suppress(BlockingIOError):
                parts.append(os.read(end, 1 << 16))

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        yield parts
    finally:
        is_over.set()
        reader.join()
        os.close(end)


def _comparable(text: bytes, temporary: Path) -> bytes:
    """Paths of intermediate files become their names."""
    return normal(re.sub(_inside(temporary), b"", text))


def _inside(folder: Path) -> bytes:
    return re.escape(str(folder).encode()) + rb"/(?:[\w.-]+/)*"


def _differences(theirs: Result, ours: Result, words: str, temporary: bytes) -> list[str]:
    is_ordered = not re.search(r"-t |-t=|--threads", words)
    is_beside = re.search(r"-objtemp|-objdir-as-tempdir", words) is not None
    faults = [f"replaces {name}" for name in ours.replaced]
    if _SEEKS in theirs.stderr:
        # GNU's assembler and linker can't write to a FIFO; the peer can, and that's no fault.
        return faults
    if theirs.returncode != ours.returncode:
        faults.append(f"exit code {theirs.returncode}, here {ours.returncode}")
    for what in ("stdout", "stderr"):
        one, other = getattr(theirs, what), getattr(ours, what)
        if not is_ordered:
            one, other = (b"\n".join(sorted(text.splitlines())) for text in (one, other))
        if one != other:
            faults.append(f"{what}:{_shown(one, other)}")
    if ours.left:  # What a cicc that fails leaves behind, nvcc doesn't remove.
        faults.append(f"left behind: {ours.left}, by nvcc {theirs.left}")
    # Archivers replace a device or FIFO by a file, which isn't asked of the peer.
    made = {name: text for name, text in theirs.files.items() if name not in theirs.replaced}
    ours_made = {name: text for name, text in ours.files.items() if name not in theirs.replaced}
    missing, more = set(made) - set(ours_made), set(ours_made) - set(made)
    # With -objtemp nvcc doesn't remove all of its intermediate files.
    missing = {one for one in missing if not one.endswith((".i", ".ii"))} if is_beside else missing
    faults += [f"doesn't make {name}" for name in sorted(missing)]
    faults += [f"makes {name}" for name in sorted(more)]
    for name in sorted(set(made) & set(ours_made)):
        faults += _file_differences(name, made[name], ours_made[name], temporary)
    return faults


def _file_differences(name: str, theirs: bytes, ours: bytes, temporary: bytes) -> list[str]:
    if theirs == ours:
        return []
    one, other = (facts_of(name, text, temporary=temporary) for text in (theirs, ours))
    if list(one) != list(other):
        return [f"{name}: other parts:{_shown(_listed(one), _listed(other))}"]
    return [
        f"{name}: {part}:{_shown(one[part], other[part])}"
        for part in one
        if one[part] != other[part]
    ]


def _listed(facts: dict[str, bytes]) -> bytes:
    return "\n".join(facts).encode()


def _shown(theirs: bytes, ours: bytes) -> str:
    """The first lines that only one of them has."""
    one, other = theirs.splitlines(), ours.splitlines()
    ours_alone, theirs_alone = set(other) - set(one), set(one) - set(other)
    lost = [f"\n    - {text[:_MOST_SHOWN]!r}" for text in one if text in theirs_alone][:4]
    found = [f"\n    + {text[:_MOST_SHOWN]!r}" for text in other if text in ours_alone][:4]
    return "".join((*lost, *found)) or " the same lines in another order"


def judged(
    nvcc: Path, peer: str, some: tuple[Line, ...], *, jobs: int, options: str = OPTIONS
) -> list[Verdict]:
    """Try all lines, some at a time, each kind of worker in a folder of its own."""
    free: SimpleQueue[Field] = SimpleQueue()
    print_lock = threading.Lock()

    def tried(one: Line) -> Verdict:
        ground = free.get()
        try:
            verdict = ground.verdict(one)
        finally:
            free.put(ground)
        with print_lock:
            _tell(verdict, nvcc, peer)
        return verdict

    with tempfile.TemporaryDirectory(prefix="stress-") as name:
        for number in range(jobs):
            free.put(Field(Path(name).resolve() / f"field{number}", nvcc, peer, options))
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(tried, some))


def _tell(verdict: Verdict, nvcc: Path, peer: str) -> None:
    if not verdict.faults:
        return
    one = verdict.line
    settings = "".join(f"{name}={shlex.quote(text)} " for name, text in one.environment.items())
    again = f"python {sys.argv[0]} --nvcc {nvcc} --peer {shlex.quote(peer)} --line {one.name}"
    print(f"{one.name}: {settings}nvcc {one.words}")
    print("".join(f"  {name}: {text!r}\n" for name, text in one.files.items()), end="")
    print("".join(f"  {fault}\n" for fault in verdict.faults) + f"  again: {again}", flush=True)


def main() -> int:
    """Try the lines that are asked for; the exit code says whether any differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", type=Path, required=True)
    parser.add_argument("--peer", default="{nvcc}", help="its words; {nvcc} is the path of nvcc")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first line")
    parser.add_argument("--line", help="only this one, as it was printed: SEED:NUMBER")
    parser.add_argument("--options", default=OPTIONS, help="ARCHSPLIT_NVCC_OPTIONS of the peer")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    some = lines(arguments.seed, arguments.first + arguments.count)[arguments.first :]
    if arguments.line:
        seed, _, number = arguments.line.partition(":")
        some = (line(int(seed), int(number)),)
    verdicts = judged(
        arguments.nvcc.absolute(),
        arguments.peer,
        some,
        jobs=arguments.jobs,
        options=arguments.options,
    )
    differing = sum(bool(verdict.faults) for verdict in verdicts)
    fallen = [verdict for verdict in verdicts if verdict.fell_back]
    for verdict in fallen:
        print(f"{verdict.line.name}: {verdict.fell_back.decode()}")
    print(f"{len(verdicts)} lines, {differing} differ, {len(fallen)} left to nvcc")
    return min(differing, 1)


if __name__ == "__main__":
    raise SystemExit(main())
