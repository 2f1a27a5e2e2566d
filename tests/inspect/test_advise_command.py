"""``archsplit advise`` on real code, and the sizes after following it."""

from __future__ import annotations

import json
import shlex
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inventories import release

from archsplit.cli.main import main
from archsplit.errors import BudgetError, InputError, TargetError
from archsplit.release.report import REPORT_FILE
from archsplit.system.toml import loads
from index_wheels import index_wheel

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

GPUS = Path(__file__).parents[2] / "recipes" / "gpus.example.csv"
SOURCE = """
template <int N> __global__ void sum(float *x) {
    float s[N] = {};
    #pragma unroll
    for (int i = 0; i < 32 * N; i++) s[i % N] += x[i * N] * s[(i + 1) % N];
    for (int i = 0; i < N; i++) x[i] = s[i];
}
extern "C" void run(float *x) { sum<3><<<1, 32>>>(x); sum<5><<<1, 32>>>(x); sum<7><<<1, 32>>>(x); }
"""
TARGETS = ("sm_75", "sm_80", "sm_90", "compute_90")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit) -> Path:
    """Return a library with the stub that nvcc's link writes, which has no PTX."""
    folder = tmp_path_factory.mktemp("advise")
    source, made = folder / "fat.cu", folder / "libfat.so"
    source.write_text(SOURCE)
    codes = [f"-gencode=arch=compute_{name.partition('_')[2]},code={name}" for name in TARGETS]
    command = [
        str(toolkit.nvcc),
        "-shared",
        "-Xcompiler=-fPIC",
        *codes,
        f"-L{toolkit.library_folder}",
    ]
    subprocess.run([*command, str(source), "-o", str(made)], check=True)
    return made


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    path = tmp_path / "gpus.csv"
    path.write_text("gpu,share\nT4,30\nA100,40\nH100,20\nRTX 5090,10\nVoodoo 2,3\n")
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["advise", *map(str, words)]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(printed(capsys, *words, "--json"))
    return content


def test_advice_lists_targets_and_the_gpus_served_by_a_library(
    library: Path, gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = document(capsys, library, "--gpus", gpus)
    assert (content["schema"], content["unit"]) == (1, "file_bytes")
    assert list(content["targets"]) == list(TARGETS)
    assert content["best"]["targets"] == list(TARGETS)
    assert content["best"]["machine_code"] == pytest.approx(0.9)
    assert content["best"]["served"] == pytest.approx(1)
    fates = {gpu["capability"]: (gpu["before"], gpu["after"]) for gpu in content["gpus"]}
    assert fates == {
        "7.5": ("native", "native"),
        "8.0": ("native", "native"),
        "9.0": ("native", "native"),
        "12.0": ("ptx", "ptx"),
    }
    assert content["unknown"] == [{"gpu": "Voodoo 2", "share": pytest.approx(3 / 103), "line": 6}]
    # PTX serves every GPU that it can: no GPU misses nvcc's stub without PTX.
    ptx = [one for one in content["front"] if one["targets"] == ["compute_90"]]
    assert ptx[0]["served"] == pytest.approx(0.3)


def test_the_text_can_be_pasted(
    library: Path, gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, library, "--gpus", gpus, "--ptx", "none", "--policy", "daily")
    assert "2.9 % of the table are GPUs whose capability isn't known" in text
    assert "Voodoo 2 (line 6, 2.9 %)" in text
    assert "<- proposed" in text
    assert "warning: the list has no PTX: GPUs newer than all of it find no code" in text
    table = "[policy.daily]" + text.partition("[policy.daily]")[2].partition("\n\n")[0]
    assert loads(table) == {"policy": {"daily": {"sass": ["sm_75", "sm_80", "sm_90"]}}}
    command = shlex.split(text.splitlines()[-1])
    assert command == [
        *("archsplit", "slim", str(library), "--keep", "sm_75,sm_80,sm_90", "--keep-ptx", "none")
    ]


def test_slimmed_proposal_has_the_stated_size(
    library: Path, gpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = library.stat().st_size - 10000
    content = document(
        capsys,
        library,
        "--gpus",
        gpus,
        "--budget",
        budget,
        "--policy",
        "nightly",
    )
    assert content["best"]["size"] <= budget
    assert f'budget = "{budget}"' in content["policy"]
    assert main([*content["slim"][1:], "--out", str(tmp_path / "out")]) == 0
    (slim,) = (tmp_path / "out").iterdir()
    # What is cut out of a file begins and ends at whole pages.
    assert abs(slim.stat().st_size - content["best"]["size"]) < 2 * 4096


def test_a_list_of_gpus_is_a_table(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = document(capsys, library, "--gpus", "H100,sm_80")
    shares = {gpu["capability"]: gpu["share"] for gpu in content["gpus"]}
    assert shares == {"8.0": 0.5, "9.0": 0.5}
    assert main(["advise", str(library), "--gpus", "H1000"]) == TargetError.exit_code


def test_advise_without_a_fitting_choice_is_an_error(
    library: Path, gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["advise", str(library), "--gpus", str(gpus), "--budget", "1kB"]
    assert main(words) == BudgetError.exit_code
    out, err = capsys.readouterr()
    assert "over the budget" in out
    assert "no list of targets fits the budget: the smallest, compute_90, has" in err.replace(
        "\n", " "
    )
    assert main([*words, "--json"]) == BudgetError.exit_code
    content = json.loads(capsys.readouterr().out)
    assert (content["best"], content["policy"], content["slim"]) == (None, "", [])
    assert {gpu["after"] for gpu in content["gpus"]} == {None}


def test_table_without_a_usable_gpu_is_refused(
    library: Path, gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.write_text("capability,share\n5.0,1\n")
    assert main(["advise", str(library), "--gpus", str(gpus)]) == BudgetError.exit_code
    assert "no target that may be proposed runs on a GPU of the table" in capsys.readouterr().err


def test_advise_refuses_empty_wheels_and_unreadable_tables(
    library: Path, gpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("x.py", "")
    assert main(["advise", str(empty), "--gpus", str(gpus)]) == TargetError.exit_code
    assert "empty.whl has no device code to choose from" in capsys.readouterr().err
    gpus.write_bytes(b"gpu,share\n\xff,1\n")
    assert main(["advise", str(library), "--gpus", str(gpus)]) == InputError.exit_code
    assert main(["advise", str(library), "--gpus", str(tmp_path / "no.csv")]) == 14
    assert main(["advise", "no-such-thing", "--gpus", str(GPUS)]) == 14


def test_a_build_is_weighed_by_its_wheels(
    gpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = release(1000, sm_75=3000, sm_80=4000, compute_90=9000)
    (tmp_path / REPORT_FILE).write_text(report.as_json())
    content = document(capsys, tmp_path, "--gpus", gpus, "--ptx", "none")
    assert content["best"]["targets"] == ["sm_75", "sm_80"]
    assert (content["size"], content["fixed"], content["slim"]) == (17000, 1000, [])
    assert content["policy"] == '[policy.nightly]\nsass = ["sm_75", "sm_80"]\n'
    assert "the core" in printed(capsys, tmp_path, "--gpus", gpus)


@pytest.mark.parametrize("name", ["Bad Name", "a]"])
def test_invalid_policy_name_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "x.whl", "--gpus", str(GPUS), "--policy", name]) == 2
    assert "is not a policy name, such as nightly" in capsys.readouterr().err


def test_many_strangers_are_counted(
    library: Path, gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"Voodoo {number},1\n" for number in range(8))
    gpus.write_text(f"gpu,share\nT4,92\n{rows}")
    text = printed(capsys, library, "--gpus", gpus)
    assert "8.0 % of the table are GPUs whose capability isn't known" in text
    assert "Voodoo 4 (line 7, 1.0 %) and 3 more" in text


@pytest.mark.download
@pytest.mark.parametrize(
    ("requirement", "platform"),
    [
        ("xgboost==3.2.0", ()),
        ("cupy-cuda12x==14.2.0", ()),
        ("xformers==0.0.35", ()),
        ("jax-cuda12-plugin==0.10.2", ()),
    ],
)
def test_index_wheels_have_the_stated_size(
    downloads: Path,
    tmp_path: Path,
    requirement: str,
    platform: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = index_wheel(downloads, requirement, *platform)
    content = document(capsys, wheel, "--gpus", GPUS)
    assert main([*content["slim"][1:], "--out", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    (slim,) = tmp_path.glob("*.whl")
    said, is_ = content["best"]["size"], slim.stat().st_size
    assert is_ <= said <= 1.02 * is_
