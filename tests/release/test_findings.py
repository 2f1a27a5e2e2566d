"""Table of findings: every code has a hint, and every check has a code of the table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import archsplit
from archsplit.errors import DevicePackError, WheelError
from archsplit.release.findings import HINTS, error_finding, finding
from archsplit.system.finding import Finding

WORDS = {"target": "sm_90", "program": "pip", "policy": "2_28", "cell": "*:9.0"}
FOLDER = Path(archsplit.__file__).parent


@pytest.mark.parametrize("code", sorted(HINTS))
def test_every_code_has_a_hint_for_builds_and_splits(code: str) -> None:
    hint = finding(code, "a.whl", "is odd", **WORDS).hint
    assert hint
    assert "{" not in hint
    assert not hint.endswith(".")
    # A user of a split has built no wheel, and a user of a build has split none: both commands are
    # named, or none.
    commands = [f"archsplit {verb}" in hint for verb in ("build", "split")]
    assert commands in ([True, True], [False, False])
    assert not re.search(r"(?<!archsplit )\b(buil[dt]|split)\b", hint)


def test_every_code_is_found_by_a_check_and_every_check_has_a_code() -> None:
    used = {"damaged-pack", "damaged-wheel", "tool-failed"}  # chosen by the type of an error
    for path in FOLDER.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "finding":
                literals = (
                    one.value
                    for argument in call.args[:1]
                    for one in ast.walk(argument)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )
                used.update(one for one in literals if re.fullmatch("[a-z]+(-[a-z]+)*", one))
    assert used == set(HINTS)


def test_a_finding_is_a_sentence_and_a_hint() -> None:
    one = finding("wrong-version", "a.whl", "is version 1", "2")
    assert one == Finding(
        code="wrong-version",
        subject="a.whl",
        found="is version 1",
        expected="2",
        hint="make that wheel again, in an empty folder",
    )
    assert str(one) == "a.whl: is version 1, expected 2; make that wheel again, in an empty folder"
    long = finding("install-failed", "a==1", "no:\n    out", program="uv")
    assert str(long).splitlines()[-1].strip() == (
        "see what uv says, or leave this out with --no-install"
    )


def test_unreadable_file_is_a_damaged_wheel_or_pack() -> None:
    errors = (DevicePackError("short"), WheelError("short", hint="do not show it"))
    found = [error_finding("a.whl", error) for error in errors]
    assert [one.code for one in found] == ["damaged-pack", "damaged-wheel"]
    assert [one.found for one in found] == ["short", "short"]
