from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from archsplit.index.static_model import (
    IndexEntry,
    IndexRelease,
    RetentionLimits,
    family,
    missing_plugins,
    prune,
    release_sets,
)
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Sequence


def wheel(
    project: str,
    version: str,
    *pins: str,
    day: int = 0,
    tags: str = "py3-none-any",
    yanked: str | None = None,
    size: int = 10,
) -> IndexEntry:
    return IndexEntry(
        file=f"{project.replace('-', '_')}-{version}-{tags}.whl",
        sha256="ab" * 32,
        metadata_sha256="cd" * 32,
        size=size,
        uploaded=day,
        yanked=yanked,
        pins=tuple(release(pin) for pin in pins),
    )


def release(text: str) -> IndexRelease:
    name, _, version = text.partition("==")
    return IndexRelease(project=distribution_name(name), version=version)


def toy(version: str, *targets: str, day: int = 0, size: int = 10) -> list[IndexEntry]:
    """A core and its plugins, as a build makes them."""
    return [
        wheel("toy", version, *(f"toy-{each}=={version}" for each in targets), day=day, size=size),
        *(wheel(f"toy-{each}", version, f"toy=={version}", day=day, size=size) for each in targets),
    ]


def gone(entries: Sequence[IndexEntry], *, now: int = 0, **limits: int) -> list[str]:
    done = prune(entries, RetentionLimits(**limits), now=now)
    return [str(release) for one in done for release in one.releases]


def test_a_core_and_its_plugins_are_one_set() -> None:
    sets = release_sets(
        [*toy("1.0", "sm80", "sm90"), *toy("1.1", "sm90"), wheel("other", "1.0", "toy==1.0")]
    )
    assert [[str(release) for release in one.releases] for one in sets] == [
        ["other==1.0"],
        ["toy==1.0", "toy-sm80==1.0", "toy-sm90==1.0"],
        ["toy==1.1", "toy-sm90==1.1"],
    ]


def test_old_release_is_pruned_with_its_plugins() -> None:
    entries = [*toy("1.0", "sm90", day=1), *toy("1.1", "sm90", day=5), *toy("1.2", "sm90", day=9)]
    assert gone(entries, now=9, seconds=4) == ["toy==1.0", "toy-sm90==1.0"]
    assert gone(entries, now=99, seconds=4) == [
        *("toy==1.0", "toy-sm90==1.0", "toy==1.1", "toy-sm90==1.1")
    ]
    assert gone(entries, now=99) == []


def test_later_plugin_keeps_its_core() -> None:
    entries = [*toy("1.0", "sm90"), *toy("1.1", "sm90", day=9)]
    entries[1] = wheel("toy-sm90", "1.0", "toy==1.0", day=8)
    assert gone(entries, now=9, seconds=4) == []


def test_newest_plugin_of_a_dropped_target_stays_with_its_core() -> None:
    entries = [
        *toy("1.0", "sm75", "sm90", day=1),
        *toy("1.1", "sm90", day=2),
        *toy("1.2", "sm90", day=3),
    ]
    assert gone(entries, now=99, seconds=1) == ["toy==1.1", "toy-sm90==1.1"]


def test_the_newest_of_each_platform_stays() -> None:
    entries = [
        wheel("toy", "1.0", tags="py3-none-linux_aarch64"),
        wheel("toy", "1.0", tags="py3-none-linux_x86_64"),
        wheel("toy", "1.1", tags="py3-none-linux_x86_64"),
        wheel("toy", "0.9", tags="py3-none-linux_x86_64"),
    ]
    assert gone(entries, now=99, seconds=1) == ["toy==0.9"]


def test_yanked_release_is_newest_only_if_all_are_yanked() -> None:
    entries = [wheel("toy", "1.0"), wheel("toy", "1.1", yanked="")]
    assert gone(entries, now=99, seconds=1) == ["toy==1.1"]
    both = [wheel("toy", "1.0", yanked=""), wheel("toy", "1.1", yanked="")]
    assert gone(both, now=99, seconds=1) == ["toy==1.0"]


def test_versions_sort_as_versions_and_not_as_text() -> None:
    entries = [wheel("toy", "1.0.dev9"), wheel("toy", "1.0.dev10"), wheel("toy", "1.0")]
    assert gone(entries, now=99, seconds=1) == ["toy==1.0.dev10", "toy==1.0.dev9"]


def test_the_oldest_goes_until_the_rest_fits() -> None:
    entries = [entry for day in range(5) for entry in toy(f"1.{day}", "sm90", day=day, size=100)]
    assert gone(entries, size=1000) == []
    assert gone(entries, size=700) == ["toy==1.0", "toy-sm90==1.0", "toy==1.1", "toy-sm90==1.1"]
    done = prune(entries, RetentionLimits(size=1), now=0)
    assert len(done) == 4


def test_missing_plugins_of_a_core_are_named() -> None:
    core, plugin = toy("1.0", "sm90")
    assert missing_plugins([core, plugin]) == ()
    assert missing_plugins([core]) == (
        "toy-1.0-py3-none-any.whl names toy-sm90==1.0, which is not there",
    )
    assert missing_plugins([plugin]) == ()
    assert missing_plugins([wheel("toy", "1.0", "other==1.0", "toy-tools==2.0")]) == ()


RELEASES = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sets(st.sampled_from(["sm75", "sm80", "sm90", "sm120"])),
        st.integers(0, 9),
        st.integers(0, 100),
    ),
    unique_by=lambda one: one[0],
    max_size=7,
)
LIMITS = st.none() | st.integers(0, 300)


@given(RELEASES, LIMITS, LIMITS)
def test_pruning_keeps_the_newest_and_is_idempotent(
    releases: list[tuple[int, set[str], int, int]], seconds: int | None, size: int | None
) -> None:
    entries = [
        entry
        for number, targets, day, each in releases
        for entry in toy(f"1.{number}", *sorted(targets), day=day, size=each)
    ]
    done = prune(entries, RetentionLimits(seconds=seconds, size=size), now=9)
    left = {entry.file: entry for entry in entries}
    for one in (entry for each in done for entry in each.entries):
        del left[one.file]
    assert missing_plugins(left.values()) == ()
    for entry in left.values():  # no plugin without its core
        assert {str(pin) for pin in entry.pins} <= {str(one.release) for one in left.values()}
    for entry in entries:  # the newest of each project stays
        others = [one for one in entries if one.release.project == entry.release.project]
        newest = max(others, key=lambda one: int(one.release.version.removeprefix("1.")))
        assert newest.file in left
    again = prune(left.values(), RetentionLimits(seconds=seconds, size=size), now=9)
    assert again == ()


def test_family_has_the_core_and_all_its_plugins() -> None:
    known = [distribution_name(name) for name in ("a", "a-cc80", "a-common-cc80", "ab", "b-cc80")]
    for name in ("a", "a-cc80", "a-cc90"):
        assert family([distribution_name(name)], known) == {*known[:3], name}
    assert family([distribution_name("b")], known) == {"b", "b-cc80"}
    assert family([distribution_name("b-cc80")], known) == {"b-cc80"}
