"""Progress on a terminal, in a log, and nowhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

from archsplit.system.outputs import open_streams
from archsplit.system.safe_output import SafeConsole, safe_streams
from archsplit.system.terminal import ActivityBar, ProgressSink, progress_display


def work(progress: ProgressSink) -> None:
    progress.note("a note [with brackets]")
    progress.begin_stage("compiling", 2, "Compiled {} files")
    progress.start_step("a.cu")
    progress.finish_step("a.cu", 0.1)
    progress.finish_step("b.cu", 0.2)
    progress.begin_stage("checking", 0, "Checked all")


def shown(*, terminal: bool, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=60, color_system=None)
    with progress_display(console, quiet=quiet) as progress:
        # Outside of a stage there is nothing to count.
        progress.start_step("nothing")
        if terminal:
            progress.finish_step("nothing", 0.0)
        work(progress)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_has_a_line_for_each_step_and_each_stage_without_steps() -> None:
    *lines, last = shown(terminal=False).splitlines()
    assert lines == [
        "a note [with brackets]",
        "Compiled a.cu (1 of 2, 0.1 s)",
        "Compiled b.cu (2 of 2, 0.2 s)",
    ]
    assert re.fullmatch(r"Checked all in \d+\.\d s", last)


def test_log_has_no_line_for_a_failed_stage() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    with pytest.raises(OSError, match="disk"), progress_display(console) as progress:
        progress.begin_stage("checking", 0, "Checked all")
        raise OSError("disk")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_a_log_counts_no_step_of_an_empty_stage() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    with progress_display(console) as progress:
        progress.begin_stage("mirroring", 0, "Mirrored {} wheels")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("Mirrored 0 wheels in ")


def test_a_terminal_keeps_a_line_for_each_stage() -> None:
    text = shown(terminal=True)
    for line in ("a note [with brackets]", "Compiled 2 files in ", "Checked all in "):
        assert line in text


def test_a_stage_of_one_step_is_said_in_the_singular() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with progress_display(console) as progress:
        progress.begin_stage("writing wheels", 1, "Wrote {} wheels")
        progress.finish_step("a.whl", 0.1)
    assert isinstance(console.file, io.StringIO)
    assert "Wrote 1 wheel in " in console.file.getvalue()


def test_activity_shows_the_done_part() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    bar = ActivityBar(console, "reading a [very] long name" * 4)
    bar.start()
    bar.advance(5, 20)
    bar.advance(5, 20)
    bar.stop()
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().splitlines()[0]
    assert "\u2501" * 8 + " " in last or "\u2501" * 8 + "\u257a" in last
    assert "[very]" in last
    assert last.rstrip().endswith("\u2026")


def test_display_moves_the_cursor_with_escaped_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with safe_streams():
        console = SafeConsole(stderr=True, force_terminal=True, width=60, color_system=None)
        with progress_display(console) as progress:
            work(progress)
            sys.stderr.write("a name \x1b[2J\n")
    text = stream.getvalue()
    assert "\x1b[2K" in text
    assert "\\x1b[2K" not in text
    assert "a name" in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", b"\xfc ?\n"), ("ascii", b"? ?\n")])
def test_a_stream_of_few_letters_gets_question_marks(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: bytes
) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding=encoding))
    with safe_streams():
        SafeConsole().print("\xfc \u2588")
        sys.stdout.flush()
    assert content.getvalue() == shown


def test_a_closed_stream_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    open_streams()
    with safe_streams():
        SafeConsole().print("a line")
        sys.stdout.write("a line")
        sys.stdout.flush()


def test_a_failed_stage_leaves_no_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with pytest.raises(OSError, match="disk"), progress_display(console) as progress:
        progress.begin_stage("compiling", 2, "Compiled {} files")
        raise OSError("disk")
    assert isinstance(console.file, io.StringIO)
    assert "Compiled" not in console.file.getvalue()


def test_quiet_leaves_nothing() -> None:
    assert shown(terminal=False, quiet=True) == ""
    assert "Checked" not in shown(terminal=True, quiet=True)
