# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""A pull request in CI: a restored cache, another folder, another user, a few files touched.

    python bench/bench_ci.py --nvcc NVCC --nccl-tests DIR --nccl-include DIR [--ggml DIR]
        [--cuda-include DIR …] [--ccache PROGRAM] [--sccache PROGRAM] [--jobs N] [--local]
        [--user UID] [--machine NAME] [--turns] [--json FILE]

Each project is committed to a git repository, and each build compiles a clone of depth 1 with
absolute paths and depfiles, as CMake's builds do. Parts: `cold`, with nothing cached; `again`, with
the objects gone; `elsewhere`, another clone; `pull request`, where the cache comes out of an
archive, as actions/cache restores it, for another folder, another home, (`--user`) another user and
(`--machine`) a machine of another name, and 5 % of the sources have a new line; `by http` and `by
s3` (moto's server), the same with an empty cache and a remote one that another machine has filled.
Peers are nvcc itself, and ccache and sccache with their best settings for this, which are printed.
With `--turns` there is only `cold`: all tools compile one source before any compiles the next, one
at a time, so that a machine that gets slower is slower for all (`taskset -c 3 python …` for one
core, where neighbours share no caches). Seconds are wall and CPU seconds, with sccache's server.
`equal` means that objects of untouched sources have the bytes of the build that filled the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess  # noqa: TID251 - a bench starts its peers as their users do
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from program_usage import children_cpu, process_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TOUCHED = 20
"""Sources for each one that a pull request touches."""
_PORT = 45226
_CLONE_NEWUTS = 0x04000000
"""Flag of `unshare` for a host name of one's own; source: linux/sched.h."""
_BUCKET = "bench"
_S3_USER = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "me", "AWS_REGION": "us-east-1"}


class BuildFailedError(Exception):
    """A compilation failed, and what should have been measured wasn't."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project of one nvcc command for each source.

    Attributes:
        sources: relative to the top.
        flags: nvcc's arguments for a checkout.
    """

    name: str
    repository: Path
    sources: tuple[str, ...]
    flags: Callable[[Path], Sequence[str]]

    @property
    def touched(self) -> tuple[str, ...]:
        """Return the sources that a pull request touches."""
        return self.sources[:: max(1, min(_TOUCHED, len(self.sources)))]

    def clone(self, folder: Path, *, touch: bool = False) -> Path:
        """Make a checkout of depth 1."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run("git", "clone", "-q", "--depth", "1", f"file://{self.repository}", str(folder))
        for name in self.touched if touch else ():
            with (folder / name).open("a") as file:
                file.write("\nint added_by_a_pull_request;\n")
        return folder


@dataclass(frozen=True, kw_only=True)
class Took:
    """Duration of a part, and digests of its objects by source."""

    wall: float
    cpu: float
    objects: dict[str, str]


@dataclass(kw_only=True)
class Tool:
    """A program before nvcc.

    Attributes:
        settings: variables; ``{checkout}``, ``{store}``, ``{http}`` and ``{s3}`` stand for folders
            and for the addresses of servers.
        remote: variables with which it also uses a remote store, by the kind of server.
    """

    name: str
    argv: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    remote: dict[str, dict[str, str]] = field(default_factory=dict)
    is_server: bool = False

    def environment(self, places: Places, *, by: str) -> dict[str, str]:
        """Return all variables of a build."""
        words = {**self.settings, **self.remote.get(by, {})}
        own = {name: text.format(**places.words(self.name)) for name, text in words.items()}
        kept = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        return {**kept, "HOME": str(places.home), "TMPDIR": str(places.temporary), **own}


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders of a build."""

    checkout: Path
    store: Path
    home: Path
    temporary: Path
    servers: dict[str, str]
    user: int | None = None

    def words(self, tool: str) -> dict[str, str]:
        """Return what stands for the places in settings."""
        return {
            "checkout": str(self.checkout),
            "store": str(self.store),
            "tool": tool,
            **self.servers,
        }

    def own(self) -> None:
        """Make all folders, and give them to the user."""
        for folder in (self.checkout, self.store, self.home, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
            if self.user is not None:
                _run("chown", "-R", f"{self.user}:{self.user}", str(folder))


def build(project: Project, tool: Tool, places: Places, *, jobs: int, by: str = "") -> Took:
    """Compile all sources of a checkout.

    Args:
        by: the kind of the remote store's server; "" uses the local one only.

    Raises:
        BuildFailedError: a compilation failed.
    """
    places.own()
    environment = tool.environment(places, by=by)
    output = places.checkout / "build"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    if places.user is not None:
        os.chown(output, places.user, places.user)

    def compile_one(source: str) -> None:
        made = output / f"{source.replace('/', '_')}.o"
        words = (*project.flags(places.checkout), "-MD", "-MT", str(made), "-MF", f"{made}.d")
        argv = (*tool.argv, *words, "-c", str(places.checkout / source), "-o", str(made))
        done = subprocess.run(  # noqa: S603 - the commands are the bench's own
            argv,
            cwd=output,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            user=places.user,
            group=places.user,
        )
        if done.returncode:
            raise BuildFailedError(f"{' '.join(argv)}\n{done.stderr[-2000:]}")

    with _server(tool, environment, places) as server_cpu:
        before, began = children_cpu(), time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(compile_one, project.sources))
        wall, cpu = time.monotonic() - began, children_cpu() - before + server_cpu()
    objects = {
        source: hashlib.sha256((output / f"{source.replace('/', '_')}.o").read_bytes()).hexdigest()
        for source in project.sources
    }
    return Took(wall=wall, cpu=cpu, objects=objects)


def parts(
    project: Project,
    tool: Tool,
    folder: Path,
    servers: dict[str, str],
    *,
    jobs: int,
    user: int | None,
    machine: str,
) -> Iterator[tuple[str, Took, str]]:
    """Yield each part, what it took, and what else there is to say."""

    def places(name: str, store: str, *, is_other: bool = False) -> Places:
        return Places(
            checkout=folder / name / project.name,
            store=folder / store,
            home=folder / f"{name}-home",
            temporary=folder / f"{name}-tmp",
            servers=servers,
            user=user if is_other else None,
        )

    first = places("runner/work", "store")
    project.clone(first.checkout)
    cold = build(project, tool, first, jobs=jobs)
    yield "cold", cold, ""
    # nvcc has no cache: each part takes what the first one took.
    if not tool.settings:
        return
    yield "again", build(project, tool, first, jobs=jobs), ""
    second = places("elsewhere/of/another/depth", "store")
    project.clone(second.checkout)
    took = build(project, tool, second, jobs=jobs)
    yield "elsewhere", took, _equal(cold, took, project.sources)
    began = time.monotonic()
    archive = shutil.make_archive(str(folder / "cache"), "tar", first.store)
    third = places("container/build", "restored", is_other=True)
    shutil.unpack_archive(archive, third.store)
    moved = time.monotonic() - began
    project.clone(third.checkout, touch=True)
    with _on_machine(machine):
        took = build(project, tool, third, jobs=jobs)
    rest = [source for source in project.sources if source not in project.touched]
    size = Path(archive).stat().st_size / 1e6
    note = f"{_equal(cold, took, rest)}, archive {size:.1f} MB in {moved:.1f} s"
    yield "pull request", took, note
    for kind in filter(tool.remote.get, servers):
        fill = places(f"filler-{kind}", f"filler-{kind}-store")
        project.clone(fill.checkout)
        filled = build(project, tool, fill, jobs=jobs, by=kind)
        yield f"cold, by {kind}", filled, ""
        last = places(f"container/by-{kind}", f"empty-{kind}-store", is_other=True)
        project.clone(last.checkout, touch=True)
        with _on_machine(machine):
            took = build(project, tool, last, jobs=jobs, by=kind)
        yield f"pull request, by {kind}", took, _equal(filled, took, rest)


def turns(
    project: Project, tools: Sequence[Tool], folder: Path, servers: dict[str, str]
) -> Iterator[tuple[str, Took]]:
    """Yield each tool's name and what it took with an empty cache; each begins as often."""
    places = {
        tool.name: Places(
            checkout=folder / tool.name / "work",
            store=folder / tool.name / "store",
            home=folder / tool.name / "home",
            temporary=folder / tool.name / "tmp",
            servers=servers,
        )
        for tool in tools
    }
    for each in places.values():
        project.clone(each.checkout)
    took: dict[str, list[Took]] = {tool.name: [] for tool in tools}
    for number, source in enumerate(project.sources):
        one, first = replace(project, sources=(source,)), number % len(tools)
        for tool in (*tools[first:], *tools[:first]):
            took[tool.name].append(build(one, tool, places[tool.name], jobs=1))
    for name, all_of_it in took.items():
        wall, cpu = (sum(getattr(each, of) for each in all_of_it) for of in ("wall", "cpu"))
        yield name, Took(wall=wall, cpu=cpu, objects={})


@contextlib.contextmanager
def _on_machine(name: str) -> Iterator[None]:
    """Give the programs that are started a host name of their own; "" leaves this machine's."""
    if not name:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # Threads that this one starts, and their programs, have its namespace.
    with Path("/proc/thread-self/ns/uts").open() as before:
        if libc.unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "--machine needs root")
        socket.sethostname(name)
        yield
        libc.setns(before.fileno(), 0)


def _equal(one: Took, other: Took, sources: Sequence[str]) -> str:
    same = sum(one.objects[source] == other.objects[source] for source in sources)
    return f"{same} of {len(sources)} equal"


@contextlib.contextmanager
def _server(
    tool: Tool, environment: dict[str, str], places: Places
) -> Iterator[Callable[[], float]]:
    """Run sccache's server, whose settings are of one checkout, and count its CPU seconds."""
    if not tool.is_server:
        yield lambda: 0.0
        return
    program = tool.argv[0]
    own = {**environment, "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
    process = subprocess.Popen(  # noqa: S603 - as above
        (program,),
        env=own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=places.user,
        group=places.user,
    )
    # The server has no message that it is ready; the first client would start another one.
    time.sleep(2)
    before = process_cpu(process.pid)
    try:
        yield lambda: process_cpu(process.pid) - before
    finally:
        stop = (program, "--stop-server")
        subprocess.run(stop, env=environment, capture_output=True, check=False)  # noqa: S603 - as above
        process.wait()


class _Store(BaseHTTPRequestHandler):
    """A store of bytes by their paths, for any client."""

    contents: dict[str, bytes] = {}  # noqa: RUF012 - one for all requests
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = self.contents.get(self.path)
        self._reply(404 if content is None else 200, content or b"")

    do_HEAD = do_GET  # noqa: N815 - the name of a request's method

    def do_PUT(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        self.contents[self.path] = self.rfile.read(size)
        self._reply(201, b"")

    def do_MKCOL(self) -> None:
        self._reply(201, b"")

    def do_PROPFIND(self) -> None:
        self._reply(404, b"")

    def _reply(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def _servers(*, is_local: bool) -> Iterator[dict[str, str]]:
    """Run the servers of remote stores; yield their addresses by kind."""
    if is_local:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Store))
        threading.Thread(target=http.serve_forever, daemon=True).start()
        stack.callback(http.shutdown)
        servers = {"http": f"http://127.0.0.1:{http.server_address[1]}"}
        if importlib.util.find_spec("moto") is None:
            print("by s3: left out, because moto is not installed", flush=True)
        else:
            servers["s3"] = stack.enter_context(_s3_store())
        yield servers


@contextlib.contextmanager
def _s3_store() -> Iterator[str]:
    """Run moto's server, with one bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    argv = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - as above
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"{address}/{_BUCKET}", method="PUT")  # noqa: S310 - http
                urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - as above
                break
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)  # noqa: S603 - as above


def _repository(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    git = ("git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost")
    _run(*git, "init", "-q")
    _run(*git, "add", "-A")
    _run(*git, "commit", "-qm", "all")
    return folder


def _projects(arguments: argparse.Namespace, folder: Path) -> Iterator[Project]:
    targets = [
        word
        for target in arguments.targets
        for word in ("-gencode", f"arch=compute_{target},code=sm_{target}")
    ]
    outside = [f"-I{each.absolute()}" for each in arguments.cuda_include]
    if arguments.nccl_tests:
        repository = _repository(arguments.nccl_tests, folder / "nccl-tests")
        include = f"-I{arguments.nccl_include.absolute()}"
        yield Project(
            name="nccl-tests",
            repository=repository,
            sources=_sources(repository, "src", arguments.files),
            flags=lambda top: (
                *("-std=c++17", "-O3", "-g", "--extended-lambda", "-DNCCL_OS_LINUX", *targets),
                *(include, f"-I{top}/os", f"-I{top}/src", f"-I{top}/verifiable", f"-I{top}"),
            ),
        )
    if arguments.ggml:
        repository = _repository(arguments.ggml, folder / "ggml")
        yield Project(
            name="ggml",
            repository=repository,
            sources=_sources(repository, "src/ggml-cuda", arguments.files),
            flags=lambda top: (
                *("-std=c++17", "-O3", "-DNDEBUG", "-use_fast_math", "-extended-lambda", *targets),
                *("-DGGML_CUDA_PEER_MAX_BATCH_SIZE=128", "-DGGML_SCHED_MAX_COPIES=4", *outside),
                *(f"-I{top}/include", f"-I{top}/src", f"-I{top}/src/ggml-cuda"),
            ),
        )


def _sources(repository: Path, folder: str, most: int) -> tuple[str, ...]:
    found = sorted((repository / folder).glob("*.cu"), key=lambda path: path.stat().st_size)
    return tuple(str(path.relative_to(repository)) for path in found[:most])


def _tools(arguments: argparse.Namespace) -> Iterator[Tool]:
    nvcc = str(arguments.nvcc.absolute())
    yield Tool(name="nvcc", argv=(nvcc,))
    launcher = shutil.which("archsplit-nvcc") or "archsplit-nvcc"
    yield Tool(
        name="archsplit",
        argv=(launcher, nvcc),
        settings={"ARCHSPLIT_CACHE_BASE_DIR": "auto", "XDG_CACHE_HOME": "{store}"},
        remote={
            "http": {"ARCHSPLIT_CACHE_REMOTE": "{http}/{tool}"},
            "s3": {
                "ARCHSPLIT_CACHE_REMOTE": f"s3://{_BUCKET}/{{tool}}",
                "AWS_ENDPOINT_URL": "{s3}",
                "AWS_ALLOW_HTTP": "true",
                **_S3_USER,
            },
        },
    )
    if program := shutil.which(arguments.ccache or "ccache"):
        yield Tool(
            name="ccache",
            argv=(program, nvcc),
            settings={
                "CCACHE_DIR": "{store}",
                "CCACHE_BASEDIR": "{checkout}",
                "CCACHE_NOHASHDIR": "1",
                "CCACHE_COMPILERCHECK": "content",
            },
            remote={"http": {"CCACHE_REMOTE_STORAGE": "{http}/{tool}"}},
        )
    if program := shutil.which(arguments.sccache or "sccache"):
        yield Tool(
            name="sccache",
            argv=(program, nvcc),
            settings={
                "SCCACHE_DIR": "{store}",
                "SCCACHE_BASEDIRS": "{checkout}",
                "SCCACHE_SERVER_PORT": str(_PORT),
                "SCCACHE_IDLE_TIMEOUT": "0",
            },
            remote={
                "http": {"SCCACHE_WEBDAV_ENDPOINT": "{http}/{tool}"},
                "s3": {
                    "SCCACHE_BUCKET": _BUCKET,
                    "SCCACHE_S3_KEY_PREFIX": "{tool}",
                    "SCCACHE_ENDPOINT": "{s3}",
                    "SCCACHE_S3_USE_SSL": "false",
                    "SCCACHE_REGION": "us-east-1",
                    **_S3_USER,
                },
            },
            is_server=True,
        )


def _table(rows: Sequence[tuple[str, str, str, Took, str]]) -> Iterator[str]:
    tools = list(dict.fromkeys(tool for _, tool, *_ in rows))
    yield "| project, part: wall, CPU s | " + " | ".join(tools) + " |"
    yield "|---|" + "---:|" * len(tools)
    for project, part in dict.fromkeys((project, part) for project, _, part, _, _ in rows):
        cells = {
            tool: f"{took.wall:.2f}, {took.cpu:.1f}"
            for named, tool, each, took, _ in rows
            if (named, each) == (project, part)
        }
        yield f"| {project}, {part} | " + " | ".join(cells.get(tool, "") for tool in tools) + " |"


def main() -> int:
    """Run all parts with all tools, and print a table."""
    arguments = _arguments()
    rows: list[tuple[str, str, str, Took, str]] = []
    failed = 0
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-ci-") as name,
        _servers(is_local=arguments.local) as servers,
    ):
        # Another user must be able to enter it.
        Path(name).chmod(0o755)
        for project in _projects(arguments, Path(name) / "repositories"):
            if arguments.turns:
                found = turns(project, [*_tools(arguments)], Path(name) / project.name, servers)
                rows += [(project.name, tool, "cold", took, "in turns") for tool, took in found]
                continue
            for tool in _tools(arguments):
                folder = Path(name) / project.name / tool.name
                folder.mkdir(parents=True)
                try:
                    for part, took, note in parts(
                        project,
                        tool,
                        folder,
                        servers,
                        jobs=arguments.jobs,
                        user=arguments.user,
                        machine=arguments.machine,
                    ):
                        rows.append((project.name, tool.name, part, took, note))
                        seconds = f"{took.wall:8.2f} s {took.cpu:8.2f} s CPU"
                        print(
                            f"{project.name} {tool.name:<10}{part:<24}{seconds}  {note}", flush=True
                        )
                except (BuildFailedError, subprocess.CalledProcessError, OSError) as error:
                    print(f"{project.name} {tool.name}: {error}", flush=True)
                    failed = 1
                shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(["", *_table(rows), ""]))
    for tool in _tools(arguments):
        for kind, settings in {"": tool.settings, **tool.remote}.items():
            words = " ".join(f"{name}={text}" for name, text in settings.items())
            print(f"{tool.name}{kind and f' by {kind}'}: {words or 'no settings'}")
    if arguments.json:
        described = [
            {"project": project, "tool": tool, "part": part, "wall": took.wall, "cpu": took.cpu}
            | {"note": note}
            for project, tool, part, took, note in rows
        ]
        arguments.json.write_text(json.dumps({"schema": 1, "rows": described}, indent=2))
    return failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nvcc", type=Path, required=True)
    parser.add_argument("--nccl-tests", type=Path, metavar="DIR")
    parser.add_argument("--nccl-include", type=Path, metavar="DIR", help="the folder of nccl.h")
    parser.add_argument("--ggml", type=Path, metavar="DIR")
    parser.add_argument("--cuda-include", type=Path, nargs="+", default=[], metavar="DIR")
    parser.add_argument("--files", type=int, default=1000, metavar="N", help="the smallest ones")
    parser.add_argument("--targets", nargs="+", default=["80", "90"], metavar="N")
    parser.add_argument("--ccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--sccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--user", type=int, metavar="UID", help="of restored builds, for root")
    parser.add_argument(
        "--machine", default="", metavar="NAME", help="of restored builds, for root"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--local", action="store_true", help="leave out remote stores")
    parser.add_argument("--turns", action="store_true", help="cold only, source by source")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
