"""Wheels of an index as inputs, fetched by the real pip from a folder and from a URL."""

from __future__ import annotations

import functools
import json
import os
import pty
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.wheels.filename import WheelName
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from handmade_samples import container, image
from in_process import run_archsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHSPLIT = str(Path(sys.executable).with_name("archsplit"))
WHEEL = "toyfat-1.0-py3-none-any.whl"
_METADATA = "Metadata-Version: 2.1\nName: toyfat\nVersion: 1.0\n"
_INFO = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index of wheels")
    name = WheelName.parse(WHEEL)
    members = {
        "toyfat/k.fatbin": container(image("sm_90")),
        "toyfat-1.0.dist-info/METADATA": _METADATA.encode(),
        "toyfat-1.0.dist-info/WHEEL": _INFO.encode(),
    }
    with (folder / WHEEL).open("wb") as file:
        write_members(file, name, {each: pack(content) for each, content in members.items()})
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def archsplit(
    folder: Path, cache: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    settings = {
        **more,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": folder.as_uri(),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    own = {**settings, "ARCHSPLIT_CACHE_DIR": str(cache)}
    return run_archsplit(*words, cwd=cache.parent, environment=own)


def test_a_pinned_project_is_fetched_once(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = archsplit(folder, cache, "inspect", "toyfat==1.0", "--json")
    assert (done.returncode, done.stderr) == (0, f"Fetched {cache}/wheels/{WHEEL}\n")
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == ["toyfat/k.fatbin"]
    fetched = cache / "wheels" / WHEEL
    before = fetched.stat().st_mtime_ns
    again = archsplit(folder, cache, "diff", "toyfat==1.0", str(fetched))
    assert (again.returncode, fetched.stat().st_mtime_ns) == (0, before)
    assert list((cache / "wheels").iterdir()) == [fetched]


def test_cache_of_wheels_evicts_the_oldest(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "wheels").mkdir(parents=True)
    old = cache / "wheels" / "old-1.0-py3-none-any.whl"
    old.write_bytes(bytes(9000))
    os.utime(old, (1, 1))
    settings = {"ARCHSPLIT_CACHE_MAX_SIZE": "5k"}
    done = archsplit(folder, cache, "inspect", "toyfat==1.0", "--json", **settings)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (cache / "wheels").iterdir()] == [WHEEL]


def test_a_url_is_fetched(folder: Path, tmp_path: Path, server: str) -> None:
    cache = tmp_path / "cache"
    done = archsplit(folder, cache, "slim", f"{server}/{WHEEL}", "--drop", "sm_80", "--copy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / WHEEL).read_bytes() == (folder / WHEEL).read_bytes()
    secret = f"{server.replace('//', '//me:secret@')}/gone-1.0-py3-none-any.whl"
    refused = archsplit(folder, cache, "split", secret, "--out", "o")
    assert refused.returncode == 14
    assert "gone-1.0-py3-none-any.whl can't be downloaded:\n" in refused.stderr
    assert "404" in refused.stderr
    assert "secret" not in refused.stderr


def test_missing_version_lists_the_existing_ones(folder: Path, tmp_path: Path) -> None:
    done = archsplit(folder, tmp_path / "cache", "inspect", "toyfat==2.0")
    assert (done.returncode, done.stdout) == (14, "")
    first, hint = done.stderr.splitlines()
    assert first.startswith("error: the index has no wheel of toyfat==2.0 for Python 3.")
    assert hint == "hint: the newest are 1.0"
    unknown = archsplit(folder, tmp_path / "cache", "split", "gone==2.0", "--out", "o")
    assert unknown.stderr.endswith(
        "hint: check the name gone, and the index: pip config list shows it\n"
    )


def test_terminal_shows_progress(folder: Path, tmp_path: Path) -> None:
    main, side = pty.openpty()
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri(), "TERM": "xterm"}
    with subprocess.Popen(
        [ARCHSPLIT, "inspect", "toyfat==1.0"],
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, **settings, "ARCHSPLIT_CACHE_DIR": str(tmp_path), "COLUMNS": "100"},
    ) as process:
        os.close(side)
        shown = b""
        try:
            while block := os.read(main, 4096):
                shown += block
        except OSError:
            pass
        assert process.stdout is not None
        table = process.stdout.read().decode()
    os.close(main)
    assert b"fetching toyfat==1.0" in shown
    # Standard output is a pipe here: it has only the table.
    assert "sm_90" in table
    assert "fetching" not in table
