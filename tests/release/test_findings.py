"""The table of findings: every code has hints, and every check has a code of the table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import archsplit
from archsplit.errors import DevicePackError, WheelError
from archsplit.release.findings import HINTS, error_finding, finding
from archsplit.release.identity import ReleaseKind
from archsplit.system.finding import Finding

WORDS = {"target": "sm_90", "program": "pip", "policy": "2_28", "cell": "*:9.0"}
CALLS = {
    "finding",
    "fault",
    "release.fault",
    "subject.release.fault",
    "self.release.fault",
    "view.fault",
}
FOLDER = Path(archsplit.__file__).parent


@pytest.mark.parametrize("code", sorted(HINTS))
def test_every_code_has_hints_that_fit_the_release(code: str) -> None:
    built, split = (
        finding(kind, code, "a.whl", "is odd", **WORDS).hint
        for kind in (ReleaseKind.BUILT, ReleaseKind.SPLIT)
    )
    for hint in (built, split):
        assert hint
        assert "{" not in hint
        assert not hint.endswith(".")
    # A user of a split has built no wheel, and a user of a build has split none.
    if code != "missing-kernel":  # only of a build: a split is compared with its fat wheel
        assert not re.search(r"\bbuil[dt]\b", split)
    assert not re.search(r"\bsplit\b", built)


def test_every_code_is_found_by_a_check_and_every_check_has_a_code() -> None:
    used = {"damaged-pack", "damaged-wheel", "tool-failed"}  # chosen by the type of an error
    for path in FOLDER.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in CALLS:
                literals = (
                    one.value
                    for argument in call.args[:2]
                    for one in ast.walk(argument)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )
                used.update(one for one in literals if re.fullmatch("[a-z]+(-[a-z]+)*", one))
    assert used == set(HINTS)


def test_a_finding_is_a_sentence_and_a_hint() -> None:
    one = finding(ReleaseKind.BUILT, "wrong-version", "a.whl", "is version 1", "2")
    assert one == Finding(
        code="wrong-version",
        subject="a.whl",
        found="is version 1",
        expected="2",
        hint="build that wheel again",
    )
    assert str(one) == "a.whl: is version 1, expected 2; build that wheel again"
    long = finding(ReleaseKind.BUILT, "install-failed", "a==1", "no:\n    out", program="uv")
    assert str(long).splitlines()[-1].strip() == (
        "see what uv says, or leave this out with --no-install"
    )


def test_unreadable_file_is_a_damaged_wheel_or_pack() -> None:
    errors = (DevicePackError("short"), WheelError("short", hint="do not show it"))
    found = [error_finding(ReleaseKind.SPLIT, "a.whl", error) for error in errors]
    assert [one.code for one in found] == ["damaged-pack", "damaged-wheel"]
    assert [one.found for one in found] == ["short", "short"]


def test_hint_for_a_part_of_a_build_names_both_ways_on() -> None:
    hint = finding(ReleaseKind.BUILT, "missing-plugin", "a", "no wheel", target="sm_90").hint
    assert hint == "build --targets sm_90 and gather, or build --release"
