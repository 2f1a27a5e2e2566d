"""``archsplit inspect`` and ``archsplit diff`` on the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from archsplit.cli import diff, inspect, options
from archsplit.errors import TargetError, UsageError, VerifyError

if TYPE_CHECKING:
    from pathlib import Path

    from compiled_samples import Samples

WHEEL = "pkg-1.0-py3-none-any.whl"


def run(*argv: str) -> int:
    """Run a command line; errors are raised instead of printed."""
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    for verb in (inspect, diff):
        verb.add_to(verbs)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments, Console(stderr=True))
    return code


def test_inspect_prints_tables(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(samples / WHEEL), "--device", "9.0", "--kernels") == 0
    out, err = capsys.readouterr()
    assert "An H100 uses" in out
    assert f"next: archsplit slim {samples / WHEEL} --device 9.0" in out
    assert "8.0 A100" not in out
    assert "scale" in out
    assert err == ""


def test_a_log_has_a_line_about_a_long_reading(
    samples: Samples, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_LONG", 0.0)
    assert run("inspect", str(samples / WHEEL)) == 0
    line = capsys.readouterr().err
    assert re.fullmatch(rf"Read {re.escape(str(samples / WHEEL))} in \d+\.\d s\n", line)


def test_inspect_prints_json(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(samples / "libkernels.so"), "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    assert len(content["sha256"]) == 64
    assert len(content["devices"]) > 20


def test_inspect_writes_a_page(samples: Samples, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    run("inspect", str(samples / WHEEL), "--html", str(page))
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("target", "gpu", "name"), [("sm_80", "8.0", "A100"), ("sm_90", "9.0", "H100")]
)
def test_text_and_page_open_on_the_required_gpu_and_the_page_has_no_path_of_this_machine(
    samples: Samples,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    gpu: str,
    name: str,
) -> None:
    page = tmp_path / "page.html"
    limits = ("--forbid", "sm_50", "--require", f"{target},compute_*")
    with contextlib.suppress(VerifyError):
        run("inspect", str(samples / WHEEL), *limits, "--html", str(page))
    text = page.read_text()
    assert f'"gpu":"{gpu}"' in text
    assert f"\nAn {name} " in capsys.readouterr().out
    assert str(samples.folder) not in text
    assert str(tmp_path) not in text


def test_problem_is_reported_without_a_failure(
    samples: Samples, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", str(samples / "libstripped.so")) == 0
    assert "libstripped.so: it has no section headers" in capsys.readouterr().err


def test_library_without_device_code_is_not_a_failure(
    samples: Samples, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", str(samples / "libempty.so")) == 0
    assert "no device code" in capsys.readouterr().out


@pytest.mark.parametrize(
    "limit",
    [
        ("--budget", "1kB"),
        ("--max-target", "sm_90=10"),
        ("--forbid", "compute_*"),
        ("--require", "sm_86"),
    ],
)
def test_a_broken_limit_is_exit_code_9(
    samples: Samples, limit: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(VerifyError) as caught:
        run("inspect", str(samples / "libkernels.so"), *limit)
    assert caught.value.exit_code == 9
    assert "compute_90" in capsys.readouterr().out


def test_broken_limits_are_files_for_ci(samples: Samples, tmp_path: Path) -> None:
    files = ("--sarif", str(tmp_path / "x.sarif"), "--junit", str(tmp_path / "x.xml"))
    library = str(samples / "libkernels.so")
    with pytest.raises(VerifyError):
        run("inspect", library, *files, "--require", "sm_86", "--budget", "1kB")
    (log,) = json.loads((tmp_path / "x.sarif").read_text())["runs"]
    assert [one["ruleId"] for one in log["results"]] == ["over-budget", "missing-target"]
    assert 'failures="2"' in (tmp_path / "x.xml").read_text()
    # The next run passes: the files of the last one must not stay.
    assert run("inspect", library, *files, "--require", "sm_90") == 0
    assert json.loads((tmp_path / "x.sarif").read_text())["runs"][0]["results"] == []


def test_gpu_is_named_as_the_user_wrote_it(
    samples: Samples, capsys: pytest.CaptureFixture[str]
) -> None:
    run("inspect", str(samples / WHEEL), "--device", "H200, 8.0")
    out = capsys.readouterr().out
    assert "An H200 uses" in out
    assert "An A100 uses" in out
    assert "\ntarget" not in out
    run("inspect", str(samples / WHEEL), "--targets")
    out = capsys.readouterr().out
    assert out.index("\nGPU") < out.index("\ntarget")


@pytest.mark.parametrize("gpu", ["90", "9.0a", "sm_90a", "compute_90", "H100", "9.0,H200"])
def test_a_gpu_has_many_names(
    samples: Samples, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    library = str(samples / "libkernels.so")
    run("inspect", library, "--device", "9.0", "--json")
    expected = capsys.readouterr().out
    run("inspect", library, "--device", gpu, "--json")
    assert capsys.readouterr().out == expected


def test_limits_take_gpus(samples: Samples) -> None:
    library = str(samples / "libkernels.so")
    assert run("inspect", library, "--require", "H100,sm90", "--max-target", "H200=1MB") == 0
    with pytest.raises(VerifyError, match=r"sm_90 is forbidden \(sm_90\*\)"):
        run("inspect", library, "--forbid", "H100")
    with pytest.raises(VerifyError, match=r"sm_86\* is required"):
        run("inspect", library, "--require", "RTX 3090")


def test_kept_limits_are_success(samples: Samples) -> None:
    limits = ("--budget", "1GB", "--max-target", "sm_*=1MB", "--require", "sm_90")
    assert run("inspect", str(samples / "libkernels.so"), *limits) == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--budget", "much"), UsageError),
        (("--max-target", "sm_90"), UsageError),
        (("--device", "99.9"), TargetError),
        (("--device", "H1000"), TargetError),
        (("--require", "H1000"), TargetError),
        (("--max-target", "99.9=1MB"), TargetError),
    ],
)
def test_invalid_options_are_refused(
    samples: Samples, options: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        run("inspect", str(samples / "libkernels.so"), *options)


def test_diff_prints_tables(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", str(samples / "zstd.o"), str(samples / "kernels.o")) == 0
    assert "sm_90a" in capsys.readouterr().out


def test_diff_prints_json(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    files = (str(samples / "zstd.o"), str(samples / "libstripped.so"))
    assert run("diff", *files, "--json", "--no-kernels") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kernels"] == []
    assert "libstripped.so" in err


def test_installed_package_is_inspected_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("inspect", "pytest") == 0
    assert "no device code" in capsys.readouterr().out


def test_a_terminal_has_its_own_width(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    run("inspect", str(samples / WHEEL), "--device", "9.0")
    out = capsys.readouterr().out
    assert "\x1b[" in out
    # A command that is broken can't be pasted.
    assert f"next: archsplit slim {samples / WHEEL} --device 9.0\n" in out


def test_pages_are_written_to_devices_and_links(
    samples: Samples, tmp_path: Path, null_device: Path
) -> None:
    (tmp_path / "link.html").symlink_to("real.html")
    before = null_device.stat()
    for page in (null_device, tmp_path / "link.html"):
        run("inspect", str(samples / WHEEL), "--html", str(page))
    assert os.path.samestat(before, null_device.stat())
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!DOCTYPE html>")
