"""Shell completion, as a real bash completes."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from in_process import run_archsplit

if TYPE_CHECKING:
    from pathlib import Path

_TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMPREPLY=()
_shtab_archsplit archsplit "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run_archsplit("--print-completion", "bash")
    path = tmp_path_factory.mktemp("completion") / "archsplit.bash"
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sp", ["split"]),
        ("split --ou", ["--out"]),
        ("split --by ", ["capability", "target"]),
        ("split wheels/fo", ["wheels/foo.whl"]),
        ("split foo.whl --out whe", ["wheels"]),
        ("cache ex", ["explain", "export"]),
        ("cache verify --js", ["--json"]),
        ("--print-completion ", ["bash", "zsh", "tcsh"]),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, words: str, found: list[str]) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "foo.whl").touch()
    done = subprocess.run(
        ["bash", "-c", _TRY, "bash", str(script), "archsplit", *words.split(" ")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.split() == found


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(shell: str) -> None:
    done = run_archsplit("--print-completion", shell)
    assert "archsplit" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)
