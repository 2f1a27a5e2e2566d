"""A small index: a fat wheel, its dependency, a proprietary one; and a server that breaks."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pip
import pytest

from archsplit.cli.main import main
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from handmade_samples import THREE, Maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

PLATFORM = "py3-none-manylinux_2_17_x86_64"
FAT = f"fat-1.2.3-{PLATFORM}.whl"
SLIM = f"fat-1.2.3-0slim.cc90-{PLATFORM}.whl"
VENDOR = f"vendor-4.0-{PLATFORM}.whl"
PLAIN = "plain-2.0-py3-none-any.whl"
PROPRIETARY = "Vendor Proprietary Software"


def write_wheel(folder: Path, file: str, members: dict[str, bytes], *fields: str) -> Path:
    """Write a wheel with more lines in its METADATA."""
    name = WheelName.parse(file)
    head = ["Metadata-Version: 2.1", f"Name: {name.project}", f"Version: {name.version}", *fields]
    own = {
        "METADATA": "\n".join([*head, "", "A page."]).encode(),
        "WHEEL": WheelInfo(generator="a test", tags=name.tags, purelib=False).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / file).open("wb") as output:
        content = {f"{name.dist_info}/{each}": pack(text) for each, text in own.items()}
        write_members(
            output, name, {**{each: pack(text) for each, text in members.items()}, **content}
        )
    return folder / file


def write_wheels(folder: Path) -> Path:
    """Write a fat wheel that requires a plain one, and a proprietary one with device code."""
    build = folder / "build"
    build.mkdir(parents=True)
    library = Maker(folder=build).library(THREE).read_bytes()
    wheels = folder / "wheels"
    code = {"fat/__init__.py": b"VERSION = '1.2.3'\n", "fat/libfat.so": library}
    write_wheel(wheels, FAT, code, "Requires-Dist: plain>=1")
    write_wheel(
        wheels,
        PLAIN,
        {"plain.py": b"VALUE = 7\n", "plain.bin": random.Random(18).randbytes(200_000)},
    )
    more = {"vendor/libvendor.so": library, "vendor/__init__.py": b""}
    write_wheel(wheels, VENDOR, more, f"License: {PROPRIETARY}")
    return wheels


def write_simple(folder: Path, wheels: Path) -> None:
    """Write the pages of an index (PEP 503) with hashes."""
    for wheel in wheels.glob("*.whl"):
        project = folder / wheel.name.partition("-")[0]
        project.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        shutil.copy(wheel, project)
        link = f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
        (project / "index.html").write_text(f"<!DOCTYPE html>{link}")


@dataclass
class ServedIndex:
    """The address of an index, and what it was asked for.

    Attributes:
        breaks: bytes of a file after which its next transfer breaks, by file name.
        at_break: called before a transfer breaks.
    """

    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    at_break: Callable[[], None] = lambda: None

    def downloads(self) -> list[tuple[str, str]]:
        """The wheels that were transferred, each with its range."""
        return [each for each in self.requests if each[0].endswith(".whl")]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files with ranges, as web servers and object stores send them."""

    def __init__(self, *arguments: object, index: ServedIndex, directory: str) -> None:
        self.index = index
        super().__init__(*arguments, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.index.requests.append((self.path, wanted))
        path = Path(self.translate_path(self.path))
        if "json" in self.headers.get("Accept", "") and (path / "index.json").exists():
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.end_headers()
            self.wfile.write((path / "index.json").read_bytes())
            return
        if path.suffix != ".whl" or not path.exists():
            super().do_GET()
            return
        content = path.read_bytes()
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        end = self.index.breaks.pop(path.name, len(content))
        self.wfile.write(content[begin:end])
        if end < len(content):
            self.index.at_break()
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (its name there)
        del format, arguments


@contextlib.contextmanager
def served(folder: Path) -> Iterator[ServedIndex]:
    """Serve a folder on this machine."""
    index = ServedIndex()
    handler = functools.partial(Handler, index=index, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        index.url = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def write_lock(path: Path, index: ServedIndex, wheels: Path, *files: str) -> Path:
    """Write a lock (PEP 751) of some wheels of the index."""
    lines = ['lock-version = "1.0"', 'created-by = "a test"']
    for file in files:
        name, version = file.split("-")[:2]
        digest = hashlib.sha256((wheels / file).read_bytes()).hexdigest()
        url = f"{index.url}{name}/{file}"
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
        lines += [f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{digest}" }} }}]']
    path.write_text("\n".join(lines) + "\n")
    return path


def mirror(*arguments: object) -> int:
    """Run the command in this process."""
    return main(["mirror", *map(str, arguments)])


def install(tool: str, target: Path, *arguments: str) -> None:
    """Install with pip or uv and nothing else than the arguments."""
    if tool == "pip" and "pylock" in arguments[-1] and not _reads_locks(pip):
        pytest.skip(f"pip {pip.__version__} doesn't read pylock.toml")
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    own |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_NO_CACHE": "1"}
    beside = Path(sys.executable).parent
    command = {
        "pip": [sys.executable, "-m", "pip", "install", "--no-cache-dir", "-q"],
        "uv": [str(beside / "uv"), "pip", "install", "-q", "--python", sys.executable],
    }[tool]
    done = subprocess.run(
        [*command, "--target", str(target), *arguments],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _reads_locks(package: ModuleType) -> bool:
    """Return True for a pip that installs from a lock (PEP 751), which is an experiment of it."""
    folder = Path(package.__path__[0], "_internal")
    return any(
        "pylock.toml as a requirements source" in path.read_text() for path in folder.rglob("*.py")
    )


def held(site: Path) -> set[str]:
    """Return the installed distributions."""
    return {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")}
