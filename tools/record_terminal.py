"""Record commands on a terminal as SVG, for the manual.

A command runs on a pseudo-terminal. Its output goes through a small terminal, which knows the few
control sequences that rich writes, and each line becomes a text with the time in which it is shown.
The SVG has no script and loads nothing; a reader who wants no motion sees only the last frame.
termtosvg and svg-term do this too: the one is no longer maintained, the other needs Node.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.color import ColorType
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 84, 50
LETTER, LINE, MARGIN = 7.8, 18, 14
LONGEST, LAST_FRAME = 6.0, 4.0
"""Seconds of a recording without its last frame, and of the last frame."""

FRAMES = 24
STAYS = re.compile('<text(?![^>]* gone")[^>]*>(.*?)</text>')
TIME = re.compile(r"\d+:\d\d:\d\d|\d+\.\d+ m?s\b|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]")
"""Text that differs between two runs of one command: durations and spinners."""

PAPER, INK = "#1c2026", "#e6e9ed"
CONTROL = re.compile("\x1b\\[([0-9;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")

Frames = list[tuple[float, list[str]]]
"""Lines of a terminal at different times, in seconds."""


class Screen:
    """Lines of a terminal, with their colors as they were written."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._is_new = False

    def write(self, text: str) -> None:
        """Take output: text, line ends, colors, and rich's cursor and erase sequences."""
        for match in CONTROL.finditer(text):
            final = match[2]
            if match[0] == "\n":
                self._row += 1
                self._is_new = True
                if self._row == len(self.lines):
                    self.lines.append("")
            elif match[0] == "\r":
                self._is_new = True
            elif final == "A":
                self._row = max(0, self._row - int(match[1] or 1))
            elif final == "K":
                self.lines[self._row] = ""
            elif final is None or final == "m":
                # What is written at the begin of a line replaces it: rich writes whole lines.
                if self._is_new and final is None:
                    self.lines[self._row] = ""
                self._is_new = self._is_new and final == "m"
                self.lines[self._row] += match[0]


def record(argv: list[str], *, folder: Path, environment: dict[str, str]) -> Frames:
    """Run a command, and return its frames with their times."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - the child of a terminal
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, frames = Screen(), [(0.0, [""])]
    began = time.monotonic()
    while True:
        select.select([terminal], [], [])
        try:
            output = os.read(terminal, 65536)
        except OSError:
            break
        screen.write(output.decode(errors="replace"))
        frames.append((time.monotonic() - began, list(screen.lines)))
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"{' '.join(argv)} failed:\n{chr(10).join(screen.lines)}")
    return shortened([*frames, (time.monotonic() - began, screen.lines)])


def shortened(frames: Frames) -> Frames:
    """Return a few of the frames, the last one too, in a time that people watch."""
    whole = frames[-1][0]
    speed = max(1.0, whole / LONGEST)
    kept: Frames = []
    for when, lines in frames:
        if not kept or when / speed - kept[-1][0] >= LONGEST / FRAMES:
            kept.append((when / speed, lines))
    return [*kept, (whole / speed + 0.1, frames[-1][1])]


def svg_text(title: str, frames: Frames) -> str:
    """Return the SVG of a recording."""
    whole = frames[-1][0] + LAST_FRAME
    prompt = f"\x1b[1m$ {title}\x1b[0m"
    intervals = shown_lines([(when, [prompt, *lines]) for when, lines in frames], whole)
    rows = max(row for row, *_ in intervals) + 1
    width, height = COLUMNS * LETTER + 2 * MARGIN, rows * LINE + 2 * MARGIN
    texts: list[str] = []
    rules: list[str] = []
    for row, text, start, end in intervals:
        name = ""
        if (start, end) != (0.0, whole):
            rule, stays = f"f{len(rules)}", end == whole
            # Without motion, lines that go are never shown.
            name = rule if stays else f"{rule} gone"
            rules.append(visibility_rule(rule, start / whole, end / whole, whole, stays=stays))
        y = MARGIN + row * LINE + 13
        texts.append(line_text(text, y, name))
    motion = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"',
            ' role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>text {{ font: 13px ui-monospace, monospace; fill: {INK}; white-space: pre }}",
            ".b { font-weight: 700 } .d { opacity: .65 } .gone { visibility: hidden }",
            f"{motion}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
            *texts,
            "</svg>\n",
        )
    )


def shown_lines(frames: Frames, whole: float) -> list[tuple[int, str, float, float]]:
    """Return each line with its row, and the time from which and to which it is shown."""
    open_lines: dict[int, tuple[str, float]] = {}
    done = []
    for when, lines in [*frames, (whole, [])]:
        for row in range(max(len(lines), max(open_lines, default=0) + 1)):
            text = lines[row].rstrip() if row < len(lines) else ""
            old, start = open_lines.get(row, ("", 0.0))
            if text != old or when == whole:
                if old:
                    done.append((row, old, start, when))
                open_lines[row] = (text, when)
    return done


def visibility_rule(name: str, start: float, end: float, seconds: float, *, stays: bool) -> str:
    """Return the style of a line that is not there all the time."""
    keyframes = "0% { visibility: hidden }" if start else ""
    keyframes += f" {100 * start:.2f}% {{ visibility: visible }}"
    if not stays:
        keyframes += f" {100 * end:.2f}% {{ visibility: hidden }}"
    return (
        f"@keyframes {name} {{ {keyframes.strip()} }}"
        f" .{name} {{ animation: {name} {seconds:.1f}s step-end infinite }}"
    )


def line_text(text: str, y: int, name: str) -> str:
    """Return a line as an SVG text."""
    (line,) = AnsiDecoder().decode(text)
    plain = line.plain
    parts, at = [], 0
    for start, end, style in spans(line):
        parts += [
            escape(plain[at:start]),
            f"<tspan{attributes(style)}>{escape(plain[start:end])}</tspan>",
        ]
        at = end
    parts.append(escape(plain[at:]))
    kind = f' class="{name}"' if name else ""
    # The fonts of readers differ; the columns of tables must not.
    length = f' textLength="{len(plain) * LETTER:.0f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{MARGIN}" y="{y}"{kind}{length}>{"".join(parts)}</text>'


def replaced(text: str, names: dict[str, str]) -> str:
    """Return a text with other names."""
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def last_frame(svg: str) -> list[str]:
    """Return the lines that a recording ends with, without their times."""
    return [TIME.sub("", re.sub("<[^>]*>", "", line)).rstrip() for line in STAYS.findall(svg)]


def spans(line: object) -> list[tuple[int, int, Style]]:
    """Return the styled parts of a line, in order; rich's decoder makes no overlaps."""
    found = [(one.start, one.end, one.style) for one in getattr(line, "spans", ())]
    return sorted((one for one in found if isinstance(one[2], Style)), key=lambda one: one[:2])


def attributes(style: Style) -> str:
    """Return the attributes of a styled part."""
    names = " ".join(filter(None, ("b" if style.bold else "", "d" if style.dim else "")))
    kind = f' class="{names}"' if names else ""
    if style.color is None or style.color.type is ColorType.DEFAULT:
        return kind
    return f'{kind} fill="{style.color.get_truecolor(DIMMED_MONOKAI).hex}"'


def main() -> None:
    """Record the commands of the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True, help="xgboost's wheel")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / arguments.wheel.name).symlink_to(arguments.wheel.absolute())
        environment = {
            **{key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": name,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
        }
        commands = {
            "terminal-inspect": f"archsplit inspect {arguments.wheel.name} --device H100",
            "terminal-split": f"archsplit split {arguments.wheel.name} --out split",
        }
        for file, command in commands.items():
            frames = record(command.split(), folder=folder, environment=environment)
            # The recording is of no machine in particular. What is drawn has the final texts:
            # a line is as long as its letters.
            names = {f"{name}/": ""}
            text = svg_text(
                command,
                [(when, [replaced(line, names) for line in lines]) for when, lines in frames],
            )
            path = arguments.out / f"{file}.svg"
            # Two runs never take the same time: only another result is a change.
            if path.exists() and last_frame(path.read_text()) == last_frame(text):
                sys.stderr.write(f"{path.name}: the same result, file kept\n")
                continue
            path.write_text(text)
            sys.stderr.write(f"{path.name}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
