# ruff: noqa: INP001 - a script
"""Write the table and the chart of the measured stacks: ``README.md`` and ``sizes.svg``.

``python recipes/stack/chart.py`` reads ``measured/*.json``, which `measure.py` writes. ``--check``
writes nothing, and fails if one of the two files is another.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
CHART, PAGE = HERE / "sizes.svg", HERE / "README.md"
BEGIN, END = "<!-- table: written by chart.py -->\n", "<!-- end of table -->\n"
TITLES = {"torch": "torch", "jax": "JAX", "vllm": "vLLM"}
"""The stacks, in the order of the page."""

WIDTH, LEFT, ROW, BAR = 880, 90, 20, 14
SCALE = 620
"""Pixels of the largest stack; the rest is for the number behind it."""
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1c2026 } .big { font-size: 16px; font-weight: 600 }
.paper { fill: #fff } .kept { fill: #2c5fb3 } .zeroed { fill: #d08a1d } .removed { fill: #c9ccd1 }
@media (prefers-color-scheme: dark) {
.paper { fill: #14171b } text { fill: #e6e9ed } .kept { fill: #7ea8ee } .zeroed { fill: #e9b04f }
.removed { fill: #474e58 }
}"""


@dataclass(frozen=True)
class Size:
    """Return the bytes of a stack for one GPU: all, after ``slim``, and with zeros as holes."""

    fat: int
    slim: int
    zeroed: int


def read_sizes(stack: str) -> dict[str, Size | None]:
    """Return the sizes of a stack by GPU; None for a GPU without any code."""
    content = json.loads((HERE / "measured" / f"{stack}.json").read_text())
    fat = content["bytes"]
    return {
        gpu: row
        and Size(fat=fat, slim=fat - row["removed"], zeroed=fat - row["removed"] - row["zeroed"])
        for gpu, row in content["gpus"].items()
    }


def table(stacks: dict[str, dict[str, Size | None]]) -> str:
    """Return the table of all stacks, in gigabytes."""
    lines = [
        "| stack | GPU | as installed | slim | slim --unregistered zero |",
        "|---|---|---|---|---|",
    ]
    for stack, sizes in stacks.items():
        for gpu, size in sizes.items():
            words = (
                ("no code", "", "")
                if size is None
                else tuple(f"{one / 1e9:.2f} GB" for one in (size.fat, size.slim, size.zeroed))
            )
            lines.append(f"| {' | '.join((TITLES[stack], gpu, *words))} |")
    return "\n".join(lines) + "\n"


def chart(stacks: dict[str, dict[str, Size | None]]) -> str:
    """Return the chart: a bar for each stack and GPU."""
    largest = max(size.fat for sizes in stacks.values() for size in sizes.values() if size)
    body: list[str] = []
    y = 10
    legend = (
        ("kept", "stays"),
        ("zeroed", "zeros, with --unregistered zero"),
        ("removed", "removed"),
    )
    x = LEFT
    for style, words in legend:
        body.append(f'<rect class="{style}" x="{x}" y="{y}" width="14" height="14"/>')
        body.append(f'<text x="{x + 20}" y="{y + 12}">{escape(words)}</text>')
        x += 40 + 8 * len(words)
    y += 40
    for stack, sizes in stacks.items():
        body.append(f'<text class="big" x="10" y="{y}">{escape(TITLES[stack])}</text>')
        y += 8
        for gpu, size in sizes.items():
            body += bar(gpu, size, y=y, largest=largest)
            y += ROW
        y += 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img"'
        ' aria-labelledby="title">\n<title id="title">Bytes of three installed stacks for one kind'
        f" of GPU, after slim</title>\n<style>\n{STYLE}\n</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{y}"/>\n'
    )
    return head + "\n".join(body) + "\n</svg>\n"


def bar(gpu: str, size: Size | None, *, y: int, largest: int) -> list[str]:
    """Return the bar of one GPU."""
    parts = [f'<text x="46" y="{y + 12}">{gpu}</text>']
    if size is None:
        return [*parts, f'<text x="{LEFT}" y="{y + 12}">no code</text>']
    x = float(LEFT)
    widths = (
        ("kept", size.zeroed),
        ("zeroed", size.slim - size.zeroed),
        ("removed", size.fat - size.slim),
    )
    for style, count in widths:
        width = count / largest * SCALE
        parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        )
        x += width
    words = f"{size.zeroed / 1e9:.2f} of {size.fat / 1e9:.2f} GB"
    return [*parts, f'<text x="{x + 8:.1f}" y="{y + 12}">{words}</text>']


def main() -> None:
    """Write both files, or compare them."""
    names = [name for name in TITLES if (HERE / "measured" / f"{name}.json").exists()]
    stacks = {name: read_sizes(name) for name in names}
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = {PAGE: f"{before}{BEGIN}{table(stacks)}{END}{after}", CHART: chart(stacks)}
    for path, text in wanted.items():
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is not what chart.py writes")


if __name__ == "__main__":
    main()
