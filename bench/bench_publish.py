# ruff: noqa: INP001, S311, S603, T201, TID251 - a script, which starts servers and programs as a user would
"""Release path of wheels: split, verify, publish to two indexes, install, join.

    python bench/bench_publish.py WHEEL... --log path.jsonl --work FOLDER [--no-install PROJECT]

Each argument is a wheel, or several wheels of one version with commas between them. The log gets a
row as soon as a wheel is done, and a wheel with a row there is skipped: start it again after an
interruption. The servers are devpi (in an environment of its own, made in the work folder) and
pypiserver, on 127.0.0.1 only. The outputs of a wheel are deleted when it is done. `--table` prints
the log. `--interrupt 20` kills each publish to pypiserver 20 times before it lets one finish, and
looks at the index after each kill. `--pythons 5` makes wheels with nvcc for five Pythons, each with
other images, and runs them as one release.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program_usage import children_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECONDS = 900
USER, PASSWORD = "me", "let-me-in"
PYPISERVER = "pypiserver"
SMALL = (75, 80, 86, 89, 90, 120)


def main() -> None:
    """Run the wheels that the log lacks, or print the table of the log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheels", nargs="*")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("release-path"))
    parser.add_argument("--no-install", nargs="*", default=[], metavar="PROJECT")
    parser.add_argument("--until", default="", metavar="HH:MM", help="begin no wheel after this")
    parser.add_argument("--interrupt", type=int, default=0, metavar="TIMES")
    parser.add_argument("--pythons", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    # Without this, an end by SIGTERM leaves the servers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows = read_log(arguments.log)
    if not arguments.table:
        arguments.work.mkdir(parents=True, exist_ok=True)
        releases = list(arguments.wheels)
        if arguments.pythons:
            made = make_wheels(arguments.work.absolute() / "made", arguments.pythons)
            releases.append(",".join(map(str, made)))
        with servers(arguments.work.absolute()) as indexes:
            for text in releases:
                if any(row["wheels"] == text for row in rows):
                    continue
                if arguments.until and time.strftime("%H:%M") >= arguments.until:
                    break
                work = arguments.work.absolute()
                not_installed = arguments.no_install
                row = release_path(text, work, indexes, not_installed, arguments.interrupt)
                rows.append(row)
                with arguments.log.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(table([row]).splitlines()[-1], flush=True)
    print(table(rows))


def make_wheels(folder: Path, pythons: int) -> list[Path]:
    """Compile a wheel for each of several Pythons, with kernels of its own, for six GPUs."""
    return [make_wheel(folder, f"cp3{10 + number}") for number in range(pythons)]


def make_wheel(
    folder: Path, tag: str, version: str = "1.0", targets: Sequence[int] = SMALL
) -> Path:
    """Compile a library with nvcc, and pack it into a wheel for one Python."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / f"{tag}.cu", folder / f"{tag}.so"
    source.write_text(
        f"__global__ void add_{tag}(float *x) {{ x[threadIdx.x] += {int(tag[3:])}; }}\n"
        f'extern "C" int run() {{ add_{tag}<<<1, 32>>>(nullptr); return 0; }}\n'
    )
    images = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in targets]
    words = ("-shared", "-Xcompiler", "-fPIC", *images, "-o", str(library), str(source))
    subprocess.run([shutil.which("nvcc") or "nvcc", *words], check=True)
    info = f"pysum-{version}.dist-info"
    name = f"{tag}-{tag}-manylinux_2_28_x86_64"
    members = {
        "pysum/__init__.py": b"ANSWER = 42\n",
        "pysum/libsum.so": library.read_bytes(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: pysum\nVersion: {version}\nSummary: Sums.\n"
            "Description-Content-Type: text/plain\n\nSums on a GPU.\n"
        ).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: false\nTag: {name}\n"
        ).encode(),
    }
    rows = []
    for member, content in members.items():
        hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{member},sha256={hashed},{len(content)}")
    record = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"pysum-{version}-{name}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in {**members, f"{info}/RECORD": record}.items():
            archive.writestr(member, content)
    return wheel


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log; none without one."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextlib.contextmanager
def servers(work: Path) -> Iterator[dict[str, str]]:
    """Serve two empty indexes; yield the address for uploads of each by its name."""
    files = work / PYPISERVER
    files.mkdir(exist_ok=True)
    port, devpi_port = free_port(), free_port()
    words = ("run", "-i", "127.0.0.1", "-p", str(port), "-P", ".", "-a", ".", str(files))
    devpi = devpi_environment(work)
    state = work / "devpi"
    if not state.exists():
        init: tuple[str | Path, ...] = (
            devpi / "devpi-init",
            "--serverdir",
            state,
            "--no-root-pypi",
        )
        subprocess.run(init, check=True, capture_output=True)
    serve: tuple[str | Path, ...] = (
        devpi / "devpi-server",
        "--serverdir",
        state,
        "--port",
        str(devpi_port),
    )
    with (work / "servers.log").open("a") as log:
        started = [
            subprocess.Popen((sys.executable, "-m", "pypiserver", *words), stdout=log, stderr=log),
            subprocess.Popen((*serve, "--host", "127.0.0.1"), stdout=log, stderr=log),
        ]
    try:
        url = f"http://127.0.0.1:{devpi_port}"
        make_index(devpi / "devpi", url, work / "client")
        yield {"devpi": f"{url}/{USER}/dev/", PYPISERVER: f"http://127.0.0.1:{port}/"}
    finally:
        for process in started:
            process.terminate()
            process.wait()


def devpi_environment(work: Path) -> Path:
    """Return the programs of devpi's environment, which is made if it is missing."""
    programs = work / "devpi-environment" / "bin"
    if not (programs / "devpi").exists():
        subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
        wanted = ("devpi-server>=6.15", "devpi-client>=7.2")
        subprocess.run([programs / "pip", "install", "--quiet", *wanted], check=True)
    return programs


def make_index(devpi: Path, url: str, client: Path) -> None:
    """Make a user and an index of devpi, if they are missing."""

    def run(*words: str) -> int:
        command: list[str | Path] = [devpi, *words, "--clientdir", client]
        return subprocess.run(command, check=False, capture_output=True).returncode

    end = time.monotonic() + SECONDS
    while run("use", url) != 0 and time.monotonic() < end:
        time.sleep(0.5)
    run("user", "-c", USER, f"password={PASSWORD}", "email=me@example.org")
    run("login", USER, f"--password={PASSWORD}")
    run("index", "-c", f"{USER}/dev", "bases=", "volatile=True")


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """A split, and the folder of the index that it is published to."""

    split: Path
    served: Path
    report: dict[str, Any]
    interruptions: int


def release_path(
    text: str,
    work: Path,
    indexes: dict[str, str],
    not_installed: Sequence[str],
    interruptions: int,
) -> dict[str, Any]:
    """Run all steps for one release, and return its row; a failed split ends it."""
    wheels = [Path(one).absolute() for one in text.split(",")]
    row: dict[str, Any] = {"wheels": text, "bytes": sum(one.stat().st_size for one in wheels)}
    out = work / "out"
    split = out / "split"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        step(row, "split", ("split", *wheels, "--release", "--out", split))
        if row["split"]["code"]:
            return row
        report = json.loads((split / "archsplit-report.json").read_text())
        row["core"] = sum(one["size"] for one in report["wheels"] if one["role"] == "core")
        row["packs"] = [one["size"] for one in report["wheels"] if one["role"] == "plugin"]
        words = ("--no-install",) if report["project"] in not_installed else ()
        step(row, "verify", ("verify", split, "--release", *words))
        environment = {"TWINE_USERNAME": USER, "TWINE_PASSWORD": PASSWORD}
        for name, url in indexes.items():
            publish = ("publish", split, "--repository-url", url)
            step(row, f"plan {name}", (*publish, "--plan"), environment)
            if name == PYPISERVER and interruptions:
                release = Release(
                    split=split,
                    served=work / PYPISERVER,
                    report=report,
                    interruptions=interruptions,
                )
                interrupt(row, (*publish, "--yes", "--quiet"), environment, release)
            step(row, name, (*publish, "--yes", "--quiet"), environment)
            install(row, name, url, report, out)
        row["whole"] = is_whole(split, work / PYPISERVER)
        join(row, wheels, split, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)
        for path in (work / PYPISERVER).iterdir():
            path.unlink()
    return row


def interrupt(
    row: dict[str, Any], words: Sequence[str | Path], environment: dict[str, str], release: Release
) -> None:
    """Kill a publish again and again, each time at a random moment of its uploads.

    Three of four kills wait for the next call of twine; the others come in the first seconds.
    """
    argv = [sys.executable, "-m", "archsplit", *map(str, words)]
    chance = random.Random(release.interruptions)
    kills = []
    for number in range(release.interruptions):
        process = subprocess.Popen(
            argv,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A shell ignores Ctrl-C for what runs in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        in_upload = number % 4 != 0
        while in_upload and process.poll() is None and not is_uploading(process.pid):
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, 2 if in_upload else 10))
        uploading = is_uploading(process.pid)
        process.send_signal(chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)))
        code = process.wait()
        kills.append({"code": code, "uploading": uploading, "sound": is_sound(release)})
        print("killed", kills[-1], len(list(release.served.iterdir())), flush=True)
    row["interrupted"] = kills


def is_uploading(process: int) -> bool:
    """Return True if a process has a child that uploads a file with twine."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            if b"\0upload\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return True
    return False


def is_sound(release: Release) -> bool:
    """Return True if the index has only files of the release, and no core before all plugins."""
    own = published_files(release.split)
    there = {path.name: digest(path) for path in release.served.iterdir()}
    roles = {one["file"]: one["role"] for one in release.report["wheels"]}
    needed = {name for name, role in roles.items() if role == "plugin"} & own.keys()
    has_core = any(roles.get(name) == "core" for name in there)
    return there.items() <= own.items() and (not has_core or needed <= there.keys())


def is_whole(split: Path, files: Path) -> bool:
    """Return True if an index has all wheels of a release, with the same bytes, and no others."""
    return published_files(split) == {path.name: digest(path) for path in files.iterdir()}


def published_files(split: Path) -> dict[str, str]:
    """Return the digest of each wheel that is published: all but the pack for `join`."""
    wheels = (path for path in split.glob("*.whl") if "_rest-" not in path.name)
    return {path.name: digest(path) for path in wheels if "_commonrest-" not in path.name}


def install(row: dict[str, Any], name: str, url: str, report: dict[str, Any], out: Path) -> None:
    """Install core and packs of one GPU with pip and uv, without other projects."""
    index = f"{url}+simple/" if name == "devpi" else f"{url}simple/"
    needs = report["split"]["needs"]
    packs = needs[min(needs)] if needs else []
    plugins = [one for one in report["wheels"] if one["role"] == "plugin"]
    names = [
        report["project"],
        *(one["distribution"] for one in plugins if one["plugin"]["name"] in packs),
    ]
    wanted = [f"{each}=={report['version']}" for each in names]
    pip: tuple[str | Path, ...] = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-cache-dir",
        "--no-compile",
    )
    uv: tuple[str | Path, ...] = (
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--no-cache",
    )
    for installer, words in (("pip", pip), ("uv", uv)):
        target = out / f"{name}-{installer}"
        more: tuple[str | Path, ...] = (
            "--no-deps",
            "--quiet",
            "--index-url",
            index,
            "--target",
            target,
            *wanted,
        )
        step(row, f"{installer} {name}", (*words, *more), program=())
        shutil.rmtree(target, ignore_errors=True)


def join(row: dict[str, Any], wheels: Sequence[Path], split: Path, out: Path) -> None:
    """Join the split, and compare each library with the members of the original wheels."""
    step(row, "join", ("join", split, "--out", out / "joined"))
    originals = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    originals.add(hashlib.sha256(member.read()).hexdigest())
    libraries = [path for path in (out / "joined").rglob("*") if path.is_file()]
    row["same"] = sum(digest(path) in originals for path in libraries)
    row["of"] = len(libraries)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def step(
    row: dict[str, Any],
    name: str,
    words: Sequence[str | Path],
    environment: dict[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "archsplit"),
) -> None:
    """Run a command; its exit code, seconds, CPU seconds and last lines go into the row."""
    began, used = time.monotonic(), children_cpu()
    try:
        done = subprocess.run(
            [*program, *map(str, words)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        code, told = done.returncode, done.stderr or done.stdout
    except subprocess.TimeoutExpired:
        code, told = 124, "no end"
    row[name] = {
        "code": code,
        "seconds": round(time.monotonic() - began, 1),
        "cpu": round(children_cpu() - used, 1),
        "text": told[-1500:],
    }


STEPS = ("split", "verify", "devpi", PYPISERVER, "pip devpi", "uv devpi", "join")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the log as a table of Markdown: exit code and seconds of each step."""
    lines = [
        f"| release | MB | core | packs | {' | '.join(STEPS)} | pip, uv {PYPISERVER} | joined"
        " | interrupted | index whole |",
        "|---" * (8 + len(STEPS)) + "|",
    ]
    for row in rows:
        first, *others = row["wheels"].split(",")
        name = "-".join(Path(first).name.split("-")[:3]) + (
            f" and {len(others)} more" * bool(others)
        )
        packs = row.get("packs", [])
        sizes = (row["bytes"], row.get("core", 0), sum(packs))
        cells = [f"{size / 1e6:.1f}" for size in sizes]
        cells[2] += f" in {len(packs)}"
        cells += [cell(row, each) for each in STEPS]
        cells.append(", ".join(cell(row, f"{each} {PYPISERVER}") for each in ("pip", "uv")))
        cells.append(f"{row.get('same', 0)} of {row.get('of', 0)}")
        kills = row.get("interrupted", [])
        cells.append(f"{sum(one['uploading'] for one in kills)} of {len(kills)}")
        cells.append({True: "yes", False: "NO", None: "-"}[row.get("whole")])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: dict[str, Any], name: str) -> str:
    """Return the exit code and seconds of a step, or a dash."""
    found = row.get(name)
    if found is None:
        return "-"
    return f"{found['code']} ({found['seconds']:g} s, {found.get('cpu', 0):g} of CPU)"


if __name__ == "__main__":
    main()
