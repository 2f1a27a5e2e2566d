"""Libraries that plugins need and that something else brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.errors import VerifyError, WheelError
from archsplit.recipe.load import load_recipe
from archsplit.release.checks import CheckScope
from archsplit.release.identity import parse_identity
from archsplit.release.verify import verify_release
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

pytestmark = pytest.mark.nvcc

PARALLEL = """
#include <omp.h>

extern "C" const char *tinyvec_name(void) {
    return omp_in_parallel() ? "parallel" : TINYVEC_NAME;
}
"""


def build_it(recipe: Path, effects: Effects, out: Path, link: str) -> None:
    (recipe / "src" / "name.cpp").write_text(f'#include "tinyvec.h"\n{PARALLEL}')
    path = recipe / "recipe.toml"
    path.write_text(f'{path.read_text()}\n[link]\nlibraries = ["gomp"]\n{link}')
    build_recipe(
        BuildRequest(recipe=load_recipe(recipe), targets=(Target.parse("sm_80"),)), effects, out=out
    )


def test_library_without_a_provider_is_refused(
    recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    with pytest.raises(WheelError, match=r"it needs libgomp\.so\.1, which not every Linux has"):
        build_it(recipe, effects, tmp_path / "out", "")


def test_provided_library_is_accepted_only_with_its_core_and_report(
    recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    out = tmp_path / "out"
    build_it(recipe, effects, out, 'provided = ["libgomp.so.1"]\n')
    (core,) = out.glob("tinyvec-1*.whl")
    with open_wheel(core) as wheel:
        text = wheel.read("tinyvec/_archsplit/core.json")
    assert parse_identity(text, where="core.json").provided == ("libgomp.so.1",)
    # `verify` has no recipe; the core says what its plugins may need.
    release = verify_release(out, effects, CheckScope(targets=(Target.parse("sm_80"),)))
    assert ("sm_80",) in release.wheels.values()
    core.unlink()
    (out / "archsplit-report.json").unlink()
    with pytest.raises(VerifyError, match=r"it needs libgomp\.so\.1"):
        verify_release(out, effects)
