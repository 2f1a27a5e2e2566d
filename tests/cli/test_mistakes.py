"""Mistakes that every user makes once, and the message that each gets."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from archsplit.cli import nvcc
from archsplit.cli.main import main
from archsplit.errors import ToolNotFoundError
from archsplit.wheels.filename import WheelName
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from handmade_samples import container, image
from in_process import run_archsplit

ARCHSPLIT = str(Path(sys.executable).with_name("archsplit"))
WINDOWS = "foo-1.0-py3-none-win_amd64.whl"
SOUND = "toyfat-1.0-py3-none-any.whl"
LOCKED = "nope-1.0-py3-none-any.whl"
DLL = "toyfat-1.0-py3-none-win_amd64.whl"
MACOS = "toyfat-1.0-py3-none-macosx_11_0_arm64.whl"
PIPE = "pipes/p-1-py3-none-any.whl"
INSIDE = "--site-packages env/lib/python3.12/site-packages"
LONG = "x" * 256
"""More bytes than a name may have: an error of the same kind as a folder without access."""
MISTAKES = [
    # words, exit code, message, hint
    ("splti", 2, "unknown command 'splti'", "did you mean split?"),
    ("help inspekt", 2, "unknown command 'inspekt'", "did you mean inspect?"),
    ("frobnicate", 2, "unknown command 'frobnicate'", "see: archsplit help"),
    ("split text.txt --ouput o", 2, "unknown option --ouput", "mean --out?"),
    ("cache stats --jsno", 2, "unknown option --jsno", "did you mean --json?"),
    ("--vresion", 2, "unknown option --vresion", "did you mean --version?"),
    ("--frobnicate", 2, "unknown option --frobnicate", "see: archsplit help"),
    ("split fat.whl --frob", 2, "unknown option --frob", "see: archsplit help split"),
    ("split fat.whl -x", 2, "missing: --out", "see: archsplit help split"),
    ("split fat.whl --out o -x 3", 2, "unknown option -x", "see: archsplit help"),
    ("init wheels more", 2, "unexpected argument more", "see: archsplit help"),
    ("split fat.whl --out", 2, "--out needs a value", "see: archsplit help split"),
    ("split fat.whl --out o --by targt", 2, "--by can't be 'targt'", "did you mean target?"),
    ("split fat.whl --out o --by gpu", 2, "--by can't be 'gpu'", "use capability or target"),
    ("inspect fat.whl --html fat.whl", 10, "isn't such a report", "name another file"),
    ("diff fat.whl fat.whl --sarif text.txt", 10, "replaced by --sarif", "name another file"),
    ("verify wheels --junit fat.whl", 10, "replaced by --junit", "name another file"),
    ("inspect fat.whl --summary fat.whl", 10, "of --summary, isn't text", "name another file"),
    ("cache export fat.whl", 10, "fat.whl isn't an export", "name another"),
    ("split fta.whl --out o --name a=b", 2, "--name: 'a=b' is not a project name", "use ASCII"),
    ("split fta.whl --out o --version zzz", 2, "--version: 'zzz' is not a version", "1.2.3rc1"),
    ("plan . --cuda 12.8", 2, "--cuda: '12.8' is not a whole number", "see: archsplit help plan"),
    ("plan . --jobs x", 2, "--jobs/-j: 'x' is not a number of 1 or more", "archsplit help plan"),
    ("split fat.whl", 2, "missing: --out", "see: archsplit help split"),
    ("cache sats", 2, "unknown command 'cache sats'", "did you mean stats?"),
    ("split fta.whl --out o", 14, "no such file: fta.whl", "did you mean fat.whl?"),
    ("slim lib/a.so --device 9.0", 14, "no such file: lib/a.so", ""),
    ("split wheels --out o", 14, "wheels is a folder, not a file", f"such as wheels/{WINDOWS}"),
    ("verify text.txt", 14, "text.txt is not a folder", "name the folder: ."),
    ("verify whels", 14, "no such folder: whels", "did you mean wheels?"),
    ("join whels --out o", 14, "no such folder: whels", "did you mean wheels?"),
    ("gather whels --out o", 14, "no such folder: whels", "did you mean wheels?"),
    ("inspect foo --site-packages env", 14, "env is an environment", INSIDE),
    ("diff foo bar --site-packages env", 14, "env is an environment", INSIDE),
    ("doctor --site-packages env --device 9.0", 14, "env is an environment", INSIDE),
    ("doctor foo --site-packages env", 2, "either a package or an", "doctor DIR/PACKAGE"),
    ("doctor", 2, "name either a package or an environment with", "doctor DIR/PACKAGE"),
    ("split text.txt --out o", 7, "neither a wheel nor a library: it begins", "a .whl or .so"),
    ("inspect text.txt", 7, "text.txt can't hold device code", "inspect a .so"),
    ("split https://x.org/f.so --out o", 2, "https://x.org/f.so is not the URL of a wheel", ""),
    ("inspect http://x.org/f.zip", 2, "f.zip is not the URL of a wheel", "download the file first"),
    (
        "split cupy-cuda12x --out o",
        14,
        "no such file or installed package",
        "pip download --no-deps cupy-cuda12x",
    ),
    (
        "inspect cupy-cuda12x",
        14,
        "no such file or installed package",
        "pip download --no-deps cupy-cuda12x",
    ),
    ("inspect REEDME.md", 14, "no such file: REEDME.md", ""),
    ("inspect cupy-cuda12x", 14, "no such file or installed package", "add --site-packages DIR"),
    ("inspect foo==2.9.0", 14, "the index has no wheel of foo==2.9.0", "pip config list"),
    ("slim pytest --device 9.0", 14, "is installed", "archsplit inspect pytest shows its device"),
    ("doctor cupy-cuda12x", 14, "cupy-cuda12x is not installed", "its folder: DIR/PACKAGE"),
    ("inspect fat.whl --device H10", 5, "unknown GPU 'H10'", "9.0, sm_90, H100"),
    ("inspect fat.whl --device 99.9", 5, "no GPU has the compute capability 99.9", "9.0, 10.0"),
    ("split fat.whl --out o --targets sm90x", 5, "unknown GPU 'sm90x'", "sm_90, H100"),
    ("inspect fat.whl --device RTX4099", 5, "unknown GPU 'RTX4099'", '"RTX 4090"'),
    (f"split {SOUND} --out text.txt", 10, "text.txt is a file, not a folder", "another folder"),
    ("index wheels --yank foo==1", 14, "wheels is not a package index", "--add WHEELS"),
    ("plan recpie.toml", 14, "no such file or folder: recpie.toml", ""),
    ("build whels --out o", 14, "no such file or folder: whels", "did you mean wheels?"),
    (
        "mirror txet.txt --device 9.0 --out o",
        14,
        "no such file or folder: txet.txt",
        "mean text.txt?",
    ),
    ("mirror wheels --device 9.0 --out o", 14, "wheels is a folder, not a", "name its wheels: whe"),
    ("mirror env --device 9.0 --out o", 14, "env is a folder, not a file", "requirements.txt or"),
    ("mirror foo==2.9 --device 9.0 --out o", 14, "foo==2.9 is not a file", "a requirements.txt"),
    ("inspect fat.whl --max-target 3", 2, "invalid limit for a target: '3'", "sm_90=30MB"),
    (
        "slim text.txt",
        2,
        "name one of --device GPU, --keep LIST or --drop LIST",
        "--device 9.0",
    ),
    (
        "remote check grpcs://farm --nvcc /no/nvcc",
        4,
        "--nvcc: /no/nvcc: no such file",
        "archsplit[nvcc]",
    ),
    ("split fat.whl --out o", 8, "fat.whl", ""),
    (f"slim wheels/{WINDOWS} --device 9.0", 8, WINDOWS, ""),
    (f"split {DLL} --out o", 17, f"{DLL} is for win_amd64: only Linux libraries", "any wheel"),
    (f"slim {MACOS} --device 9.0", 8, f"{MACOS} is for macosx_11_0_arm64, expected", "any wheel"),
    ("build wheels --out o", 14, "wheels has no recipe.toml", "archsplit init wheels writes one"),
    ("publish whels --repository testpypi", 14, "no such folder: whels", "mean wheels?"),
    ("install", 2, "missing: NAME|DIR|URL", "archsplit help install"),
    ("install xgboost --gpu H10", 5, "unknown GPU 'H10'", "9.0, sm_90, H100"),
    (f"slim {PIPE} --device 9.0 --out o", 14, f"{PIPE}: not a regular file", "copy it to a file"),
    (f"split {PIPE} --out o", 14, f"{PIPE}: not a regular file", "copy it to a file"),
    (
        "inspect wheels/nothing.so",
        14,
        "no such file: wheels/nothing.so",
        "see its folder: ls wheels",
    ),
    ("inspect a/b/c.so", 14, "no such file: a/b/c.so", "its folder is missing: a/b"),
    ("verify x/y", 14, "no such folder: x/y", "its folder is missing: x"),
    (f"init {LONG}", 14, "File name too long", "name another path"),
    (f"inspect fat.whl --html {LONG}", 14, "File name too long", "name another path"),
    ("init missing", 14, "no such folder: missing", "name the folder of the sources"),
    ("install xgboost --python /none", 14, "/none can't be run: ", "name a Python"),
    ("slim text.txt --device 9.0 --out o", 7, "text.txt is not a library", "slim takes .so"),
    ("install xgboost --find-links whels", 14, "no such folder: whels", "did you mean wheels?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "text.txt").write_text("some text\n")
    (folder / "wheels").mkdir()
    (folder / "env" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    for path in (folder / "fat.whl", folder / "wheels" / WINDOWS):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("foo/__init__.py", "")
    for name in (DLL, MACOS):
        write_wheel(folder / name, {"toyfat/x.dll": b"MZ"})
    write_wheel(folder / SOUND, {"toyfat/k.fatbin": container(image("sm_80"), image("sm_90"))})
    (folder / LOCKED).touch(mode=0)
    (folder / "pipes").mkdir()
    os.mkfifo(folder / PIPE)
    (folder / "nope").mkdir(mode=0)
    (folder / "ro").mkdir(mode=0o555)
    return folder


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    """A sound wheel of the project toyfat."""
    name = WheelName.parse(path.name)
    tag = f"py3-none-{'.'.join(name.platforms)}"
    own = {
        "METADATA": "Metadata-Version: 2.1\nName: toyfat\nVersion: 1.0\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    members = {**members, **{f"{name.dist_info}/{n}": t.encode() for n, t in own.items()}}
    with path.open("wb") as file:
        write_members(file, name, {each: pack(content) for each, content in members.items()})


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES]
)
def test_a_mistake_gets_its_message(
    folder: Path,
    words: str,
    code: int,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = sizes_and_times(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # In this process, which has imported all that a new one would import for each mistake.
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(words.split()))
    found, said = ended.value.code, capfd.readouterr()
    assert (found, said.out) == (code, ""), said.err
    text, _, last = said.err.partition("\nhint: ")
    assert text.startswith("error: ")
    assert message in text
    assert hint in last
    assert "Traceback" not in said.err
    assert sizes_and_times(folder) == before


def sizes_and_times(folder: Path) -> dict[Path, tuple[int, int]]:
    stats = {path: path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    return {path: (each.st_size, each.st_mtime_ns) for path, each in stats.items()}


@pytest.mark.parametrize("words", [["split", "fat.whl", "--out", ""], ["verify", ""]])
def test_empty_argument_is_refused(
    folder: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = sizes_and_times(folder)
    assert main(words) == 2
    assert capfd.readouterr().err == (
        "error: an argument is empty\nhint: is a variable of the shell unset?\n"
    )
    assert sizes_and_times(folder) == before


def run(
    folder: Path, *words: str, before: tuple[str, ...] = (), **environment: str
) -> tuple[int, str]:
    """Run archsplit, in a process behind the words ``before``; return its exit code and message."""
    if not before:
        done = run_archsplit(*words, cwd=folder, environment=environment)
        return done.returncode, done.stderr
    done = subprocess.run(
        [*before, ARCHSPLIT, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("inspect nope", 14, "can't read nope: Permission denied\nhint: see its permissions: ls"),
        ("inspect .", 14, "can't read ./nope: Permission denied"),
        (f"inspect {LOCKED}", 14, f"can't read {LOCKED}: Permission denied"),
        ("diff nope nope", 14, "can't read nope: Permission denied"),
        ("advise nope --gpus 9.0", 14, "can't read nope: Permission denied"),
        ("split nope/a.whl --out o", 14, "can't read nope/a.whl: Permission denied"),
        (f"slim {LOCKED} --device 9.0 --out o", 14, f"can't read {LOCKED}: Permission denied"),
        ("verify nope", 14, "can't read nope: Permission denied"),
        ("verify nope/deeper", 14, "can't read nope/deeper: Permission denied"),
        ("join nope --out o", 14, "can't read nope: Permission denied"),
        ("gather nope --out o", 14, "can't read nope: Permission denied"),
        ("publish nope --repository testpypi", 14, "can't read nope: Permission denied"),
        (
            f"install nope --dry-run --python {shlex.quote(sys.executable)}",
            14,
            "can't read nope: Permission denied",
        ),
        (
            f"slim {SOUND} --drop sm_80 --out ro/o --copy",
            10,
            "ro/o: Permission denied\nhint: choose another",
        ),
    ],
)
def test_missing_permission_gives_no_traceback(
    folder: Path, words: str, code: int, message: str
) -> None:
    # Without its capabilities, root has to obey permissions too.
    plain = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all") if not os.getuid() else ()
    found, text = run(folder, *shlex.split(words), before=plain)
    assert (found, message in text) == (code, True), text


def test_slimming_a_slimmed_wheel_is_refused(tmp_path: Path) -> None:
    fat = "toyfat-1.0-py3-none-any.whl"
    write_wheel(tmp_path / fat, {"toyfat/k.fatbin": container(image("sm_80"), image("sm_90"))})
    assert run(tmp_path, "slim", fat, "--device", "9.0", "--out", "slim")[0] == 0
    (slimmed,) = (tmp_path / "slim").glob("*.whl")
    again = ("slim", f"slim/{slimmed.name}", "--out", "more", "--device")
    code, text = run(tmp_path, *again, "9.0")
    assert (code, (tmp_path / "more").exists()) == (17, False)
    earlier = (
        "device code was removed from it by `--device 9.0 --keep-ptx newest`; slim the original"
    )
    assert "there is nothing to take out" in text
    assert earlier in text
    code, text = run(tmp_path, *again, "8.0")
    assert code == 5
    assert f"hint: {earlier} instead" in text


def test_errors_of_the_compiler_wrapper_name_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A build's log has the lines of many programs.
    assert main(["nvcc", "--nvcc", "/no/nvcc", "--", "-c", "k.cu"]) == ToolNotFoundError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("archsplit nvcc: error: no nvcc; tried\n  --nvcc: /no/nvcc")
    code = "from archsplit.cli.nvcc import launcher; launcher()"
    environment = {**os.environ, "ARCHSPLIT_NVCC_OPTIONS": "--nvcc /no/nvcc"}
    done = subprocess.run(
        [sys.executable, "-c", code, "-c", "k.cu"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ToolNotFoundError.exit_code
    assert done.stderr.startswith("archsplit: error: no nvcc; tried\n  --nvcc: /no/nvcc")


def test_launcher_without_options_has_the_defaults_of_argparse() -> None:
    without = nvcc._parse_options_variable("")
    # An option that changes nothing, so that the parser is built.
    parsed = vars(nvcc._parse_options_variable("--nvcc N"))
    names = {name for name in vars(type(without)) if not name.startswith("_")}
    assert {name for name in parsed if not name.startswith("remote")} == names
    names.remove("nvcc")
    assert {name: getattr(without, name) for name in names} == {
        name: parsed[name] for name in names
    }
    assert parsed["remote"] is None
