"""``archsplit build --policy nightly``, beside a release of the same recipe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest, plan_build
from archsplit.cache.config import resolve_settings
from archsplit.devicecode.registered import read_library
from archsplit.errors import BudgetError, TargetError
from archsplit.recipe.load import load_recipe
from archsplit.release.report import read_report
from archsplit.release.verify import verify_release
from archsplit.system.fs import sha256
from archsplit.wheels.reader import open_wheel
from in_process import run_archsplit

if TYPE_CHECKING:
    from archsplit.arch.target import Target
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects

pytestmark = pytest.mark.nvcc

DAY = 86400
MIDNIGHT = 1795219200  # 2026-11-21 00:00:00 UTC
POLICY = """
[policy.nightly]
sass = ["sm_90"]
max-wheel = "1MB"
budget = "2MB"
"""


@pytest.fixture
def nightly_recipe(recipe: Path) -> Path:
    with (recipe / "recipe.toml").open("a") as file:
        file.write(POLICY)
    return recipe


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compile cache for builds that are not about compiling."""
    return tmp_path_factory.mktemp("store")


def command(
    *words: str, toolkit: Toolkit, store: Path, epoch: int | None, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "ARCHSPLIT_CACHE": "on",
        "ARCHSPLIT_CACHE_DIR": str(store),
        "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
        **more,
    }
    if epoch is not None:
        environment["SOURCE_DATE_EPOCH"] = str(epoch)
    return run_archsplit(*words, "--nvcc", toolkit.nvcc, environment=environment)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.glob("*.whl")}


@pytest.mark.stress  # Always run are a nightly from the cache, and the commands of the manual.
def test_release_and_nightlies_share_compiled_objects(
    nightly_recipe: Path, tmp_path: Path, toolkit: Toolkit, effects: Effects
) -> None:
    store = tmp_path / "store"
    out = {name: tmp_path / name for name in ("release", "one", "two", "again")}

    def built(name: str, epoch: int | None, *more: str) -> list[str]:
        words = ("build", str(nightly_recipe), "--out", str(out[name]), "--explain", *more)
        done = command(*words, toolkit=toolkit, store=store, epoch=epoch)
        assert done.returncode == 0, done.stderr
        ran = re.findall(r"^(.+?): cache miss", done.stderr, re.MULTILINE)
        steps = {name.rpartition(": ")[2] for name in ran}
        # What is packed in another way isn't compiled.
        return sorted(steps - {"fatbinary", "objcopy"})

    assert {"cudafe++", "cicc compute_80", "ptxas sm_90"} <= set(built("release", None))
    nightly = ("--policy", "nightly")
    assert built("one", MIDNIGHT, *nightly) == []
    assert built("two", MIDNIGHT + DAY, *nightly) == []

    # Without the cache, in another folder, one step at a time.
    elsewhere = Path(shutil.copytree(nightly_recipe, tmp_path / "elsewhere" / "tinyvec"))
    words = ("build", str(elsewhere), "--out", str(out["again"]), *nightly, "-j", "1")
    done = command(*words, toolkit=toolkit, store=store, epoch=MIDNIGHT, ARCHSPLIT_CACHE="off")
    assert done.returncode == 0, done.stderr
    assert digests(out["again"]) == digests(out["one"])

    release, one, two = (read_report(out[name] / "archsplit-report.json") for name in list(out)[:3])
    assert (release.version, one.version) == ("1.2.3", "1.2.4.dev20261121")
    assert verify_release(out["two"], effects).version == two.version == "1.2.4.dev20261122"
    assert len({release.build_id, one.build_id, two.build_id}) == 3
    assert one.build is not None
    assert one.build.targets == ("sm_90",)
    assert {wheel.role for wheel in one.wheels} == {"core", "plugin"}
    assert sum(wheel.size for wheel in one.wheels) < sum(wheel.size for wheel in release.wheels)
    assert _code(out["one"], tmp_path / "x") == _code(out["two"], tmp_path / "y")
    _installs(out, tmp_path / "venv")


def _code(folder: Path, to: Path) -> frozenset[str]:
    (path,) = folder.glob("tinyvec_sm90-*.whl")
    with open_wheel(path) as wheel:
        to.write_bytes(wheel.read("tinyvec_plugins/cuda/sm_90/libtinyvec.so"))
    containers = read_library(to).containers
    return frozenset(str(target) for targets in containers for target in targets)


def _installs(out: dict[str, Path], venv: Path) -> None:
    """From a folder with the release and two nightlies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    places = [word for folder in out.values() for word in ("--find-links", str(folder))]

    def pip(*words: str) -> str:
        pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"))
        done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    offline = ("install", "--no-index", "--no-compile", *places)
    pip(*offline, "tinyvec[sm90]")
    assert "tinyvec-sm90 1.2.3" in " ".join(pip("list").split())
    pip(*offline, "--pre", "--upgrade", "tinyvec[sm90]")
    listed = " ".join(pip("list").split())
    assert "tinyvec 1.2.4.dev20261122 tinyvec-sm90 1.2.4.dev20261122" in listed
    pip("check")
    script = "import tinyvec; print(tinyvec.name('9.0'))"
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "tiny, vec\n", done.stderr


def test_without_an_epoch_the_day_is_today_and_it_is_said(
    nightly_recipe: Path, effects: Effects
) -> None:
    before = datetime.now(timezone.utc)
    with plan_build(
        BuildRequest(recipe=load_recipe(nightly_recipe), policy="nightly"), effects
    ) as plan:
        days = {f"{moment:%Y%m%d}" for moment in (before, datetime.now(timezone.utc))}
        assert plan.identity.version in {f"1.2.4.dev{day}" for day in days}
        assert plan.warnings[0].startswith("SOURCE_DATE_EPOCH is not set: 1.2.4.dev")
    with plan_build(BuildRequest(recipe=load_recipe(nightly_recipe)), effects) as plan:
        assert not any("SOURCE_DATE_EPOCH" in line for line in plan.warnings)


def test_a_broken_budget_writes_nothing(
    nightly_recipe: Path, tmp_path: Path, toolkit: Toolkit, store: Path
) -> None:
    path = nightly_recipe / "recipe.toml"
    path.write_text(path.read_text().replace('"1MB"', '"100kB"').replace('"2MB"', '"150kB"'))
    words = ("build", str(nightly_recipe), "--out", str(tmp_path / "out"), "--policy", "nightly")
    done = command(*words, "--quiet", toolkit=toolkit, store=store, epoch=MIDNIGHT)
    assert done.returncode == BudgetError.exit_code == 15
    assert "(sm_90) is 2" in done.stderr
    assert "more than max-wheel = 100 kB" in done.stderr
    assert "more than budget = 150 kB" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.stress
def test_budget_counts_wheels_of_other_machines(
    nightly_recipe: Path, tmp_path: Path, effects: Effects, store: Path
) -> None:
    known = {**effects.environment, "ARCHSPLIT_CACHE_DIR": str(store)}
    effects = replace(effects, cache=resolve_settings(known, mode="on"))
    path = nightly_recipe / "recipe.toml"
    path.write_text(path.read_text().replace('sass = ["sm_90"]\n', "").replace("2MB", "300kB"))
    out = tmp_path / "out"
    orders = [
        BuildRequest(
            recipe=load_recipe(nightly_recipe), policy="nightly", core=False, targets=(target,)
        )
        for target in _targets(nightly_recipe, effects)
    ]
    report = build_recipe(orders[0], effects, out=out)
    assert len(report.wheels) == 1
    with pytest.raises(BudgetError, match=r"together .* more than budget = 300 kB"):
        build_recipe(orders[1], effects, out=out)
    assert len(list(out.glob("*.whl"))) == 1


def _targets(recipe: Path, effects: Effects) -> tuple[Target, ...]:
    with plan_build(BuildRequest(recipe=load_recipe(recipe), policy="nightly"), effects) as plan:
        return plan.targets


def test_target_left_out_by_the_policy_is_refused(nightly_recipe: Path, effects: Effects) -> None:
    with plan_build(BuildRequest(recipe=load_recipe(nightly_recipe)), effects) as plan:
        (left_out, *_) = plan.targets
    order = BuildRequest(recipe=load_recipe(nightly_recipe), policy="nightly", targets=(left_out,))
    with pytest.raises(
        TargetError, match=r"nightly\] of the recipe has no target sm_80; it has sm_90"
    ):
        plan_build(order, effects).__enter__()


def test_the_plan_is_of_the_policy_and_nvcc_is_told_the_whole_list(
    nightly_recipe: Path, tmp_path: Path, toolkit: Toolkit
) -> None:
    words = ("plan", str(nightly_recipe), "--policy", "nightly", "--json")
    done = command(*words, toolkit=toolkit, store=tmp_path, epoch=MIDNIGHT)
    content = json.loads(done.stdout)
    assert (content["version"], content["targets"]) == ("1.2.4.dev20261121", ["sm_90"])
    assert content["wheels"] == ["tinyvec", "tinyvec-sm90"]
    texts = [word for step in content["steps"] for word in step["argv"]]
    assert any("__CUDA_ARCH_LIST__=800,900" in word for word in texts)


def test_the_backend_builds_by_a_policy(
    nightly_recipe: Path, tmp_path: Path, environment: dict[str, str], store: Path
) -> None:
    known = {"ARCHSPLIT_CACHE": "on", "ARCHSPLIT_CACHE_DIR": str(store)}
    frontend = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    settings = ("--config-setting", "policy=nightly", "--config-setting", "target=sm_90")
    subprocess.run(
        [*frontend, "--outdir", str(tmp_path / "out"), *settings, str(nightly_recipe)],
        check=True,
        env={**environment, **known, "SOURCE_DATE_EPOCH": str(MIDNIGHT)},
        capture_output=True,
    )
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    # Every build has the same sources: only wheels have a policy's version.
    assert names[0] == "tinyvec-1.2.3.tar.gz"
    assert names[1].startswith("tinyvec_sm90-1.2.4.dev20261121-py3-none-manylinux")
