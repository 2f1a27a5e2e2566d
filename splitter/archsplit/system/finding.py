"""A difference between a release and its description: a record, and files for CI.

SARIF 2.1.0 is for code scanning (GitHub reads it), JUnit XML for test reports (GitLab, Jenkins,
Azure and CircleCI). Both formats also have a form for a check without a finding, so that a CI
system sees that the check ran, and closes earlier alerts.

Not in `archsplit.errors`, which every command imports: dataclasses take 9 ms of the 50 that a hit
of the compiler wrapper may take.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from archsplit import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference between a checked file or release and its specification.

    Attributes:
        code: ``wrong-requirement``; see `archsplit.release.findings`.
        subject: the file, distribution or program; "" for the only one that is checked.
        found: a sentence about the subject.
        expected: the expected value; "" if the sentence has it.
        hint: what to do next; "" if the message has it.
    """

    code: str
    subject: str
    found: str
    expected: str
    hint: str

    @property
    def text(self) -> str:
        """Finding without its hint."""
        expected = f", expected {self.expected}" if self.expected else ""
        return ": ".join(filter(None, (self.subject, f"{self.found}{expected}")))

    def __str__(self) -> str:
        # A hint on the last line of a program's output would be overlooked.
        separator = "\n    " if "\n" in self.found else "; "
        return f"{self.text}{separator}{self.hint}"


_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may have, not even escaped."""
# xml.sax.saxutils has the same, and imports urllib.request: 65 ms at the start of each command.
_ESCAPED = {ord(each): f"&#{ord(each)};" for each in '&<>"\t\n\r'}


def sarif_report(findings: Sequence[Finding], *, checked: str) -> str:
    """Return a SARIF log with a result for each finding.

    Args:
        findings: of one check; none if it passed.
        checked: the path of the checked file or folder, to which the results are attached.
    """
    rules = [{"id": code} for code in dict.fromkeys(one.code for one in findings)]
    place = {"physicalLocation": {"artifactLocation": {"uri": quote(checked)}}}
    results = [
        {
            "ruleId": one.code,
            "level": "error",
            "message": {"text": _message(one)},
            "locations": [place],
        }
        for one in findings
    ]
    driver = {"name": "archsplit", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


def junit_report(findings: Sequence[Finding], *, checked: str, check: str) -> str:
    """Return a JUnit report: a failed test for each finding, or one test that passed.

    Args:
        findings: of one check; none if it passed.
        checked: the path of the checked file or folder.
        check: the name of the check, such as ``inspect``.
    """
    place = f"classname={_attribute(f'archsplit.{check}')}"
    cases = [
        f"    <testcase {place} name={_attribute(' '.join(filter(None, (one.code, one.subject))))}>"
        f"<failure type={_attribute(one.code)} message={_attribute(_message(one))}/></testcase>"
        for one in findings
    ] or [f"    <testcase {place} name={_attribute(checked)}/>"]
    count = f'tests="{len(cases)}" failures="{len(findings)}" errors="0"'
    return "\n".join(
        (
            '<?xml version="1.0" encoding="UTF-8"?>',
            f"<testsuites {count}>",
            f"  <testsuite name={_attribute(f'archsplit {check} {checked}')} {count}>",
            *cases,
            "  </testsuite>",
            "</testsuites>\n",
        )
    )


def _message(finding: Finding) -> str:
    return f"{finding.text}; {finding.hint}" if finding.hint else finding.text


def _attribute(text: str) -> str:
    # Names come from other people's wheels, and a test report must stay readable.
    return '"{}"'.format(_NOT_XML.sub("\ufffd", text).translate(_ESCAPED))
