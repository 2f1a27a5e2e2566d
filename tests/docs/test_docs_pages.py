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
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import yaml
from markdown_it import MarkdownIt
from prepared import DOCS, FAT, MAKERS, Desk

from free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from markdown_it.token import Token

    from archsplit.nvcc.toolkit import Toolkit

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
SHOWN = {"{options}", "{image}", "{include}", "{literalinclude}", "{toctree}"}
FILES = {"toml", "json", "python", "c", "ini", "yaml", "dockerfile"}
LANGUAGES = {"sh", "output", "text", *FILES, *SHOWN}
"""``sh`` is run, and ``output`` compared with what the commands before it print; ``text`` is a
drawing or a form; the others are contents of files."""


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
SPLIT_SITES = {"tutorial/first-split": "try", "reference/slim": "app-3"}
"""The environments into which pages install a core and a pack, beside an index's fat wheel."""
EVERY_INSTALLER = "tutorial/first-split"
"""The page that all users read is always run with each installer; others in the stress session."""
LONG_PAGES = {
    *("reference/c-interface", "reference/loader", "explanation/architecture", "faq"),
    *("how-to/projects", "how-to/ci", "how-to/mirror", "how-to/publish", "reference/slim"),
}
"""Pages whose subjects have tests of their own: the loader, nightlies, build systems, publish."""
WITH_INSTALLERS = [
    pytest.param(
        page,
        installer,
        id=f"{name(page)}-{installer}",
        marks=[pytest.mark.stress]
        if name(page) in LONG_PAGES or (installer != "ensurepip" and name(page) != EVERY_INSTALLER)
        else [],
    )
    for page in RUNNABLE
    for installer in ("ensurepip", *(["pip", "uv"] if name(page) in SPLIT_SITES else []))
]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def desk(
    tmp_path: Path,
    made: Path,
    small_toolkit: Toolkit,
    downloads: Path,
    request: pytest.FixtureRequest,
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
        toolkit=small_toolkit,
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
    steps = list(shown_steps(page))
    # The echo separates what the blocks print.
    script = "\n".join(f"{lines}\necho '{_END_OF_BLOCK}'" for lines, _ in steps)
    printed = run_prepared(prepared(page), script, desk).split(f"{_END_OF_BLOCK}\n")
    for (_, shown), actual in zip(steps, printed, strict=False):
        if shown is not None:
            compare_shown(shown, actual, exact=desk.real)
    if name(page) in SPLIT_SITES:
        check_split_site(desk.folder / SPLIT_SITES[name(page)])


_END_OF_BLOCK = "-- end of a block of the page --"


def shown_steps(page: Path) -> Iterator[tuple[str, str | None]]:
    """Yield each block of commands with the output that the page shows for it."""
    blocks = [token for token in fences(page) if token.info.strip() in {"sh", "output"}]
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.info.strip() == "sh":
            is_shown = following is not None and following.info.strip() == "output"
            yield block.content, following.content if following and is_shown else None


def compare_shown(shown: str, actual: str, *, exact: bool) -> None:
    """Compare a page's output with the one of its commands.

    The lines of the page are printed in this order; where the page has ``...``, there may be
    others. With the real wheel a line is equal but for seconds and digests. With the small one that
    stands in for it, sizes, counts, targets, compression and bars differ, and similar lines lack.
    """
    form = exact_form if exact else rough_form
    lines = [form(line) for line in actual.splitlines()]
    at, gap = -1, True
    for line in shown.splitlines():
        if line.strip() == "...":
            gap = True
            continue
        wanted = form(line)
        is_repeated = not exact and at >= 0 and lines[at] == wanted
        if not is_repeated:
            places = [place for place in range(at + 1, len(lines)) if lines[place] == wanted]
            assert places, f"the page shows\n{line}\nbut the commands print\n{actual}"
            if exact and not gap:
                assert places[0] == at + 1, f"the page leaves out a line before\n{line}\n{actual}"
            at = places[0]
        gap = False


def exact_form(line: str) -> str:
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "DIGEST", line.rstrip())
    return re.sub(r"\d+\.\d+ s\b", "# s", text)


def rough_form(line: str) -> str:
    text = re.sub("[█▉▊▋▌▍▎▏]+", "", exact_form(line))
    text = re.sub(r"\b(none|lz4|zstd)\b", "packed", text)
    text = re.sub(r"\d+(\.\d+)*", "#", text)
    text = re.sub(r"\b[kMG]?B\b", "B", re.sub("#(, #)+", "#", text))
    # One image, and two images.
    return " ".join(re.sub(r"\b(\w+?)s?\b", r"\1", text).split())


@pytest.mark.parametrize(
    ("shown", "is_equal"),
    [
        ("a 1.5 MB\nb", True),
        ("a 2.5 MB\nb", False),
        ("a 1.5 MB\n...\nc (0.7 s)", True),
        ("a 1.5 MB\nc (0.7 s)", False),
        ("b\na 1.5 MB", False),
    ],
)
def test_shown_output_is_the_output(shown: str, *, is_equal: bool) -> None:
    actual = "a 1.5 MB\nb\nc (0.1 s)\n"
    with contextlib.nullcontext() if is_equal else pytest.raises(AssertionError):
        compare_shown(shown, actual, exact=True)


@pytest.mark.parametrize(
    ("shown", "is_equal"),
    [
        ("sm_50  ███  9 MB\nsm_60  █  12 kB\ntogether 3 MB", True),
        ("sm_50  ███  9 MB\nin all 3 MB", False),
        ("together 3 MB\nsm_50  ███  9 MB", False),
    ],
)
def test_a_small_wheel_prints_the_same_words(shown: str, *, is_equal: bool) -> None:
    actual = "sm_80 ██ 1 kB\ntogether 2 kB\n"
    with contextlib.nullcontext() if is_equal else pytest.raises(AssertionError):
        compare_shown(shown, actual, exact=False)


def test_readme_equals_the_tutorial() -> None:
    """The tutorial's commands are run, and their output is compared."""
    text = (ROOT / "README.md").read_text()
    part = text.partition("\n## Try it\n")[2].partition("\n## ")[0]
    tutorial = (DOCS / "tutorial" / "first-split.md").read_text()
    blocks = [token for token in MarkdownIt().parse(part) if token.type == "fence"]
    assert {block.info for block in blocks} == {"sh", "output"}
    assert [block.content for block in blocks if block.content not in tutorial] == []


def test_pictures_are_small_and_load_nothing() -> None:
    folder = DOCS / "images"
    assert sum(path.stat().st_size for path in folder.glob("*.png")) <= 600_000
    drawings = {path.name: path.read_text() for path in folder.glob("*.svg")}
    for title, text in drawings.items():
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg", title
        assert re.findall(r"(?:href|src)=|url\((?!#)|<script|/tmp/", text) == [], title
    for verb in ("inspect", "split"):
        recording = drawings[f"terminal-{verb}.svg"]
        assert f"archsplit {verb} " in recording
        lines = re.findall(r'<text[^>]* textLength="(\d+)"[^>]*>(.*?)</text>', recording)
        letters = [len(unescape(re.sub("<[^>]*>", "", text))) for _, text in lines]
        # A line of another length than its letters would be drawn too wide or too narrow.
        lengths = [int(length) for length, _ in lines]
        assert lengths == pytest.approx([7.8 * count for count in letters], abs=1)


def test_links_of_the_readme_are_absolute() -> None:
    """An index shows the text, and does not have the files beside it."""
    project = (ROOT / "pyproject.toml").read_text()
    home = re.findall(r'^Homepage = "https://github.com/(.*)"$', project, re.MULTILINE)[0]
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(targets) > 5
    own = (
        rf"https://(?:github.com/{home}/blob|raw.githubusercontent.com/{home})/main/([^#]+)(?:#.*)?"
    )
    for target in targets:
        assert target.startswith("https://")
        path = re.fullmatch(own, target)
        assert path is None or (ROOT / path[1]).exists(), target


def test_referenced_pages_exist() -> None:
    named = re.compile(r"(?:docs/|readthedocs\.io/en/latest/)([\w/-]+)\.(?:md|html)(?:#([\w-]+))?")
    folders = ("splitter", "plugin_loader", "tests", "tools", "bench", "recipes", ".github")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    texts = {
        path: path.read_text()
        for path in [*paths, *ROOT.glob("*.*")]
        if path.suffix in {".py", ".md", ".toml", ".h", ".c", ".yml", ".sbatch"}
    }
    found = {(path, *match) for path, text in texts.items() for match in named.findall(text)}
    assert len(found) > 10
    broken = [
        (str(path), page, anchor)
        for path, page, anchor in sorted(found)
        if not (DOCS / f"{page}.md").exists() or (anchor and plain(anchor) not in headings(page))
    ]
    assert broken == []


def headings(page: str) -> set[str]:
    text = (DOCS / f"{page}.md").read_text()
    return {plain(title) for title in re.findall("^#+ (.*)$", text, re.MULTILINE)}


def plain(title: str) -> str:
    return re.sub("[^a-z0-9]", "", title.lower())


def check_split_site(environment: Path) -> None:
    """The core and its pack are there, and the fat wheel isn't."""
    (packages,) = environment.glob("lib/python*/site-packages")
    core, pack = "xgboost/_archsplit/core.pack", "xgboost_plugins/cuda/cc90/device.pack"
    assert [name for name in (core, pack) if not (packages / name).exists()] == []
    assert {path.name for path in packages.glob("xgboost*.dist-info")} == {
        "xgboost-3.2.0.dist-info",
        "xgboost_cc90-3.2.0.dist-info",
    }


def run_prepared(makers: list[str], script: str, desk: Desk) -> str:
    for each in makers:
        MAKERS[each](desk)
    with contextlib.ExitStack() as stack:
        for words in desk.beside:
            child = stack.enter_context(subprocess.Popen(words))
            stack.callback(child.kill)
        return desk.run(script)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_has_no_unrun_command_fence(page: Path) -> None:
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


@pytest.mark.download
@pytest.mark.nvcc
@pytest.mark.parametrize("desk", [True], indirect=True, ids=["real"])
def test_a_torch_extension_is_built_as_its_page_shows(desk: Desk) -> None:
    project = DOCS / "how-to" / "projects" / "torch"
    shutil.copytree(project, desk.folder, dirs_exist_ok=True)
    run_prepared(["venv", "torch"], (project / "build.sh").read_text(), desk)


UV = """
archsplit split {fat} --out out
archsplit index split --add out
python -m http.server 8000 --directory split &
until curl -s -o /dev/null http://localhost:8000/; do sleep 0.1; done
uv pip install --target named --extra-index-url http://localhost:8000/ "xgboost[cc90]==3.2.0"
uv pip install --target other --default-index http://localhost:8000/ \\
    --extra-index-url "$UV_DEFAULT_INDEX" "xgboost[cc90]==3.2.0"
unset UV_NO_CONFIG
uv sync --project project --no-install-project
"""


@pytest.mark.nvcc
def test_uv_takes_the_split_from_the_pages_index(desk: Desk) -> None:
    page = DOCS / "explanation" / "limits.md"
    (settings,) = (token.content for token in fences(page) if token.info == "toml")
    settings = settings.replace(
        "https://wheels.example.org/simple/", f"http://localhost:{desk.port}/"
    )
    (desk.folder / "project").mkdir()
    (desk.folder / "project" / "pyproject.toml").write_text(settings)
    run_prepared(["venv", "fat wheel"], UV.format(fat=desk.index / FAT), desk)
    check_split_site(desk.folder / "project" / ".venv")
    found = {
        name: sorted(path.name for path in (desk.folder / name).glob("*.dist-info"))
        for name in ("named", "other")
    }
    fat, pack = "xgboost-3.2.0.dist-info", "xgboost_cc90-3.2.0.dist-info"
    assert found == {"named": [fat, pack], "other": [fat]}


def test_the_options_of_each_verb_are_on_one_page() -> None:
    from archsplit.cli.verbs import VERBS  # noqa: PLC0415 (the one list of them)

    shown = [
        token.info.split()[1]
        for page in PAGES
        for token in fences(page)
        if token.info.startswith("{options}")
    ]
    assert set(shown) == set(VERBS)


def test_all_verbs_are_in_the_manual() -> None:
    from archsplit.cli.verbs import VERBS  # noqa: PLC0415 (the one list of them)

    text = "\n".join(commands(page) for page in [*PAGES, ROOT / "README.md"])
    # Builds on other machines can't run here; their lines are parsed: test_documented_lines.py.
    text += (DOCS / "how-to" / "remote-builds.md").read_text()
    assert [verb for verb in VERBS if f"archsplit {verb}" not in text] == []


def test_exit_codes_match_the_command() -> None:
    command = (str(Path(sys.executable).with_name("archsplit")), "help", "exit-codes")
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = {
        f"| {code} | {what} |" for code, what in re.findall(r"^ +(\d+) (\S.*)$", text, re.MULTILINE)
    }
    page = (DOCS / "reference" / "cli.md").read_text().splitlines()
    assert rows
    assert rows == {line for line in page if re.match(r"\| \d", line)}


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Sphinx 9, whose warnings count, needs Python 3.11"
)
def test_pages_build_without_a_warning(tmp_path: Path) -> None:
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*sphinx, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_workflow_passes_actionlint() -> None:
    """By its maintained fork; the original's checks are its profile ``correctness``."""
    workflows = sorted([*DOCS.rglob("workflows/*.yml"), *ROOT.glob(".github/workflows/*.yml")])
    workflows.append(ROOT / "action.yml")
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
    output = tmp_path / "output"
    runner = {
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
    }
    for step in checks:
        given = {
            name: re.sub(r"\$\{\{ inputs\.(\S+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step["env"].items()
        }
        environment = {**os.environ, **runner, **given}
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert "Size of releases" in summary.read_text()
    outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert outputs["size"] == str(wheel.stat().st_size)
    assert json.loads(Path(outputs["report"]).read_text())["size"] == wheel.stat().st_size
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1


def test_workflows_use_only_existing_inputs() -> None:
    """The linter doesn't know the inputs of an action in another repository."""
    inputs: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    given = [
        step["with"]
        for path in DOCS.rglob("workflows/*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("archsplit/archsplit@")
    ]
    required = {name for name, one in inputs.items() if one.get("required")}
    assert given
    assert all(required <= set(one) <= set(inputs) for one in given)


def workflow_jobs() -> Mapping[str, Any]:
    text = (DOCS / "how-to/ci/.github/workflows/release.yml").read_text()
    jobs: Mapping[str, Any] = yaml.safe_load(text)["jobs"]
    return jobs


def test_workflow_installs_its_commands() -> None:
    """On a machine that has nothing: the tests' own has every program."""
    steps = {
        job: "\n".join(step.get("run", "") for step in found["steps"])
        for job, found in workflow_jobs().items()
    }
    assert '"archsplit[nvcc]"' in steps["build"]
    assert '"archsplit[publish]" uv' in steps["publish"]
    assert "verify --release dist" in steps["publish"]


@pytest.mark.stress  # The page's commands always run, and the commands of the page on publishing.
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
    shutil.copytree(DOCS / "how-to" / "projects" / "setuptools", folder)
    shutil.copytree(DOCS / "how-to" / "ci", folder, dirs_exist_ok=True)
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
