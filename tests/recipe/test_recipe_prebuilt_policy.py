"""``[policy.<name>]`` in recipes for prebuilt files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.errors import RecipeError, UsageError
from archsplit.recipe.load import load
from archsplit.recipe.prebuilt import SplitRecipe
from archsplit.recipe.single_build import apply_policy_to_prebuilt

if TYPE_CHECKING:
    from pathlib import Path


WHEEL = '[source]\nwheel = "a-1-py3-none-any.whl"\n'
TARGETS = '[targets]\nsass = ["sm_80", "sm_90"]\nptx = ["compute_90"]\n'
LIBRARY = """\
[project]
name = "fast-sum"
version = "1.2"
summary = "Sums."
license = "MIT"
license-files = ["LICENSE"]

[source]
library = "libsum.so"
"""
DAY = "20261121"


def loaded(folder: Path, text: str) -> SplitRecipe:
    for name in ("a-1-py3-none-any.whl", "libsum.so", "LICENSE"):
        (folder / name).write_text("text\n")
    (folder / "recipe.toml").write_text(text)
    recipe = load(folder)
    assert isinstance(recipe, SplitRecipe)
    return recipe


def test_policy_makes_fewer_packs(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, f'{WHEEL}{TARGETS}[policy.nightly]\nmax-wheel = "1MB"\n')
    assert recipe.policy is None
    nightly = apply_policy_to_prebuilt(recipe, "nightly", day=DAY)
    assert list(map(str, nightly.targets or ())) == ["sm_80", "sm_90"]
    assert nightly.policy is not None
    assert (nightly.policy.max_wheel, nightly.policy.is_limited) == (1_000_000, True)


def test_without_a_list_it_names_the_packs_itself(tmp_path: Path) -> None:
    recipe = loaded(
        tmp_path, f'{WHEEL}[policy.nightly]\nsass = ["sm_90", "sm_80"]\nptx = ["compute_90"]\n'
    )
    nightly = apply_policy_to_prebuilt(recipe, "nightly", day=DAY)
    assert list(map(str, nightly.targets or ())) == ["sm_80", "sm_90", "compute_90"]
    with pytest.raises(UsageError, match="no policy weekly; it has nightly"):
        apply_policy_to_prebuilt(recipe, "weekly", day=DAY)


def test_a_library_gets_a_dated_version(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, f'{LIBRARY}[policy.nightly]\nsass = ["sm_90"]\n')
    nightly = apply_policy_to_prebuilt(recipe, "nightly", day=DAY)
    assert nightly.project is not None
    assert nightly.project.version == "1.3.dev20261121"
    older = loaded(
        tmp_path, f'{LIBRARY}[policy.nightly]\nsass = ["sm_90"]\nversion = "{{next}}a{{date}}"\n'
    )
    found = apply_policy_to_prebuilt(older, "nightly", day=DAY).project
    assert found is not None
    assert found.version == "1.3a20261121"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{WHEEL}[policy.n]\n", "3: policy.n.sass: is missing, and the recipe has no table of"),
        (f'{WHEEL}{TARGETS}[policy.n]\nsass = ["sm_75"]\n', "7: policy.n.sass[0]: sm_75 is not in"),
        (
            f'{WHEEL}{TARGETS}[policy.n]\nversion = "1.{{date}}"\n',
            "7: policy.n.version: is for libraries: a wheel has a version, which stays",
        ),
        (f"{WHEEL}{TARGETS}[policy.n]\nbuget = 9\n", "7: policy.n.buget: unknown key"),
    ],
)
def test_keys_not_allowed_for_a_prebuilt_file_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(tmp_path, text)
    assert f"recipe.toml:{message}" in str(caught.value)
    assert "1 fault\n" in str(caught.value)
