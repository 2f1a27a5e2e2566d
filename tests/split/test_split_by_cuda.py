"""Wheels of one version for several CUDA majors: a release for each, and a front package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from split_samples import fat_wheel, library

from archsplit.cli.main import main
from archsplit.errors import InputError
from archsplit.split.sources import find_cuda_major
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import (
    CoreMetadata,
    WheelInfo,
    decode_metadata,
    edit_metadata,
    encode_metadata,
)
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
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
    words = [*map(str, fat), "--name-by-cuda", "--out", str(folder)]
    assert main(["split", *words]) == 0
    return folder


def metadata(wheel: Path) -> Metadata:
    with open_wheel(wheel) as opened:
        return decode_metadata(opened.read(f"{opened.dist_info}/METADATA"))


def test_each_major_is_a_release_with_a_name_of_its_own(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == [
        "cu12",
        "cu13",
        "toyfat-1.0-py3-none-any.whl",
    ]
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


def test_an_extra_of_the_front_package_brings_one_major(out: Path, tmp_path: Path) -> None:
    front = metadata(out / "toyfat-1.0-py3-none-any.whl")
    extras = front.provides_extra or []
    assert {"cu12", "cu13", "cu12-cc90", "cu13-all", "cu12-more"} <= set(extras)
    assert front.requires_python == ">=3.10"
    # Front, cores and packs in one folder, as on an index.
    served = tmp_path / "served"
    served.mkdir()
    for wheel in out.rglob("*.whl"):
        (served / wheel.name).symlink_to(wheel)
    uv = str(Path(sys.executable).with_name("uv"))
    commands = {
        "pip": [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index"],
        "uv": [uv, "pip", "compile", "--no-index", "--no-header", "--no-annotate", "--offline"],
    }
    (tmp_path / "in.txt").write_text("toyfat[cu13-cc90]==1.0\n")
    environment = {**os.environ, "UV_NO_CONFIG": "1", "UV_NO_CACHE": "1"}
    # packaging is a requirement of the toy, which no wheel here is.
    (served / "packaging-26.0-py3-none-any.whl").write_bytes(empty_wheel("packaging", "26.0"))
    done = subprocess.run(
        [*commands["uv"], "--find-links", str(served), str(tmp_path / "in.txt")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    names = {line.partition("==")[0] for line in done.stdout.split()}
    assert {"toyfat", "toyfat-cu13", "toyfat-cu13-cc90"} <= names
    assert not any("cu12" in name for name in names)
    report = tmp_path / "report.json"
    dry = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report))
    pip = [word for word in commands["pip"] if word != "--no-deps"]
    subprocess.run(
        [*pip, *dry, "--find-links", str(served), "toyfat[cu12-cc90]==1.0"],
        check=True,
        capture_output=True,
    )
    chosen = {one["metadata"]["name"] for one in json.loads(report.read_text())["install"]}
    assert {"toyfat", "toyfat-cu12", "toyfat-cu12-cc90"} <= chosen
    assert not any("cu13" in name for name in chosen)


def empty_wheel(project: str, version: str) -> bytes:
    name = WheelName.parse(f"{project}-{version}-py3-none-any.whl")
    text = encode_metadata(CoreMetadata(name=project, version=version))
    info = WheelInfo(generator="a test", tags=name.tags).encode()
    members = {f"{name.dist_info}/METADATA": pack(text), f"{name.dist_info}/WHEEL": pack(info)}
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    path = folder / f"{os.getpid()}-{name}"
    with path.open("wb") as file:
        write_members(file, name, members)
    content = path.read_bytes()
    path.unlink()
    return content


def requiring(folder: Path, *requirements: str, project: str = "toy", version: str = "1.0") -> Path:
    """A wheel without files that requires something."""
    name = WheelName.parse(f"{project.replace('-', '_')}-{version}-py3-none-any.whl")
    text = encode_metadata(CoreMetadata(name=project, version=version))
    text = edit_metadata(text, fields=[f"Requires-Dist: {each}" for each in requirements])
    info = WheelInfo(generator="a test", tags=name.tags).encode()
    members = {f"{name.dist_info}/METADATA": pack(text), f"{name.dist_info}/WHEEL": pack(info)}
    path = folder / str(name)
    with path.open("wb") as file:
        write_members(file, name, members)
    return path


@pytest.mark.parametrize(
    ("project", "version", "requirement", "major"),
    [
        # As xgboost 3.2, torch 2.15, jax-cuda13-plugin 0.10 and cupy-cuda12x 14 have them.
        ("toy", "1.0", "nvidia-nccl-cu12; platform_system == 'Linux'", 12),
        ("toy", "1.0", "cuda-toolkit[cublas,cudart]==13.2.2", 13),
        ("toy", "1.0", "nvidia-cublas>=13.0.0.19", 13),
        ("toy-cuda12x", "1.0", "not a requirement!", 12),
        ("toy", "1.0+cu130", "numpy>=2", 13),
    ],
)
def test_the_major_is_in_names_and_requirements(
    tmp_path: Path, project: str, version: str, requirement: str, major: int
) -> None:
    with open_wheel(requiring(tmp_path, requirement, project=project, version=version)) as wheel:
        assert find_cuda_major(wheel) == major


@pytest.mark.parametrize(
    ("requirements", "fault"),
    [
        ((), "is nowhere in its name or requirements"),
        (
            ("nvidia-nccl-cu12", "cuda-toolkit==13.*"),
            "12 by the requirement nvidia-nccl-cu12; 13 by the requirement cuda-toolkit",
        ),
    ],
)
def test_an_unclear_major_is_refused(
    tmp_path: Path, requirements: tuple[str, ...], fault: str
) -> None:
    with (
        open_wheel(requiring(tmp_path, *requirements)) as wheel,
        pytest.raises(InputError, match=fault) as raised,
    ):
        find_cuda_major(wheel)
    assert "--name NAME-cu12" in str(raised.value.hint)


def test_a_refusal_leaves_no_file(
    fat: tuple[Path, Path], out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = requiring(tmp_path, "nvidia-nccl-cu12", version="2.0")
    words = ["split", str(fat[0]), "--name-by-cuda", "--out"]
    new = str(tmp_path / "new")
    two = ["split", str(fat[0]), str(other), "--name-by-cuda", "--out", new]
    cases = (
        (two, 14, "not of one project and version"),
        ([*words, str(out)], 10, "has cu12 already"),
        ([*words, new, "--name", "x"], 2, "can't be combined with --name"),
    )
    for argv, code, fault in cases:
        assert main(argv) == code
        assert fault in capsys.readouterr().err
    named = requiring(tmp_path, project="toy-cu12")
    assert main(["split", str(named), "--name-by-cuda", "--out", str(tmp_path / "new")]) == 2
    assert "has the CUDA major in its name already" in capsys.readouterr().err
    assert not list((tmp_path / "new").glob("*"))


def test_the_reports_as_json(
    fat: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["split", str(fat[1]), "--name-by-cuda", "--json", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["front"] == "toyfat-1.0-py3-none-any.whl"
    assert content["majors"]["13"]["project"] == "toyfat-cu13"
