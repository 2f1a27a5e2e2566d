from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import _parser, main, whole_parser
from archsplit.cli.verbs import VERB_GROUPS, VERBS
from archsplit.split.model import InstallDefaults
from child_processes import running
from in_process import run_archsplit as archsplit

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

TINYVEC = Path(__file__).parents[1] / "tinyvec"
ARCHSPLIT = str(Path(sys.executable).with_name("archsplit"))

pytestmark = pytest.mark.nvcc


@pytest.fixture(autouse=True)
def _small_headers(small_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(small_toolkit.root))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a compile cache for builds that are not about compiling."""
    return {"ARCHSPLIT_CACHE": "on", "ARCHSPLIT_CACHE_DIR": str(tmp_path_factory.mktemp("known"))}


def test_help_lists_verbs_in_groups() -> None:
    text = archsplit("--help").stdout
    assert text == archsplit("help").stdout
    listed = re.findall(r"^  ([a-z]+) +\S", text.partition("look into")[2], re.MULTILINE)
    assert listed == list(VERBS)
    assert len(re.findall(r"^[a-z ]+:$", text, re.MULTILINE)) == len(VERB_GROUPS) + 1


def test_exit_codes_have_a_page_and_a_topic_of_help() -> None:
    # The errors of modules that other verbs import would be among them.
    words = [ARCHSPLIT, "help", "exit-codes"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    codes = dict(re.findall(r"^ +(\d+) (\S.*)$", text, re.MULTILINE))
    assert set(map(int, codes)) == {0, *range(1, 19), *range(20, 28), 130, 141}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    assert dict(re.findall(r"^\| (\d+) \| (.*?) \|", page, re.MULTILINE)) == codes


def test_too_little_memory_is_an_error_with_a_code_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "big.so"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    command = f"ulimit -v 2000000; exec {shlex.quote(ARCHSPLIT)} inspect {shlex.quote(str(path))}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, f"can't read {path}" in done.stderr) == (27, True)


def test_a_memory_error_of_python_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: object) -> int:
        raise MemoryError(argv)

    monkeypatch.setattr("archsplit.cli.main._run", fail)
    assert main(["inspect", "x"]) == 27
    assert "too little memory" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_two_valid_examples(verb: str) -> None:
    text = archsplit("help", verb).stdout
    assert text == archsplit(verb, "--help").stdout
    examples = re.findall(r"^  archsplit (.*)$", text.partition("examples:")[2], re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example)
        assert words[0] == verb
        assert callable(_parser(words).parse_args(words).run)


def test_choices_of_split_match_its_records() -> None:
    arguments = _parser(["split"]).parse_args(["split", "a.whl", "--out", "o"])
    assert InstallDefaults(arguments.install) is InstallDefaults.CORE
    text = archsplit("help", "split").stdout
    assert f"--install {{{','.join(one.value for one in InstallDefaults)}}}" in text


def test_the_version_is_data_and_imports_no_verb() -> None:
    code = (
        "import sys; from archsplit.cli.main import main; assert main(['--version']) == 0\n"
        "from archsplit.cli.verbs import VERBS\n"
        "heavy = {'auditwheel', 'pydantic', 'rich', 'packaging', 'importlib.metadata'}\n"
        "heavy |= {f'archsplit.cli.{verb}' for verb in (*VERBS, 'engines')}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"archsplit \d\S*\n", done.stdout)
    module = subprocess.run(
        [sys.executable, "-m", "archsplit", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert module.stdout == done.stdout


def test_list_of_verbs_has_each_verbs_help() -> None:
    listed, full = (parser.format_help() for parser in (_parser([]), whole_parser()))
    assert listed == full


def test_help_of_a_verb_imports_no_slow_module() -> None:
    code = (
        "import sys; from archsplit.cli.main import main\n"
        "heavy = {'auditwheel', 'packaging', 'pydantic', 'rich', 'elftools'}\n"
        "for verb in sys.argv[1:]:\n"
        "    assert main([verb, '--help']) == 0\n"
        "    assert not heavy & sys.modules.keys(), (verb, heavy & sys.modules.keys())"
    )
    words = [sys.executable, "-c", code, *VERBS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^usage: archsplit (\w+)", done.stdout, re.MULTILINE) == list(VERBS)


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["split", "--help"], ["inspect", sys.executable]]
)
def test_closed_reader_is_not_an_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    # Without a buffer, argparse meets the closed pipe first, and is silent about it.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [ARCHSPLIT, *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_give_success(streams: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(ARCHSPLIT)} inspect {shlex.quote(sys.executable)} {streams}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["help", "exit-codes"], ["help"], ["slim", "-h"], ["--version"], ["inspect", sys.executable]],
)
def test_full_disk_for_the_output_gives_no_traceback(arguments: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [ARCHSPLIT, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
        )
    assert done.returncode == 11
    assert done.stderr == ("error: no space left while writing the output\nhint: free some space\n")


def test_no_verb_is_a_usage_error() -> None:
    done = archsplit()
    assert done.returncode == 2
    assert "usage: archsplit" in done.stderr
    assert "  inspect " in done.stderr, "the verbs, for users who type only the name"
    assert done.stderr.endswith("hint: see: archsplit help\n")


@pytest.mark.parametrize("jobs", ["0", "-3", "many"])
def test_jobs_must_be_a_positive_number(jobs: str) -> None:
    assert archsplit("plan", TINYVEC, "--jobs", jobs).returncode == 2


def test_invalid_size_is_reported_without_a_traceback(recipe: Path) -> None:
    done = archsplit("build", recipe, "--out", recipe / "dist", "--memory", "much")
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'much' is not a size")


def test_a_plan_is_printed_and_nothing_is_built(recipe: Path) -> None:
    before = sorted(recipe.rglob("*"))
    done = archsplit("plan", recipe, "--targets", "sm_90")
    assert done.returncode == 0
    assert "tinyvec 1.2.3" in done.stdout
    assert "ptxas -arch=sm_90" in done.stdout
    assert "tagged as auditwheel says: tinyvec, tinyvec-sm90" in done.stdout
    assert "ptxas -arch=sm_80" not in done.stdout
    assert "$BUILD" in done.stdout
    assert sorted(recipe.rglob("*")) == before


def test_a_plan_as_json_is_the_same_each_time(recipe: Path) -> None:
    first = archsplit("plan", recipe, "--json").stdout
    # Another process has another order of sets.
    words = [ARCHSPLIT, "plan", str(recipe), "--json"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == first
    plan = json.loads(first)
    assert plan["schema"] == 1
    names = [step["name"] for step in plan["steps"]]
    assert plan["wheels"] == ["tinyvec", "tinyvec-sm80", "tinyvec-sm90", "tinyvec-compute90"]
    assert "tinyvec_add;" in plan["texts"]["$BUILD/exports.map"]
    # Steps that read a source come first: a missing header shows at once. The host object that is
    # checked is one of them, and starts before the others.
    assert names[0] == "000-add/00 preprocess"
    assert names.index("001-name/00 host compile") < names.index("000-add/01 cudafe++")
    assert "000-add/01 cudafe++" in names


def test_build_prints_only_json_on_standard_output(
    recipe: Path, tmp_path: Path, known: dict[str, str]
) -> None:
    words = ("build", recipe, "--out", tmp_path / "out", "--targets", "sm_80")
    done = archsplit(*words, "--json", environment=known)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {wheel["role"] for wheel in report["wheels"]} == {"core", "plugin"}
    assert "preprocess (1 of " in done.stderr
    quiet = archsplit(*words, "--quiet", environment=known)
    assert quiet.stderr == ""
    assert "tinyvec_sm80-1.2.3" in quiet.stdout


def test_all_faults_of_a_recipe_are_reported_at_once(recipe: Path, tmp_path: Path) -> None:
    path = recipe / "recipe.toml"
    text = path.read_text()
    for right, wrong in (
        ('version = "1.2.3"', 'version = "one"'),
        ('license = "Apache-2.0"', 'licence = "Apache-2.0"'),
        ('"src/*.cu"', '"sources/*.cu"'),
        ('"sm_80"', '"sm_80", "sm80"'),
        ('"tinyvec_add"', '"tinyvec_subtract"'),
    ):
        text = text.replace(right, wrong)
    path.write_text(text)
    done = archsplit("build", recipe, "--out", tmp_path / "out")
    assert done.returncode == 3
    for expected in (
        "recipe.toml:5",
        "recipe.toml:7",
        "did you mean license",
        "sources/*.cu",
        "sm80",
        "tinyvec_subtract",
    ):
        assert expected in done.stderr
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("build", "/nowhere", "--out", "out"), 14, "no such file or folder: /nowhere"),
        (("build", TINYVEC, "--out", "/dev/null/x"), 10, "can't write"),
        (("build", TINYVEC, "--out", "out", "--nvcc", "/no/nvcc"), 4, "--nvcc: /no/nvcc: no such"),
        (("plan", TINYVEC, "--targets", "sm_9"), 5, "sm_9"),
        (("verify", "/nowhere"), 14, "no such folder: /nowhere"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    done = archsplit(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr


def test_missing_host_compiler_is_reported_with_a_hint(recipe: Path, tmp_path: Path) -> None:
    done = archsplit("build", recipe, "--out", tmp_path / "out", environment={"PATH": "/nowhere"})
    assert done.returncode == 4
    assert "apt-get install g++" in done.stderr


def test_invalid_source_date_epoch_is_refused(recipe: Path, tmp_path: Path) -> None:
    done = archsplit(
        "build", recipe, "--out", tmp_path / "out", environment={"SOURCE_DATE_EPOCH": "now"}
    )
    assert done.returncode == 2
    assert "SOURCE_DATE_EPOCH" in done.stderr


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_leaves_nothing(
    recipe: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    before = snapshot(recipe)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with running(
        [ARCHSPLIT, "build", str(recipe), "--out", str(tmp_path / "out"), "--jobs", "1"],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "(3 of " in line:
                break
        process.send_signal(signum)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "interrupted; no partial output was left" in rest
    assert not (tmp_path / "out").exists()
    assert os.listdir(temporary) == []
    assert snapshot(recipe) == before


KILLED = """
import os, signal, sys
from archsplit.cli.main import main
write = sys.stderr.write

def watched(text):
    write(text)
    if text.startswith("Wrote ") and "(1 of " in text:
        os.kill(os.getpid(), signal.SIGKILL)

sys.stderr.write = watched
sys.exit(main(sys.argv[1:]))
"""
"""Kills itself as it begins with the wheels; seen from outside, it might have ended by then."""


def test_a_killed_build_leaves_no_wheel_and_the_next_one_succeeds(
    recipe: Path, tmp_path: Path, known: dict[str, str]
) -> None:
    words = ("build", str(recipe), "--out", str(tmp_path / "out"), "--targets", "sm_80")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *words],
        check=False,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **known},
    )
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "out").glob("*.whl")) == []
    done = archsplit(*words, environment=known)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("*.whl"))) == 2


@pytest.mark.parametrize("where", ["out", "tmp"])
def test_full_disk_is_reported_as_the_reason(recipe: Path, tmp_path: Path, where: str) -> None:
    # A file system of 300 KB, in a mount namespace of its own, is the real thing.
    script = (
        'mount -t tmpfs -o size=300k tmpfs "$1" || exit 77; shift;'
        ' TMPDIR="$1" "$2" build "$3" --out "$4"; code=$?; ls "$4"; exit $code'
    )
    for name in ("out", "tmp"):
        (tmp_path / name).mkdir()
    arguments = [tmp_path / where, tmp_path / "tmp", ARCHSPLIT, recipe, tmp_path / "out"]
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in {1, 77} and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"this system allows no mounts: {done.stderr}")
    assert done.returncode == 11, done.stderr
    # Some tools report another error when their file can't be written; the hint has the reason.
    assert "no space left" in done.stderr.lower() or "the disk is full" in done.stderr
    assert done.stdout == ""


def test_early_closed_pipe_is_not_an_error() -> None:
    script = f"{ARCHSPLIT} plan {TINYVEC} 2>&1 | head -1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout


def test_a_terminal_gets_a_live_display(
    recipe: Path, tmp_path: Path, known: dict[str, str]
) -> None:
    script = f"{shlex.quote(ARCHSPLIT)} build {recipe} --out {tmp_path / 'out'} --targets sm_80"
    done = subprocess.run(
        ["script", "-qec", script, "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
        # A system's user may have a shell that refuses to run.
        env={**os.environ, **known, "SHELL": "/bin/sh"},
    )
    assert done.returncode == 0, done.stdout
    assert "\x1b[" in done.stdout
    assert "(1 of " not in done.stdout
    # The display would draw over a table that is printed before its end.
    assert 0 < done.stdout.rindex("Checked all wheels in ") < done.stdout.index("tinyvec 1.2.3 in ")
