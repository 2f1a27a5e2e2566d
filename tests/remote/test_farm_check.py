"""The rows of `archsplit remote check`, without a farm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.errors import EngineRefusedError
from archsplit.remote.action import PathMap, action_spec, probe_step
from archsplit.remote.connection import CheckRow, run_checks

if TYPE_CHECKING:
    from pathlib import Path


def refuse() -> str:
    raise EngineRefusedError("no execution")


def test_rows_end_with_the_first_failure() -> None:
    rows: list[CheckRow] = []
    checks = [
        ("storage", lambda: "64 KB"),
        ("execution", refuse),
        ("kept results", lambda: ""),
    ]
    with pytest.raises(EngineRefusedError):
        run_checks(checks, rows.append)
    assert [(row.name, row.works) for row in rows] == [("storage", True), ("execution", False)]
    run_checks(checks[2:], rows.append)
    assert rows[-1].works
    good, bad, _ = (re.sub(r"[0-9.]+ s", "0 s", row.as_line()) for row in rows)
    assert good.split() == ["storage", "ok", "0", "s", "64", "KB"]
    assert bad.split() == ["execution", "failed", "0", "s"]


def test_each_probe_is_another_action(tmp_path: Path) -> None:
    texts = set()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        step = probe_step(folder / "root", folder / "private")
        spec = action_spec(step, PathMap(folder / "root", folder / "private"), ())
        assert spec.argv[-1] == "cat probe > .archsplit/work/copy"
        assert [str(each) for each in spec.outputs] == [".archsplit/work/copy"]
        texts |= {path.read_text() for path in spec.inputs.values()}
    assert len(texts) == 2


@pytest.mark.parametrize("address", ["farm:80", "https://farm", "tls://head:8786", "tls:head"])
def test_address_invalid_for_a_build_is_refused(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remote", "check", address]) == 2
    assert "hint: " in capsys.readouterr().err or address == "tls://head:8786"
