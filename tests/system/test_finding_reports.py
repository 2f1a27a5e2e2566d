"""Findings as files that CI systems read."""

from __future__ import annotations

import json
import subprocess
import tarfile
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest

from archsplit.system.finding import Finding, junit_report, sarif_report

HOSTILE = 'a"<b>&\x01\n☃'
FINDINGS = (
    Finding(code="missing-target", subject="", found="sm_90 lacks", expected="", hint="add it"),
    Finding(code="wrong-size", subject=HOSTILE, found="3", expected="4", hint=""),
    Finding(code="wrong-size", subject="c", found="5", expected="6", hint="mend it"),
)


def test_sarif_has_a_result_for_each_finding() -> None:
    log = json.loads(sarif_report(FINDINGS, checked="a b/x.whl"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["missing-target", "wrong-size"]
    assert [one["message"]["text"] for one in run["results"]] == [
        "sm_90 lacks; add it",
        f"{HOSTILE}: 3, expected 4",
        "c: 5, expected 6; mend it",
    ]
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"a%20b/x.whl"}


@pytest.mark.parametrize("findings", [FINDINGS, ()], ids=["findings", "none"])
def test_sarif_matches_the_schema(findings: tuple[Finding, ...]) -> None:
    """The required properties and the enums of SARIF 2.1.0, for the objects in our logs."""
    log = json.loads(sarif_report(findings, checked="a b/x.whl"))
    assert set(log) == {"$schema", "version", "runs"}
    for run in log["runs"]:
        assert set(run) <= {"tool", "results"}
        assert run["tool"]["driver"]["name"]
        rules = run["tool"]["driver"]["rules"]
        assert all(rule["id"] for rule in rules)
        assert len({rule["id"] for rule in rules}) == len(rules)
        for result in run["results"]:
            assert result["level"] in {"none", "note", "warning", "error"}
            assert result["message"]["text"]
            assert result["ruleId"] in {rule["id"] for rule in rules}


@pytest.mark.download
@pytest.mark.parametrize("findings", [FINDINGS, ()], ids=["findings", "none"])
def test_the_official_schema_takes_our_logs(
    findings: tuple[Finding, ...], sarif_schema: dict[str, Any]
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema: pip install jsonschema")
    check = jsonschema.validators.validator_for(sarif_schema)(sarif_schema)
    log = json.loads(sarif_report(findings, checked="a b/x.whl"))
    assert [error.message for error in check.iter_errors(log)] == []
    # The validator does look: a level that SARIF has not is refused.
    log["runs"][0]["results"] = [{"message": {"text": "x"}, "level": "fatal"}]
    assert not check.is_valid(log)


@pytest.fixture(scope="module")
def sarif_schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The official schema, from a package of its editors in the npm registry."""
    folder = tmp_path_factory.mktemp("schema")
    name = "@microsoft/jest-sarif@1.0.0-beta.0"
    subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, timeout=120)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as opened:
        content = opened.extractfile("package/lib/schemas/sarif-2.1.0-rtm.5.json")
        assert content is not None
        return cast("dict[str, Any]", json.load(content))


def test_a_passed_check_closes_earlier_alerts() -> None:
    (run,) = json.loads(sarif_report((), checked="x.whl"))["runs"]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


def test_junit_has_a_failed_test_for_each_finding() -> None:
    suites = ET.fromstring(junit_report(FINDINGS, checked="x.whl", check="verify"))
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures")) == ("3", "3")
    assert {case.get("classname") for case in suite} == {"archsplit.verify"}
    messages = [failure.get("message") for failure in suite.iter("failure")]
    # XML can't have control characters at all.
    assert messages[1] == f"{HOSTILE}: 3, expected 4".replace("\x01", "\ufffd")


def test_passed_check_is_a_passed_test() -> None:
    (suite,) = ET.fromstring(junit_report((), checked="x.whl", check="inspect"))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert suite[0].get("name") == "x.whl"
