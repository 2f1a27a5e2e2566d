"""The public Python API: cheap to import, typed, and as its reference says."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import archsplit
from archsplit import api
from archsplit.errors import InputError, TargetError, UsageError, VerifyError

if TYPE_CHECKING:
    from types import FunctionType

    from archsplit.nvcc.toolkit import Toolkit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "api.md"
TINYVEC = ROOT / "tests" / "tinyvec"
FUNCTIONS: list[FunctionType] = [
    value for name in api.__all__ if inspect.isfunction(value := getattr(api, name))
]


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder
    )


def test_import_is_cheap(tmp_path: Path) -> None:
    code = (
        "import sys, archsplit\n"
        "assert 'archsplit.api' not in sys.modules\n"
        "archsplit.api.inspect\n"
        "own = {name for name in sys.modules if name.startswith('archsplit')}\n"
        "assert own == {'archsplit', 'archsplit.api', 'archsplit.errors'}, own\n"
        "heavy = {'pydantic', 'rich', 'packaging', 'auditwheel'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_records_are_public_under_one_name() -> None:
    for name in api.__all__:
        assert getattr(api, name).__name__ == name
    assert not hasattr(api, "Nothing")
    assert not hasattr(archsplit, "nothing")
    assert archsplit.api is api


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_argument_and_error_is_in_the_reference(function: FunctionType) -> None:
    """The page has the signature of each function, and each has words for its errors."""
    text = PAGE.read_text()
    section = text.partition(f"## `{function.__name__}`")[2].partition("\n## ")[0]
    assert section, function.__name__
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"\b{parameter}\b", section), parameter
    assert "Raises:" in (function.__doc__ or "")


@pytest.mark.nvcc
def test_the_examples_of_the_reference_run(
    fat_wheel: Path, tmp_path: Path, small_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(small_toolkit.root))
    (tmp_path / fat_wheel.name).symlink_to(fat_wheel)
    (tmp_path / "tinyvec").symlink_to(TINYVEC)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = run_python("\n".join(blocks), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(blocks), re.MULTILINE)
    assert printed, "the page shows what its examples print"
    for line in printed:
        assert line in done.stdout.splitlines()


@pytest.mark.nvcc
def test_an_inspection_shows_itself_in_a_notebook(fat_wheel: Path) -> None:
    html = api.inspect(fat_wheel)._repr_html_()
    assert "<td>sm_90<td>SASS<td>2<td>" in html


def test_errors_are_the_exceptions_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or installed package"):
        api.inspect("no-such-thing")
    with pytest.raises(TargetError, match=r"99\.9"):
        api.inspect(os.fspath(tmp_path), gpus="99.9")
    with pytest.raises(InputError, match="is not installed"):
        api.doctor("no-such-thing")
    assert issubclass(VerifyError, api.ArchsplitError)


@pytest.mark.parametrize("argument", [{"core": False}, {"nvcc": "/usr/bin/nvcc"}])
def test_arguments_for_sources_are_refused_for_a_prebuilt_file(
    tmp_path: Path, argument: dict[str, Any]
) -> None:
    (tmp_path / "a-1-py3-none-any.whl").touch()
    (tmp_path / "recipe.toml").write_text('[source]\nwheel = "*.whl"\n')
    with pytest.raises(UsageError, match="has a prebuilt file"):
        api.build(tmp_path, out=tmp_path / "out", **argument)
