"""``archsplit diff``, job summaries and annotations, on real wheels and libraries."""

from __future__ import annotations

import json
import re
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.devicecode.model import Inventory
from archsplit.errors import BinaryFormatError, InputError, UsageError, VerifyError
from archsplit.inspect.history import (
    ReleaseSize,
    growth_of_last,
    measure_release,
    merge_releases,
    read_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from compiled_samples import Samples

WHEEL = "pkg-1.0-py3-none-any.whl"


def release(version: str, size: int, **targets: int) -> ReleaseSize:
    return ReleaseSize(
        name=f"foo-{version}.whl", version=version, sha256=version, size=size, targets=targets
    )


def test_a_log_holds_each_release_once(
    samples: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, summary = (tmp_path / name for name in ("sizes.jsonl", "summary.md"))
    wheel = samples / WHEEL
    words = ["diff", str(wheel), "--log", str(log)]
    assert main(words) == 0
    first = log.read_text()
    assert main([*words, "--summary", str(summary)]) == 0
    assert log.read_text() == first
    other = tmp_path / "libother.so"
    shutil.copy(samples / "libkernels.so", other)
    capsys.readouterr()
    assert main(["diff", str(other), "--log", str(log), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["version"] for one in content["releases"]] == ["1.0", "libother.so"]
    assert content["releases"][0]["size"] == wheel.stat().st_size
    assert main(["diff", "--log", str(log)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^1\.0 .* kB", out, re.MULTILINE)
    assert "| 1.0 |" in summary.read_text()


def test_too_much_growth_is_a_finding(
    samples: Samples,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, big = samples / "zstd.o", samples / "libkernels.so"
    words = ["diff", str(small), str(big), "--max-growth"]
    assert main([*words, "100000%"]) == 0
    assert main([*words[:1], str(big), str(small), "--max-growth", "0"]) == 0
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    capsys.readouterr()
    assert main([*words, "5%"]) == VerifyError.exit_code
    out, err = capsys.readouterr()
    assert "libkernels.so" in out, "the table is still shown"
    assert "more than zstd.o" in err.replace("\n", " ")
    (annotation,) = re.findall(r"^::error title=archsplit limit::(.*)$", err, re.MULTILINE)
    assert "the limit is 5 %25" in annotation
    assert "%0A" in annotation, "the hint is a line of its own"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], UsageError.exit_code),
        (["--log", "none.jsonl"], InputError.exit_code),
        (["none.whl"], InputError.exit_code),
        (["x.so", "--max-growth", "much"], UsageError.exit_code),
        (["--log", "bad.jsonl"], BinaryFormatError.exit_code),
        (["--log", "later.jsonl"], BinaryFormatError.exit_code),
        (["--log", "short.jsonl"], BinaryFormatError.exit_code),
        (["--log", "binary.jsonl"], InputError.exit_code),
    ],
)
def test_damaged_history_is_refused(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("\n{\n")
    (tmp_path / "later.jsonl").write_text('{"schema": 2}\n')
    (tmp_path / "short.jsonl").write_text('{"schema": 1, "name": "x"}\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["diff", *words]) == code
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_folder_as_a_release_is_refused(tmp_path: Path) -> None:
    assert main(["diff", str(tmp_path)]) == InputError.exit_code
    folder = Inventory(path=str(tmp_path), sha256=None, size=0, is_wheel=False, files=())
    with pytest.raises(InputError, match="is not a file"):
        measure_release(folder)


def test_growth_needs_two_releases() -> None:
    one, empty, two = release("1", 100), release("0", 0), release("2", 150)
    assert growth_of_last(()) == growth_of_last((one,)) == growth_of_last((empty, one)) == 0
    assert growth_of_last((one, two)) == pytest.approx(0.5)
    assert merge_releases((one,), (one, two)) == (one, two)
    text = f"{one.as_line()}\n\n{two.as_line()}\n"
    assert read_log(text, where="x") == (one, two)


def test_a_job_summary_is_appended_to(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "step.md"
    summary.write_text("earlier step\n")
    summary.chmod(0o600)
    wheel = samples / WHEEL
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["inspect", str(wheel), "--summary"]) == UsageError.exit_code
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["inspect", str(wheel), "--summary"]) == 0
    assert main(["diff", str(wheel), str(wheel), "--no-kernels", "--summary"]) == 0
    text = summary.read_text()
    assert text.startswith(f"earlier step\n### {WHEEL}\n")
    assert "| sm_90 | SASS |" in text
    assert "| **whole** |" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    assert stat.S_IMODE(summary.stat().st_mode) == 0o600
