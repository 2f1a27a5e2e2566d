# ruff: noqa: INP001, T201 - a script
"""Write docs/gallery.md and its chart from results.json; --check compares them instead.

python recipes/gallery/page.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PLACES = {"page": DOCS / "gallery.md", "chart": DOCS / "images" / "gallery.svg"}
GPUS = ("T4", "A100", "L4, RTX 4090", "H100", "B200", "RTX 5090")
MOST = 50
_MOST_LETTERS = 160
_LONG_NAME = 22
SORT = (HERE / "sort.html").read_text()


def biggest(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the biggest wheels with device code, by project, the biggest first."""
    found = {name: one for name, one in content["wheels"].items() if one.get("device_code")}
    order = sorted(found, key=lambda name: -found[name]["download"])
    return {name: found[name] for name in order[:MOST]}


def mb(size: float) -> str:
    """Return bytes as megabytes with one decimal."""
    return f"{size / 1e6:.1f}"


def slim_size(one: dict[str, Any], gpu: str) -> tuple[int, bool]:
    """Return the size of the slim wheel, and whether it was written and not only estimated."""
    if gpu == "H100" and "slim_h100" in one:
        return one["slim_h100"], True
    return one["gpus"][gpu]["slim"], False


def split_size(one: dict[str, Any], gpu: str) -> tuple[int, bool] | None:
    """Return the size of core and packs, likewise; None for a wheel that can't be split."""
    if "split" in one:
        return one["split"][gpu], True
    sizes = one["gpus"][gpu]
    return None if sizes["core"] is None else (sizes["core"] + sizes["pack"], False)


def cell(size: tuple[int, bool] | None) -> str:
    """Return a size as a cell; an estimate has a tilde."""
    return "-" if size is None else f"{'' if size[1] else '~'}{mb(size[0])}"


def mark(gpu: dict[str, Any]) -> str:
    """Return the mark of a GPU that does not run machine code of all containers, else nothing."""
    text: str = gpu["runs"]
    if text.startswith("nothing"):
        return " own" if gpu["used"] else " none"
    return " part" if "nothing" in text else " JIT" if "JIT" in text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown, whose numbers stand at the right."""
    names = list(head)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *map(list, rows)]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def page(content: dict[str, Any]) -> str:
    """Return docs/gallery.md."""
    wheels = biggest(content)
    named = {f"{name}=={one['version']}": one for name, one in wheels.items()}
    total = totals(wheels)
    text = (HERE / "page.md").read_text()
    commands = {f"command_{name}": command for name, command in content["commands"].items()}
    values = {
        **total,
        **commands,
        "count": str(len(wheels)),
        "measured": str(sum(bool(one.get("device_code")) for one in content["wheels"].values())),
        "archsplit": content["archsplit"],
        "day": content["day"],
        "sort": SORT.strip(),
        "main": table(
            ("wheel", "today", "slim", "split", "of today", "all packs"),
            (
                (
                    f"`{name}`",
                    mb(one["download"]),
                    cell(slim_size(one, "H100")),
                    cell(split_size(one, "H100")),
                    percent(split_size(one, "H100") or slim_size(one, "H100"), one["download"]),
                    mb(one["split"]["sum"]) if "split" in one else "-",
                )
                for name, one in named.items()
            ),
        ),
        "gpus": table(
            ("wheel", *GPUS),
            ((f"`{name}`", *(each_gpu(one, gpu) for gpu in GPUS)) for name, one in wheels.items()),
        ),
        "inside": table(
            (
                *("wheel", "device code", "link code", "zstd saves"),
                *("copies", "most lacking"),
            ),
            (
                (
                    f"`{name}`",
                    mb(one["device_code"]),
                    mb(one["gpus"]["H100"]["link_code"]),
                    mb(one["zstd_saves"]),
                    mb(one["duplicate_bytes"]),
                    lacks(one["lacking"]),
                )
                for name, one in wheels.items()
            ),
        ),
        "problems": "\n".join(
            f"- `{name}`: {brief(problem)}"
            for name, one in wheels.items()
            for problem in one["problems"]
        )
        or "Nothing.",
    }
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def percent(size: tuple[int, bool], whole: int) -> str:
    """Return a share as a cell."""
    return f"{100 * size[0] / whole:.0f} %"


def each_gpu(one: dict[str, Any], gpu: str) -> str:
    """Return slim, and core and packs, as a cell, with a mark."""
    return f"{cell(slim_size(one, gpu))}/{cell(split_size(one, gpu))}{mark(one['gpus'][gpu])}"


def lacks(lacking: dict[str, int]) -> str:
    """Return the target that lacks the most kernels, with how many."""
    worst = max(lacking, key=lambda target: lacking[target], default="")
    return f"{worst}: {lacking[worst]}" if lacking.get(worst) else "0"


def brief(problem: str) -> str:
    """Return the first letters of a problem; results.json has all of it."""
    text = " ".join(problem.split())
    step, _, rest = text.partition(": ")
    if rest.startswith("exit code 17: "):
        return f"{step} finds nothing to take out"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS].rstrip()} …"


def totals(wheels: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what an H100 downloads of all wheels together, three ways."""
    today = sum(one["download"] for one in wheels.values())
    slim = sum(slim_size(one, "H100")[0] for one in wheels.values())
    split = sum((split_size(one, "H100") or (one["download"], True))[0] for one in wheels.values())
    found = {"today": today, "slim": slim, "split": split}
    words = {f"total_{name}": f"{size / 1e9:.2f} GB" for name, size in found.items()}
    words |= {f"share_{name}": f"{100 * size / today:.0f} %" for name, size in found.items()}
    return words


def chart(content: dict[str, Any]) -> str:
    """Return the bars of all wheels as SVG: today's download, and core and packs for an H100."""
    wheels = biggest(content)
    most = max((one["download"] for one in wheels.values()), default=1)
    height = 58 + 24 * len(wheels)
    lines = [
        # A width of its own: a phone makes 11 pixels of 15, and a desktop no more than 15.
        f'<svg xmlns="http://www.w3.org/2000/svg" width="480" height="{height}"'
        f' viewBox="0 0 480 {height}" role="img" aria-labelledby="title">',
        f'<title id="title">What an H100 downloads of {len(wheels)} wheels, to scale: the fat'
        " wheel, and core and packs</title>",
        "<style>",
        "text { font: 15px system-ui, sans-serif; fill: #1c2026 } .soft { fill: #586069 }",
        ".paper { fill: #fff } .fat { fill: #8a929c } .ours { fill: #2c6fd1 }",
        "@media (prefers-color-scheme: dark) {",
        ".paper { fill: #14171b } text { fill: #e6e9ed } .soft { fill: #a3acb7 }"
        " .fat { fill: #7d8590 } .ours { fill: #5b9bf0 }",
        "}",
        "</style>",
        f'<rect class="paper" width="480" height="{height}"/>',
        '<text class="soft" x="4" y="18">what an H100 downloads, in MB:</text>',
        '<text class="soft" x="4" y="38">today (gray) → core + packs, or slim (blue)</text>',
    ]
    for row, (name, one) in enumerate(wheels.items()):
        y = 52 + 24 * row
        size = (split_size(one, "H100") or slim_size(one, "H100"))[0]
        wide, narrow = (max(1, round(186 * each / most)) for each in (one["download"], size))
        lines += [
            f'<text x="4" y="{y + 13}"{fitted(name)}>{name}</text>',
            f'<rect class="fat" x="198" y="{y}" width="{wide}" height="9"/>',
            f'<rect class="ours" x="198" y="{y + 9}" width="{narrow}" height="9"/>',
            f'<text class="soft" x="{203 + wide}" y="{y + 14}">{one["download"] / 1e6:.0f} →'
            f" {size / 1e6:.0f}</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def fitted(name: str) -> str:
    """Return the attributes of a long name, which keep it beside the bars in any font."""
    return ' textLength="188" lengthAdjust="spacingAndGlyphs"' if len(name) > _LONG_NAME else ""


def main() -> int:
    """Write or check the page and the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    content = json.loads((HERE / "results.json").read_text())
    for name, text in (("page", page(content)), ("chart", chart(content))):
        path = PLACES[name]
        if not arguments.check:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"error: {path.name} differs from results.json; run {Path(__file__).name}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
