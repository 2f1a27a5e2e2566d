"""``[policy.<name>]``: what is read, what is refused, and what it makes of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from recipe_samples import MINIMAL, fill_folder, message_for

from archsplit.errors import UsageError
from archsplit.recipe.load import load_recipe
from archsplit.recipe.policy import Policy, next_version
from archsplit.recipe.single_build import apply_policy

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.recipe.model import Recipe

DAY = "20261121"
WITH_PTX = MINIMAL.replace('["sm_90", "sm_80"]', '["sm_90", "sm_80"]\nptx = ["compute_90"]')


def nightly(folder: Path, *lines: str, recipe: str = WITH_PTX) -> Recipe:
    text = "\n".join([recipe, "[policy.nightly]", *lines, ""])
    return apply_policy(load_recipe(fill_folder(folder, text)), "nightly", day=DAY)


def names(recipe: Recipe) -> list[str]:
    return [str(target) for target in recipe.targets.all]


def test_without_keys_it_leaves_ptx_out_and_has_a_dated_version(tmp_path: Path) -> None:
    recipe = nightly(tmp_path)
    assert recipe.project.version == "1.2.4.dev20261121"
    assert names(recipe) == ["sm_80", "sm_90"]
    assert [str(target) for target in recipe.release] == ["sm_80", "sm_90", "compute_90"]
    assert recipe.compile.nvcc_flags == ()
    assert recipe.policy == Policy()


def test_every_key_is_read(tmp_path: Path) -> None:
    recipe = nightly(
        tmp_path,
        'sass = ["sm_90"]',
        'ptx = ["compute_90"]',
        'version = "2.0a{date}"',
        'max-wheel = "30MB"',
        'budget = "1.5 GiB"',
        recipe=WITH_PTX,
    )
    assert names(recipe) == ["sm_90", "compute_90"]
    assert recipe.project.version == "2.0a20261121"
    policy = recipe.policy
    assert policy is not None
    assert (policy.max_wheel, policy.budget) == (30_000_000, 3 << 29)


def test_a_recipe_by_itself_has_no_policy(tmp_path: Path) -> None:
    recipe = load_recipe(fill_folder(tmp_path))
    assert (recipe.policy, recipe.policies) == (None, {})
    with pytest.raises(UsageError, match=r"no policy weekly; it has none\nhint: write a table"):
        apply_policy(recipe, "weekly", day=DAY)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2.3", "1.2.4"),
        ("1.0", "1.1"),
        ("3", "4"),
        ("1!2.0", "1!2.1"),
        ("1.1.0rc1", "1.1.0rc2"),
        ("1.1.0.dev0", "1.1.0"),
        ("1.1.0a2.dev5", "1.1.0a2"),
        ("1.0.0.post1", "1.0.1"),
        ("1.0rc1.post2", "1.1"),
    ],
)
def test_next_version_is_the_following_release(version: str, expected: str) -> None:
    assert next_version(version) == expected


@given(
    release=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    pre=st.sampled_from(["", "a1", "b2", "rc3"]),
    post=st.sampled_from(["", ".post1"]),
    dev=st.sampled_from(["", ".dev4"]),
)
def test_a_nightly_sorts_between_its_version_and_the_next(
    release: list[int], pre: str, post: str, dev: str
) -> None:
    version = f"{'.'.join(map(str, release))}{pre}{post}{dev}"
    nightlies = [Version(Policy().version_on(day, version)) for day in ("20261121", "20261122")]
    assert Version(version) < nightlies[0] < nightlies[1] < Version(next_version(version))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('sass = ["sm_100"]', "sass[0]: sm_100 is not in targets.sass\n    hint: a policy leaves"),
        ('ptx = ["compute_80"]', "ptx[0]: compute_80 is not in targets.ptx"),
        ('sass = ["compute_90"]', "sass[0]: compute_90 is PTX, not SASS"),
        ("sass = []", "policy.nightly: names no target\n    hint: leave out sass"),
        ('version = "{next}.dev{day}"', "version: '{next}.dev{day}' has a field {day}"),
        ('version = "{next}.dev{"', "has a field {}\n    hint: there are {next}"),
        ('version = "{next}-nightly"', "gives '1.2.4-nightly', which is not a version"),
        ('version = "1.2.4.{date}"', ""),
        ('version = "{next}+{date}"', "the public index refuses its local part"),
        ('version = "{next}.dev0{date}"', "which is not normalized: 1.2.4.dev20260131"),
        ('version = "1.2.3"', "gives the release's own version, whose wheels are others"),
        ('max-wheel = "big"', "max-wheel: 'big' is not a size\n    hint: write it like 100MB"),
        ("budget = 3", 'budget: must be text, not 3\n    hint: write it like "100MB"'),
        ('buget = "3"', "buget: unknown key\n    hint: did you mean budget?"),
    ],
)
def test_a_fault_has_its_place(tmp_path: Path, line: str, message: str) -> None:
    text = f"{WITH_PTX}[policy.nightly]\n{line}\n"
    if not message:
        assert load_recipe(fill_folder(tmp_path, text)).policies
        return
    told = message_for(fill_folder(tmp_path, text))
    assert message in told
    assert told.splitlines()[0] == "recipe.toml has 1 fault"
    number = text.splitlines().index("[policy.nightly]") + 1
    assert told.splitlines()[1].startswith(
        (f"recipe.toml:{number}: policy.nightly", f"recipe.toml:{number + 1}: policy.nightly")
    )


def test_without_sass_and_ptx_there_is_nothing_to_build(tmp_path: Path) -> None:
    only_ptx = MINIMAL.replace('sass = ["sm_90", "sm_80"]', 'ptx = ["compute_90"]')
    message = message_for(fill_folder(tmp_path, f"{only_ptx}[policy.nightly]\n"))
    assert "policy.nightly: names no target\n    hint: write some of targets.ptx" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[policy]\nbudget = "1MB"\n', "policy.budget: must be a table, not '1MB'"),
        ("[policy.Nightly]\n", "policy.Nightly: 'Nightly' is not a policy name, such as nightly"),
        (
            "[polcy.nightly]\n",
            "polcy: unknown key\n    hint: did you mean po",
        ),
    ],
)
def test_policies_are_tables_with_names(tmp_path: Path, text: str, message: str) -> None:
    assert message in message_for(fill_folder(tmp_path, f"{MINIMAL}{text}"))


def test_faults_of_other_tables_hide_no_fault_of_a_policy(tmp_path: Path) -> None:
    text = WITH_PTX.replace("summary", "sumary").replace('ptx = ["compute_90"]', "ptx = 3")
    message = message_for(fill_folder(tmp_path, f'{text}[policy.nightly]\nbudget = "x"\n'))
    assert message.startswith("recipe.toml has 4 faults")
    message = message_for(fill_folder(tmp_path, f'{text}[policy.nightly]\nsass = ["sm_70"]\n'))
    assert message.startswith("recipe.toml has 3 faults")


def test_exceeded_limits_are_listed_with_the_excess() -> None:
    policy = Policy(max_wheel=5_000_000, budget=8_000_000)
    assert list(policy.exceeded({"a": 5_000_000, "b": 3_000_000})) == []
    assert list(policy.exceeded({"a": 5_500_000, "b": 3_000_000})) == [
        "a is 5.50 MB, 500 kB more than max-wheel = 5.00 MB",
        "together 8.50 MB, 500 kB more than budget = 8.00 MB\n       5.50 MB a\n       3.00 MB b",
    ]
    assert list(Policy().exceeded({"a": 1 << 40})) == []


def test_policy_promises_the_glibc_of_releases(tmp_path: Path) -> None:
    promising = WITH_PTX.replace("[targets]", '[targets]\nmanylinux = "2_28"')
    assert nightly(tmp_path, recipe=promising).targets.manylinux == "2_28"
