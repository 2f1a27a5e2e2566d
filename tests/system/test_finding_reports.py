"""Findings as files that CI systems read."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from archsplit.system.finding import Finding
from archsplit.system.finding_reports import junit_report, sarif_report

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


def test_a_passed_check_is_a_test_that_passed() -> None:
    (suite,) = ET.fromstring(junit_report((), checked="x.whl", check="inspect"))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert suite[0].get("name") == "x.whl"
