"""Wheels of one version for several CUDA majors: a release for each, with a public version."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest
from split_samples import fat_wheel, library

from archsplit.cli.main import main
from archsplit.wheels.metadata import decode_metadata
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.metadata import Metadata

TAGS = "py3-none-linux_x86_64"


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As an index of its own has them: one name, and the CUDA in the local version."""
    folder = tmp_path_factory.mktemp("by_cuda")
    wheels = []
    for seed, local in enumerate(("cu128", "cu130")):
        made = library(folder, f"lib{local}", seed)
        members: dict[str, Path | bytes] = {
            "toyfat/__init__.py": b"ANSWER = 42\n",
            "toyfat/lib/liba.so": made,
        }
        wheels.append(fat_wheel(folder / local, members, f"1.0+{local}", TAGS))
    return wheels[0], wheels[1]


@pytest.fixture(scope="module")
def out(fat: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_cuda") / "out"
    for wheel, major in zip(fat, (12, 13), strict=True):
        release = ("--name", f"toyfat-cu{major}", "--version", "1.0")
        assert main(["split", str(wheel), *release, "--out", str(folder / f"cu{major}")]) == 0
    return folder


def metadata(wheel: Path) -> Metadata:
    with open_wheel(wheel) as opened:
        return decode_metadata(opened.read(f"{opened.dist_info}/METADATA"))


def test_each_major_is_a_release_with_a_name_of_its_own(out: Path) -> None:
    for major in (12, 13):
        folder = out / f"cu{major}"
        # No local version is left, which the index would refuse.
        assert all("+" not in path.name for path in folder.iterdir())
        (core,) = folder.glob(f"toyfat_cu{major}-1.0-*.whl")
        found = metadata(core)
        assert (found.name, str(found.version)) == (f"toyfat-cu{major}", "1.0")
        pins = [str(one) for one in found.requires_dist or () if "cc90" in str(one)]
        assert f'toyfat-cu{major}-cc90==1.0; extra == "cc90"' in pins
        assert main(["verify", str(folder)]) == 0


def test_the_libraries_come_back_from_each(
    fat: tuple[Path, Path], out: Path, tmp_path: Path
) -> None:
    for source, major in zip(fat, (12, 13), strict=True):
        assert main(["join", str(out / f"cu{major}"), "--out", str(tmp_path / str(major))]) == 0
        (joined,) = (tmp_path / str(major)).rglob("liba.so")
        with zipfile.ZipFile(source) as archive:
            assert joined.read_bytes() == archive.read("toyfat/lib/liba.so")
