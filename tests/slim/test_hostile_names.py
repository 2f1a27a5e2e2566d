"""No name from a file gives a command to the terminal, with any verb, on success and on errors."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import zipfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slim_wheel_samples import METADATA, NAME, fat_wheel

from archsplit.cli.verbs import VERB_GROUPS
from archsplit.errors import ToolNotFoundError
from archsplit.system.safe_output import SafeConsole, SafeStream, printable
from handmade_samples import THREE, Maker
from in_process import exit_code, run_on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = "\x1b]0;own\x07\x1b[2J\x9b31m\u202egnp\u2028\u2066\x85"
RAW = ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\u2028", "\u2066", "\x85", "\x07")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    library = Maker(folder=folder).library(THREE).read_bytes()
    more = {f"fat/lib{HOSTILE}.so": library, f"fat/{HOSTILE}.txt": b"text"}
    fat_wheel(folder, library=library, more=more)
    (folder / f"lib{HOSTILE}.so").write_bytes(library)
    other = folder / "named"
    other.mkdir()
    page = METADATA.replace("Name: fat", f"Name: {HOSTILE[:5]}").replace("A page", HOSTILE)
    fat_wheel(other, library=library, more={"fat-1.2.3.dist-info/METADATA": page.encode()})
    broken = folder / "broken"
    broken.mkdir()
    with zipfile.ZipFile(broken / NAME, "w") as archive:
        archive.writestr(f"fat/{HOSTILE}", b"x")
    return folder


def run_in_pty(
    words: list[str], folder: Path, run: Callable[[list[str]], int] = exit_code
) -> tuple[int, str]:
    """Run a command on a wide terminal; return its exit code and all that the terminal got."""
    return run_on_terminal(words, folder, run=run, COLUMNS="120", TERM="xterm-256color")


LIBRARY = f"lib{HOSTILE}.so"
VERBS = {
    "inspect": ["inspect", NAME, "--device", "9.0"],
    "inspect-library": ["inspect", LIBRARY],
    "inspect-named": ["inspect", f"named/{NAME}"],
    "inspect-broken": ["inspect", f"broken/{NAME}"],
    "inspect-missing": ["inspect", f"{HOSTILE}.so"],
    "diff": ["diff", NAME, LIBRARY],
    "diff-bytes": ["diff", "--bytes", NAME, f"named/{NAME}"],
    "slim": ["slim", NAME, "--device", "9.0", "--out", "slim"],
    "slim-verbose": ["slim", LIBRARY, "--device", "9.0", "--out", f"slim{HOSTILE}"],
    "slim-named": ["slim", f"named/{NAME}", "--device", "9.0", "--dry-run"],
    "slim-broken": ["slim", f"broken/{NAME}", "--device", "9.0"],
    "slim-gpu": ["slim", NAME, "--device", HOSTILE],
    "split": ["split", NAME, "--out", "split"],
    "split-named": ["split", f"named/{NAME}", "--out", "other"],
    "split-broken": ["split", f"broken/{NAME}", "--out", "other"],
    "verify": ["verify", "split"],
    "join": ["join", "split", "--out", "joined"],
    "gather": ["gather", "split", "--out", f"gathered{HOSTILE}"],
    "index": ["index", "index", "--add", NAME],
    "index-named": ["index", "index", "--add", f"named/{NAME}"],
    "index-broken": ["index", "index", "--add", f"broken/{NAME}"],
    "mirror": ["mirror", f"broken/{NAME}", "--out", "mirror", "--device", "9.0"],
    "publish": ["publish", HOSTILE, "--plan"],
    "plan": ["plan", HOSTILE],
    "build": ["build", HOSTILE, "--out", "built"],
    "init": ["init", f"no{HOSTILE}/such"],
    "advise": ["advise", NAME, "--gpus", HOSTILE],
    "doctor": ["doctor", HOSTILE],
    "install": ["install", HOSTILE, "--dry-run"],
    "cache": ["cache", "explain", HOSTILE],
    "cache-import": ["cache", "import", HOSTILE],
    "nvcc": ["nvcc", "--nvcc", HOSTILE, "--", "-c", "k.cu"],
    "toolkit": ["toolkit", "--nvcc", HOSTILE],
    "remote": ["remote", "check", HOSTILE],
    "worker": ["remote", "worker", HOSTILE],
    "verify-missing": ["verify", HOSTILE],
    "join-missing": ["join", HOSTILE, "--out", "joined"],
    "install-missing": ["install", f"{HOSTILE}.whl"],
    "no-verb": [HOSTILE],
    "no-option": ["slim", f"--{HOSTILE}"],
}


def test_each_verb_gets_hostile_names() -> None:
    assert {words[0] for words in VERBS.values()} >= {*chain(*VERB_GROUPS.values())}


@pytest.mark.parametrize("name", VERBS)
def test_no_name_reaches_the_terminal_raw(place: Path, name: str) -> None:
    code, screen = run_in_pty(VERBS[name], place)
    assert code != 1, screen
    assert screen
    found = [repr(raw) for raw in RAW if raw in screen]
    assert not found, screen


def test_wrapper_as_a_compiler_escapes_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHSPLIT_NVCC_OPTIONS", f"--nvcc '{HOSTILE}'")
    wrapper = str(Path(sys.executable).with_name("archsplit-nvcc"))
    code, screen = run_in_pty([wrapper, "-c", "k.cu"], place, subprocess.call)
    assert code == ToolNotFoundError.exit_code
    assert "\\x1b[2J" in screen
    assert not [repr(raw) for raw in RAW if raw in screen], screen


class Hostile(http.server.BaseHTTPRequestHandler):
    """An index whose error text commands a terminal."""

    def do_GET(self) -> None:
        self.send_response(403, "\x1b]0;own\x07\x1b[2J\x9b31m")
        self.end_headers()
        self.wfile.write(HOSTILE.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (its name there)
        del format, arguments


@pytest.mark.parametrize("verb", ["publish", "install", "mirror"])
def test_text_of_an_index_does_not_reach_the_terminal_raw(
    place: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TWINE_USERNAME", "TWINE_PASSWORD"):
        monkeypatch.setenv(name, "a")
    run_in_pty(["split", NAME, "--release", "--out", "release"], place)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        (place / "requirements.txt").write_text(f"--index-url {url}\nfat\n")
        words = {
            "publish": ["release", "--yes", "--repository-url", url, "--index-url", url],
            "install": ["fat", "--index-url", url, "--python", sys.executable],
            "mirror": ["requirements.txt", "--out", "mirrored", "--device", "9.0"],
        }[verb]
        code, screen = run_in_pty([verb, *words], place)
        server.shutdown()
    assert code not in {0, 1}, screen
    assert not [repr(raw) for raw in RAW if raw in screen], screen


def test_the_escaper_leaves_ordinary_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("naïve ß 日本\n\tx") == "naïve ß 日本\n\tx"
    assert printable("a\x1b[31m\u202e\udc80\r") == "a\\x1b[31m\\u202e\\udc80\\r"
    stream = SafeStream(sys.stdout)
    stream.writelines(["a\x1b", "b"])
    console = SafeConsole(
        file=sys.stdout, force_terminal=True, color_system="standard", highlight=False
    )
    console.print("[red]x\x1b]0;[/]")
    assert "a\\x1bb\x1b[31mx\\x1b]0;\x1b[0m" in capsys.readouterr().out
