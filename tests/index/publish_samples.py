"""A small release to publish, a real index, and a server before it that misbehaves on order."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import sys
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.index.client import Repository
from archsplit.index.plan import Rules
from archsplit.index.publish import Publisher
from archsplit.index.release import Artifact
from archsplit.index.retry import Clock, RetryPolicy
from archsplit.index.upload import Twine
from archsplit.release.context import Effects
from archsplit.split.model import InstallDefaults, SplitRequest
from archsplit.split.split import split_wheel
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, WheelInfo, encode_metadata
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from split.split_samples import library
from target_lists import parse_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from archsplit.index.plan import PublishPlan

SECRET = "pypi-very-secret-0123456789"
USER = "release-engineer"


def make_release(
    folder: Path,
    version: str = "1.0",
    local: str = "",
    install: InstallDefaults = InstallDefaults.CORE,
) -> Path:
    """A core and the packs of two GPUs, as ``archsplit split`` writes them."""
    made = folder / "made"
    made.mkdir(parents=True)
    fat = _fat_wheel(made, version + local, library(made, "liba", 0))
    effects = Effects(progress=SilentProgress(), environment=os.environ, jobs=1)
    request = SplitRequest(
        source=fat,
        out=folder / "dist",
        targets=tuple(parse_targets("sm_80,sm_90")),
        install=install,
        release=True,
    )
    split_wheel(request, effects)
    return folder / "dist"


def make_python_release(folder: Path, *tags: str) -> Path:
    """A release for several Pythons, each with other images: its packs have several files."""
    made = folder / "made"
    made.mkdir(parents=True)
    fats = [
        _fat_wheel(made, "1.0", library(made, f"lib{tag}", seed), tag)
        for seed, tag in enumerate(tags)
    ]
    effects = Effects(progress=SilentProgress(), environment=os.environ, jobs=1)
    request = SplitRequest(
        source=fats[0], others=tuple(fats[1:]), out=folder / "dist", release=True
    )
    split_wheel(request, effects)
    return folder / "dist"


def _fat_wheel(folder: Path, version: str, fat: Path, tag: str = "") -> Path:
    name = WheelName(
        project=distribution_name("toyfat"),
        version=version,
        platforms=("manylinux_2_17_x86_64",),
        pythons=(tag or "py3",),
        abis=(tag or "none",),
    )
    metadata = CoreMetadata(
        name="toyfat",
        version=version,
        summary="A fat library.",
        description="# toyfat\n\nA fat library.\n",
        description_content_type="text/markdown",
        license_expression="Apache-2.0",
        requires_python=">=3.10",
    )
    members = {
        "toyfat/__init__.py": b"ANSWER = 42\n",
        "toyfat/lib/liba.so": fat.read_bytes(),
        f"{name.dist_info}/METADATA": encode_metadata(metadata),
        f"{name.dist_info}/WHEEL": WheelInfo(generator="a test", tags=name.tags).encode(),
    }
    path = folder / str(name)
    with path.open("wb") as file:
        write_members(file, name, {each: pack(text) for each, text in members.items()})
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as the proxy in front of the index received it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def is_upload(self) -> bool:
        return self.method == "POST"

    @property
    def file(self) -> str:
        """The name of the file that is uploaded."""
        _, _, rest = self.body.partition(b'name="content"; filename="')
        return rest.partition(b'"')[0].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that replaces or changes a response of the index.

    Attributes:
        status: answered in the index's stead; 0: the index answers.
        drop: close the connection without an answer, before or after the index was asked.
        hang: don't answer at all until the server ends.
        corrupt: change the bytes of the index's answer.
    """

    status: int = 0
    reason: str = "a fault"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    drop: str = ""
    hang: bool = False
    corrupt: bool = False


Order = "Callable[[Asked], Fault | None]"


class Misbehaving(ThreadingHTTPServer):
    """A server before a real index that passes everything on, but for what it was ordered to do."""

    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.asked: list[Asked] = []
        self.before: Callable[[Asked], Fault | None] = lambda _: None
        self.after: Callable[[Asked], None] = lambda _: None
        self.ended = threading.Event()
        self.errors: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def uploads(self) -> list[str]:
        return [asked.file for asked in self.asked if asked.is_upload]

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - its
        """Keep what went wrong, without connections to a process that was killed."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    server: Misbehaving
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = Asked(
            method=self.command,
            path=self.path,
            headers=dict(self.headers),
            body=self.rfile.read(length),
        )
        self.server.asked.append(asked)
        fault = self.server.before(asked) or Fault()
        if fault.hang:
            self.server.ended.wait(60)
        if fault.hang or fault.drop == "before":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault.status:
            self._answer(fault.status, fault.reason, fault.headers, fault.body)
            return
        status, reason, headers, body = self._pass_on(asked)
        self.server.after(asked)
        if fault.drop == "after":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(status, reason, headers, bytes(reversed(body)) if fault.corrupt else body)

    do_GET = do_POST = do_HEAD = _do  # noqa: N815 - the names that http.server looks for

    def _pass_on(self, asked: Asked) -> tuple[int, str, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        connection.request(asked.method, asked.path, asked.body, dict(asked.headers))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.reason, dict(answer.getheaders()), body

    def _answer(self, status: int, reason: str, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status, reason)
        own = {"content-length", "transfer-encoding", "connection", "server", "date"}
        for name, text in headers.items():
            if name.lower() not in own or (self.command == "HEAD" and name == "Content-Length"):
                self.send_header(name, text)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing."""


@contextlib.contextmanager
def misbehaving(behind: int) -> Iterator[Misbehaving]:
    server = Misbehaving(behind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
    assert not server.errors, server.errors


class FakeClock(Clock):
    """Time that passes during sleep, and otherwise stands still."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A release, an index with a server before it, and all that a publisher needs.

    Attributes:
        files: the folder with all that the index has.
    """

    dist: Path
    files: Path
    server: Misbehaving
    state: Path
    clock: FakeClock
    notes: list[str]
    plans: list[PublishPlan]

    def publisher(
        self, *, patience: float = 100, seconds: float = 60, **rules: int | None
    ) -> Publisher:
        environment = {**os.environ, "TWINE_USERNAME": USER, "TWINE_PASSWORD": SECRET}
        effects = Effects(progress=SilentProgress(), environment=environment, jobs=1)
        return Publisher(
            effects=effects,
            twine=Twine(
                runner=SubprocessRunner(),
                environment=environment,
                python_path=effects.python_path,
                repository_url=self.server.url,
                seconds=seconds,
            ),
            repository=Repository(
                upload=self.server.url, index=f"{self.server.url}simple/", is_public=False
            ),
            rules=Rules(is_public=False, **rules),
            retry=RetryPolicy(seconds=patience, clock=self.clock, note=self.notes.append),
        )

    def names(self) -> set[str]:
        return {path.name for path in self.files.glob("*.whl")}

    def wheel(self, part: str) -> Path:
        (path,) = self.dist.glob(f"toyfat{part}-*.whl")
        return path

    def check_invariant(self) -> None:
        """A core is never there without all of its plugins."""
        here = {path.name: path.read_bytes() for path in self.dist.glob("*.whl")}
        there = {path.name: path.read_bytes() for path in self.files.glob("*.whl")}
        if self.wheel("").name in there:
            assert there == here


def copied(dist: Path, to: Path) -> Path:
    return Path(shutil.copytree(dist, to))


def artifact(project: str, role: str, size: int = 1000, **more: object) -> Artifact:
    """A file that isn't there, for plans."""
    name = f"{project.replace('-', '_')}-1.0-py3-none-manylinux_2_17_x86_64.whl"
    return Artifact(
        path=Path("/dist") / name,
        role=role,
        project=project,
        version="1.0",
        size=size,
        sha256="0" * 64,
        platforms=("manylinux_2_17_x86_64",),
        **more,  # type: ignore[arg-type] # fields by name
    )
