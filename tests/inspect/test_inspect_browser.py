"""The page in a real browser: Chromium, which the tests need for nothing else."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.inspect.html import inventory_page
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compiled_samples import Samples

pytestmark = pytest.mark.download
WHEEL = "pkg-1.0-py3-none-any.whl"


def colors(png: bytes) -> set[str]:
    """Return the colors of a PNG with 8 bits a channel and no interlacing, as ``#rrggbb``."""
    width, _, depth, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", png, 16)
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[kind]
    data = zlib.decompress(b"".join(content for name, content in chunks(png) if name == b"IDAT"))
    stride = width * channels
    found, before = set(), bytearray(stride)
    for start in range(0, len(data), stride + 1):
        line = bytearray(data[start + 1 : start + 1 + stride])
        unfilter(data[start], line, before, channels)
        found |= {line[at : at + 3].hex() for at in range(0, stride, channels)}
        before = line
    return {f"#{colour}" for colour in found}


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    for at in range(len(line)):
        left = line[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        up = above[at]
        guess = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
        line[at] = (line[at] + guess) & 0xFF


def paeth(left: int, up: int, corner: int) -> int:
    middle = left + up - corner
    return min((left, up, corner), key=lambda value: abs(middle - value))


def browse(path: Path, to: Path, *words: str) -> str:
    """Open a file in Chromium, without a network, and return what it prints."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "no Chromium on the PATH"
    argv = (
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={to / 'profile'}",
        *words,
        path.as_uri(),
    )
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout


def shown(path: Path, to: Path) -> set[str]:
    """Return the colors that Chromium shows of a file, without a network."""
    picture = f"--screenshot={to / 'shown.png'}"
    browse(path, to, "--hide-scrollbars", "--window-size=800,900", picture)
    return colors((to / "shown.png").read_bytes())


def test_a_browser_shows_the_colors_of_a_gpu(samples: Samples, tmp_path: Path) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / WHEEL)))
    path = tmp_path / "x.html"
    path.write_text(inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY)))
    # The page opens on a GPU, which has two colors.
    assert shown(path, tmp_path) >= {"#2f7a45", "#cdd2d9"}


def axe_source(folder: Path) -> str:
    """Return axe-core, the accessibility checker, from the npm registry."""
    command = ("npm", "pack", "--silent", "axe-core@4.10.3")
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    with tarfile.open(folder / "axe-core-4.10.3.tgz") as archive:
        content = archive.extractfile("package/axe.min.js")
        assert content is not None
        return content.read().decode()


def test_a_target_of_the_legend_marks_its_boxes(samples: Samples, tmp_path: Path) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / WHEEL)))
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY))
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    # Pressed, pressed again, and the same for another: only one is pressed at a time.
    look = """
    const [first, second] = document.querySelectorAll(".legend button");
    const say = () => [...document.querySelectorAll('[aria-pressed="true"]')].map(
      (one) => one.dataset.target).join() + ":" + document.querySelectorAll(".unmarked").length;
    zoomTo([0]);
    const said = [];
    for (const button of [first, first, first, second]) { button.click(); said.push(say()); }
    document.title = said.join(" ");
    """
    path = tmp_path / "pressed.html"
    path.write_text(page.replace("</body>", f"<script>{look}</script></body>"))
    document = browse(path, tmp_path, "--window-size=1280,900", "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", document)
    assert title is not None
    first, none, again, other = (state.split(":") for state in title[1].split())
    assert none == ["", "0"]
    assert first == again != other
    assert int(first[1]) > 0
    assert int(other[1]) > 0


def test_escape_goes_back_from_a_box_without_parts(samples: Samples, tmp_path: Path) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / WHEEL)))
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY))
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    look = """
    zoomTo([0]);
    const inside = state.path.length;
    const key = new KeyboardEvent("keydown", { key: "Escape", bubbles: true });
    document.activeElement.dispatchEvent(key);
    document.title = inside + " " + state.path.length;
    """
    path = tmp_path / "escape.html"
    path.write_text(page.replace("</body>", f"<script>{look}</script></body>"))
    document = browse(path, tmp_path, "--window-size=1280,900", "--dump-dom")
    assert "<title>1 0</title>" in document


@pytest.mark.parametrize("width", [320, 1280])
def test_an_accessibility_checker_finds_nothing(
    samples: Samples, tmp_path: Path, width: int
) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / WHEEL), kernels=True))
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY))
    # Only the page's own script may run, so the policy is taken out for the checker.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    choose = "document.querySelector('[data-gpu=\"9.0\"]').click(); zoomTo([0]);"
    choose += " for (const one of document.querySelectorAll('details')) one.open = true;"
    choose += " document.querySelector('.legend button').click();"
    report = "axe.run().then((found) => { document.title = JSON.stringify(found.violations.map("
    report += "(one) => [one.id, one.nodes[0].html])) })"
    added = f"<script>{axe_source(tmp_path)}</script><script>{choose} {report}</script>"
    path = tmp_path / "checked.html"
    path.write_text(page.replace("</body>", f"{added}</body>"))
    words = (f"--window-size={width},900", "--virtual-time-budget=20000", "--dump-dom")
    document = browse(path, tmp_path, *words)
    title = re.search(r"<title>(.*?)</title>", document, re.DOTALL)
    assert title is not None
    assert title[1] == "[]"
