"""``archsplit doctor``: the core of whatever name a user knows a project by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from split_samples import fat_wheel, library, split, unpacked

from archsplit.cli.main import main
from archsplit.errors import InputError
from archsplit_loader._explain import PublishedCapability, ServedCapability, _capability_lines

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

# As `cupy-cuda12x` does, it installs a package of another name than its own.
NAMES = ("toyother", "toy-fat-cu12", "Toy.Fat_cu12")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    members: dict[str, Path | bytes] = {
        "toyother/__init__.py": b"raise ImportError\n",
        "toyother/liba.so": library(folder, "liba", 0),
    }
    fat = fat_wheel(folder / "fat", members)
    out = split(fat, folder / "out", effects, name="toy-fat-cu12")
    return unpacked(folder / "site", next(out.glob("toy_fat_cu12-1.0-*.whl")))


@pytest.mark.parametrize("name", NAMES)
def test_a_core_is_found_by_each_of_its_names(
    site: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    assert main(["doctor", name]) in {0, 1}
    assert "core: toy-fat-cu12 1.0" in capsys.readouterr().out


def test_doctor_of_a_plain_package_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "packaging"]) == InputError.exit_code
    assert "packaging is not a core" in capsys.readouterr().err
    assert main(["doctor", "no-such-package"]) == InputError.exit_code
    assert "no-such-package is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("restart", "words"),
    [(True, "installed, for a new process"), (False, "needs a newer driver")],
)
def test_late_pack_needs_a_restart(*, restart: bool, words: str) -> None:
    served = ServedCapability(
        capability="9.0",
        target=None,
        plugin=None,
        native=False,
        needs="cc90",
        command=None,
        restart=restart,
    )
    assert [*_capability_lines((PublishedCapability(gpus="H100", served=served),))][-1].endswith(
        f"cc90         {words}"
    )
