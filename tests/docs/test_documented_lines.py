"""Command lines of the manual: archsplit's own parser reads each of them.

Some can't run in a test, and some pages run only in the stress session.
"""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from archsplit.cli.main import whole_parser

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["ci.md", "remote-builds.md"]
TEXT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"\$\{\w+:\+(.*?)\}")


def archsplit_lines(script: str) -> list[list[str]]:
    """Return the words behind ``archsplit`` of each command of a shell script."""
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        # The form that adds words only if a variable is set: with them.
        words = shlex.split(SHELL.sub(r"\1", line), comments=True)
        # Up to the next command, or the file of the output; a verb's own options begin behind it.
        own = list(takewhile(lambda word: word not in {">", "|", "&&", "||", "&"}, words))
        if own[:1] == ["archsplit"] and own[1:] and not own[1].startswith("--"):
            found.append([word for word in own[1:] if word != "…"])
    return found


def page_lines(page: str) -> list[list[str]]:
    text = (DOCS / "how-to" / page).read_text()
    return [words for fence in TEXT.findall(text) for words in archsplit_lines(fence)]


def run_lines(page: Path) -> list[list[str]]:
    return [words for fence in RUN.findall(page.read_text()) for words in archsplit_lines(fence)]


def workflow_lines(path: Path) -> list[list[str]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    scripts = [step.get("run", "") for job in jobs for step in job["steps"]]
    return [words for script in scripts for words in archsplit_lines(script)]


LINES = [words for page in PAGES for words in page_lines(page)]
LINES += [words for page in sorted(DOCS.rglob("*.md")) for words in run_lines(page)]
LINES += [words for path in sorted(DOCS.rglob("workflows/*.yml")) for words in workflow_lines(path)]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_the_parser_knows_the_line(words: list[str]) -> None:
    # It ends the process for an unknown option.
    arguments = whole_parser().parse_args(words)
    assert callable(arguments.run)


def test_lines_for_farms_clusters_and_runners_are_among_them() -> None:
    farms = {words[words.index("--remote") + 1] for words in LINES if "--remote" in words}
    assert {farm.partition(":")[0] for farm in farms} == {"grpcs", "tls"}
    assert {words[0] for words in LINES} >= {"build", "gather", "publish", "remote"}
