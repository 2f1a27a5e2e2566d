"""Every command of the manual, run as a reader would: page by page, from top to bottom."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from markdown_it import MarkdownIt
from prepared import DOCS, MAKERS, ONLY_REAL, Desk

from free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from markdown_it.token import Token

    from archsplit.nvcc.toolkit import Toolkit

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
SHOWN = {"{eval-rst}", "{image}", "{include}", "{literalinclude}", "{toctree}"}
FILES = {"toml", "json", "python", "c", "ini", "yaml", "dockerfile", "nginx"}
LANGUAGES = {"sh", "text", *FILES, *SHOWN}
"""``sh`` is run; ``text`` is a program's output or a drawing; the others are contents of files."""


def fences(page: Path) -> Iterator[Token]:
    tokens = MarkdownIt().parse(page.read_text())
    return (token for token in tokens if token.type == "fence")


def commands(page: Path) -> str:
    return "\n".join(token.content for token in fences(page) if token.info.strip() == "sh")


def prepared(page: Path) -> list[str]:
    found = re.match(r"<!-- test: (.*) -->\n", page.read_text())
    return [] if found is None else [name.strip() for name in found[1].split(",")]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


RUNNABLE = [page for page in PAGES if commands(page)]
SMALL = [page for page in RUNNABLE if ONLY_REAL.isdisjoint(prepared(page))]
SPLIT_SITES = {"tutorial/first-split": "try", "how-to/docker": "app-3"}
"""The environments into which pages install a core and a pack, beside an index's fat wheel."""
WITH_INSTALLERS = [
    pytest.param(page, installer, id=f"{name(page)}-{installer}")
    for page in SMALL
    for installer in ("ensurepip", *(["pip", "uv"] if name(page) in SPLIT_SITES else []))
]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def desk(
    tmp_path: Path, made: Path, toolkit: Toolkit, downloads: Path, request: pytest.FixtureRequest
) -> Desk:
    folder, index = tmp_path / "desk", tmp_path / "index"
    folder.mkdir()
    index.mkdir()
    real: bool = getattr(request, "param", False)
    return Desk(
        folder=folder,
        index=index,
        made=made,
        cache=made / "cache",
        toolkit=toolkit,
        real=real,
        downloads=downloads,
        port=free_port(),
    )


def run(page: Path, desk: Desk) -> None:
    if "archsplit cache" in commands(page):
        # What it says of the cache is said of one that is empty at first.
        desk = replace(desk, cache=desk.folder.parent / "cache")
    project = page.with_suffix("")
    if project.is_dir():
        shutil.copytree(project, desk.folder, dirs_exist_ok=True)
    run_prepared(prepared(page), commands(page), desk)
    if name(page) in SPLIT_SITES:
        check_split_site(desk.folder / SPLIT_SITES[name(page)])


def check_split_site(environment: Path) -> None:
    """The core and its pack are there, and the fat wheel isn't."""
    (packages,) = environment.glob("lib/python*/site-packages")
    core, pack = "xgboost/_archsplit/core.pack", "xgboost_plugins/cuda/cc90/device.pack"
    assert [name for name in (core, pack) if not (packages / name).exists()] == []
    assert {path.name for path in packages.glob("xgboost*.dist-info")} == {
        "xgboost-3.2.0.dist-info",
        "xgboost_cc90-3.2.0.dist-info",
    }


def run_prepared(makers: list[str], script: str, desk: Desk) -> None:
    for each in makers:
        MAKERS[each](desk)
    with contextlib.ExitStack() as stack:
        for words in desk.beside:
            child = stack.enter_context(subprocess.Popen(words))
            stack.callback(child.kill)
        desk.run(script)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_fence_that_might_be_a_command_and_is_not_run(page: Path) -> None:
    unknown = [token.info for token in fences(page) if not is_known(token)]
    assert not unknown


def is_known(token: Token) -> bool:
    words = token.info.split()
    return bool(words) and words[0] in LANGUAGES


@pytest.mark.nvcc
@pytest.mark.parametrize(("page", "installer"), WITH_INSTALLERS)
def test_commands_run(page: Path, installer: str, desk: Desk) -> None:
    run(page, replace(desk, installer=installer))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_command_may_fail_unseen(page: Path) -> None:
    assert "|| true" not in commands(page)


@pytest.mark.download
@pytest.mark.nvcc
@pytest.mark.parametrize("desk", [True], indirect=True, ids=["real"])
@pytest.mark.parametrize("page", [page for page in RUNNABLE if prepared(page)], ids=name)
def test_commands_run_on_wheels_of_the_index(page: Path, desk: Desk) -> None:
    run(page, desk)


def test_all_verbs_are_in_the_manual() -> None:
    from archsplit.cli.verbs import VERBS  # noqa: PLC0415 (the one list of them)

    text = "\n".join(commands(page) for page in [*PAGES, ROOT / "README.md"])
    assert [verb for verb in VERBS if f"archsplit {verb}" not in text] == []


def test_the_exit_codes_are_those_of_the_command() -> None:
    command = (str(Path(sys.executable).with_name("archsplit")), "help", "exit-codes")
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = {
        f"| {code} | {what} |" for code, what in re.findall(r"^ +(\d+) (\S.*)$", text, re.MULTILINE)
    }
    page = (DOCS / "reference" / "exit-codes.md").read_text().splitlines()
    assert rows
    assert rows == {line for line in page if re.match(r"\| \d", line)}


def test_pages_build_without_a_warning(tmp_path: Path) -> None:
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*sphinx, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_workflow_passes_actionlint() -> None:
    """By its maintained fork; the original's checks are its profile ``correctness``."""
    workflows = sorted([*DOCS.rglob("workflows/*.yml"), *ROOT.glob(".github/workflows/*.yml")])
    lint = str(Path(sys.executable).with_name("jactionlint"))
    command = [lint, "--profile", "correctness", "--no-hints", *map(str, workflows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert workflows
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scripts_of_the_action_run(tmp_path: Path) -> None:
    """With the tests' own archsplit in the place where the first step installs one."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, *checks = action["runs"]["steps"]
    assert "pip" in install["run"]
    assert set(action["inputs"]) == {"wheel", "limits", "log", "max-growth", "version"}
    tools = tmp_path / "archsplit" / "bin"
    tools.mkdir(parents=True)
    (tools / "archsplit").symlink_to(Path(sys.executable).with_name("archsplit"))
    wheel = tmp_path / "a b" / "ab-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "")
    inputs = {"wheel": str(wheel), "limits": "--budget 1MB", "log": "log.jsonl", "max-growth": "5%"}
    summary = tmp_path / "summary.md"
    runner = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    for step in checks:
        given = {
            name: re.sub(r"\$\{\{ inputs\.(\S+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step["env"].items()
        }
        environment = {**os.environ, **runner, **given}
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert "Size of releases" in summary.read_text()
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1


def workflow_jobs() -> Mapping[str, Any]:
    text = (DOCS / "how-to/github-actions/.github/workflows/release.yml").read_text()
    jobs: Mapping[str, Any] = yaml.safe_load(text)["jobs"]
    return jobs


def test_the_workflow_installs_what_its_commands_need() -> None:
    """On a machine that has nothing: the tests' own has every program."""
    steps = {
        job: "\n".join(step.get("run", "") for step in found["steps"])
        for job, found in workflow_jobs().items()
    }
    assert '"archsplit[nvcc]"' in steps["build"]
    assert '"archsplit[publish]" uv' in steps["publish"]
    assert "verify --release dist" in steps["publish"]


@pytest.mark.nvcc
def test_the_commands_of_the_workflow_run(desk: Desk) -> None:
    """Built target by target, gathered, checked and published, as its jobs would."""
    jobs = workflow_jobs()
    build, publish = (
        [step["run"] for step in jobs[job]["steps"] if "run" in step][-count:]
        for job, count in (("build", 1), ("publish", 3))
    )
    lines = ["export SOURCE_DATE_EPOCH=1700000000", "mkdir parts"]
    for target in ("core", "sm_80", "sm_90", "compute_90"):
        lines += [f"export TARGET={target}", *build, f"mv dist parts/wheels-{target}"]
    run_prepared(["venv", "recipe", "index"], "\n".join([*lines, *publish]), desk)


OPTIONS = """
import sys, json
from pathlib import Path
from cibuildwheel.architecture import Architecture
from cibuildwheel.options import CommandLineArguments, compute_options
arguments = CommandLineArguments.defaults()
arguments.config_file = "cibuildwheel.toml"
arguments.platform = "linux"
found = compute_options("linux", arguments, {"SOURCE_DATE_EPOCH": "1700000000"})
one = found.build_options("cp312-manylinux_aarch64")
print(json.dumps({
    "before": one.before_all,
    "repair": one.repair_command,
    "images": one.manylinux_images,
    "environment": one.environment.as_dictionary({"PATH": "/bin"}),
}))
"""


def test_cibuildwheel_reads_its_configuration(tmp_path: Path) -> None:
    """By its own parser; its containers can't be had here."""
    pytest.importorskip("cibuildwheel", reason="cibuildwheel needs Python 3.11")
    folder = tmp_path / "project"
    shutil.copytree(DOCS / "how-to" / "setuptools", folder)
    shutil.copytree(DOCS / "how-to" / "cibuildwheel", folder, dirs_exist_ok=True)
    archs = ("--print-build-identifiers", "--archs", "x86_64,aarch64")
    options = ("--platform", "linux", "--config-file", "cibuildwheel.toml")
    listed = subprocess.run(
        [sys.executable, "-m", "cibuildwheel", *options, *archs],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(listed.stdout.split()) == {
        f"cp3{minor}-manylinux_{machine}"
        for minor in range(10, 15)
        for machine in ("x86_64", "aarch64")
    }, listed.stderr
    read = subprocess.run(
        [sys.executable, "-c", OPTIONS], cwd=folder, capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    found = json.loads(read.stdout)
    assert "cuda-nvcc-13-0" in str(found["before"])
    assert "auditwheel repair --exclude libcuda.so.1" in str(found["repair"])
    assert "manylinux_2_28" in str(found["images"]["aarch64"])
    assert found["environment"]["PATH"] == "/usr/local/cuda/bin:/bin"
    assert found["environment"]["NVCC"] == "archsplit-nvcc"
