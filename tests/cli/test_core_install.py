from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from archsplit.cli import core_install
from archsplit.cli.core_install import Environment, _gpu_extras
from archsplit.errors import ToolNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

REQUIRES = (
    "numpy",
    'nvidia-nccl-cu12; platform_system == "Linux"',
    'foo-cc90==1.0; extra == "cc90"',
    'foo-cc90==1.0; extra == "all"',
    'foo-cc80==1.0; extra == "cc80" and platform_system == "Linux"',
    'dask; extra == "dask"',
)


def test_extra_of_a_gpu_has_its_packs_and_no_requirement_of_the_core() -> None:
    extras = ["all", "cc80", "cc90", "dask"]
    found = _gpu_extras({"provides_extra": extras, "requires_dist": list(REQUIRES)})
    assert found == {"cc80": ("foo-cc80",), "cc90": ("foo-cc90",)}


def test_environment_without_pip_and_uv_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    monkeypatch.setattr(core_install, "find_uv", lambda _: None)
    with pytest.raises(ToolNotFoundError) as caught:
        Environment.of(tmp_path / "bin" / "python")
    assert f"{tmp_path} has no pip, and uv was not found" in str(caught.value)
    assert "-m ensurepip, or put uv on the PATH" in str(caught.value)
