from __future__ import annotations

import random
import re
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archsplit.recipe.values import matching_files

NAMES = ["a.cu", "b.cu", "b.cuh", "src/a.cu", "src/deep/c.cu", "src/deep/deeper/d.cu"]
NAMES += [".hidden.cu", "src/.git/e.cu", "src/[x].cu"]


def tree(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def found(root: Path, pattern: str) -> str:
    return " ".join(map(str, matching_files(root, PurePosixPath(pattern))))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.cu", "a.cu b.cu"),
        ("b.*", "b.cu b.cuh"),
        ("?.cu", "a.cu b.cu"),
        ("[a]*.cu", "a.cu"),
        ("src/*.cu", "src/[x].cu src/a.cu"),
        ("*/*/*.cu", "src/deep/c.cu"),
        ("**/*.cu", "a.cu b.cu src/[x].cu src/a.cu src/deep/c.cu src/deep/deeper/d.cu"),
        ("src/**/*.cu", "src/[x].cu src/a.cu src/deep/c.cu src/deep/deeper/d.cu"),
        ("src/**/**/d.cu", "src/deep/deeper/d.cu"),
        ("src/deep/**", "src/deep/c.cu src/deep/deeper/d.cu"),
        (".*.cu", ".hidden.cu"),
        ("src/.git/*", "src/.git/e.cu"),
        ("src", ""),
        ("a.cu/*", ""),
        ("none/*.cu", ""),
    ],
)
def test_patterns_match_names_within_one_folder_and_stars_any_folders(
    tmp_path: Path, pattern: str, expected: str
) -> None:
    assert found(tree(tmp_path, NAMES), pattern) == expected


def test_order_of_files_on_disk_does_not_show(tmp_path: Path) -> None:
    names = [f"src/{number:02}.cu" for number in range(40)]
    results = set()
    for seed in range(3):
        shuffled = random.Random(seed).sample(names, len(names))
        results.add(found(tree(tmp_path / str(seed), shuffled), "**/*.cu"))
    assert results == {" ".join(names)}


def test_links_are_followed_but_circles_end(tmp_path: Path) -> None:
    tree(tmp_path, ["src/a.cu", "other/b.cu"])
    (tmp_path / "src/circle").symlink_to(tmp_path)
    (tmp_path / "src/self").symlink_to("self")
    (tmp_path / "src/linked.cu").symlink_to("../other/b.cu")
    (tmp_path / "src/broken.cu").symlink_to("nowhere.cu")
    assert found(tmp_path, "**/*.cu") == "other/b.cu src/a.cu src/linked.cu"
    assert found(tmp_path, "src/circle/other/*.cu") == "src/circle/other/b.cu"


def as_expression(pattern: str) -> str:
    """The same meaning in another language: a regular expression over the whole path."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(r"(?:[^./][^/]*/)*")
        else:
            visible = "" if part.startswith(".") else r"(?!\.)"
            parts.append(visible + re.escape(part).replace(r"\*", "[^/]*") + "/")
    return "".join(parts)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("tree"), NAMES)


@settings(deadline=None)  # an example reads folders
@given(parts=st.lists(st.sampled_from(["**", "*", "*.cu", "src", "deep", "a*", ".*"]), max_size=4))
def test_patterns_agree_with_their_regular_expression(parts: list[str], made_once: Path) -> None:
    pattern = "/".join([*parts, "*.cu"])
    expected = [name for name in sorted(NAMES) if re.fullmatch(as_expression(pattern), f"{name}/")]
    assert found(made_once, pattern) == " ".join(expected)
