"""Plugins of later minor versions: served, or refused as the rules of plugin.h say.

No release was made yet, so nothing older exists. At the first tag the contract is frozen: from then
on a folder ``old_contract`` has headers, sources, a pack and a table of that release, byte for
byte, and the tests here run them with plugins and cores of the current tree.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, SplitSite, split_site
from loader_stubs import Stub, Workbench

if TYPE_CHECKING:
    from pathlib import Path

LATER = {
    "appended fields": (Stub(contract=(1, 1), fixed_size=152), "accepted"),
    "longer rows": (Stub(contract=(1, 1), target_size=24), "accepted"),
    "both": (Stub(contract=(1, 65535), fixed_size=200, target_size=16), "accepted"),
    "another major": (Stub(contract=(2, 0)), "wrong-contract"),
    "an earlier major": (Stub(contract=(0, 9)), "wrong-contract"),
    "another shape": (Stub(contract=(1, 2), shape=3), "wrong-shape"),
    "an unknown suffix": (Stub(contract=(1, 2), changes={118: b"g\0"}), "malformed"),
    "an unknown kind": (Stub(contract=(1, 2), changes={112: b"\3\0"}), "malformed"),
    "less than was known": (Stub(fixed_size=112, changes={0: b"\x6c\0"}), "malformed"),
    "shorter rows": (Stub(changes={40: b"\6\0"}), "malformed"),
}


@pytest.mark.parametrize("case", LATER)
def test_later_plugin_is_served_or_refused_by_the_rules(
    workbench: Workbench, tmp_path: Path, case: str
) -> None:
    stub, verdict = LATER[case]
    plugin = workbench.stub(tmp_path / "stub.so", stub)
    found = workbench.probe("--file", plugin, "--open", 0, gpus="9.0").stdout
    assert f"candidate {verdict}: {plugin}" in found
    assert ("opened, the answer is 42" in found) is (verdict == "accepted")


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> SplitSite:
    return split_site(workbench, tmp_path / "site")


def letters(workbench: Workbench, site: SplitSite) -> tuple[str, str]:
    code = f"{LETTERS}\nprint(letters({str(site.library)!r}))"
    done = workbench.python(site.site, code, gpus="9.0")
    return done.stdout.strip(), done.stderr


LATER_PACKS: dict[str, tuple[dict[str, object], str]] = {
    "as it was": ({}, ""),
    "a longer head": ({"head_size": 104}, ""),
    "longer rows": ({"library_size": 32, "container_size": 88, "image_size": 72}, ""),
    "all of it": (
        {
            "head_size": 128,
            "library_size": 40,
            "container_size": 96,
            "image_size": 80,
            "descriptor": Stub(shape=2, contract=(1, 3), fixed_size=160, target_size=12),
        },
        "",
    ),
    "another major": ({"descriptor": Stub(shape=2, contract=(2, 0))}, "follows contract 2.0"),
    "another shape": ({"descriptor": Stub(shape=1)}, "has shape 1, expected 2"),
    "shorter rows": ({"image_size": 56}, "the size of a row is 56"),
    "odd rows": ({"container_size": 84}, "the size of a row"),
    "a shorter head": ({"head_size": 88}, "the size of the head is 88"),
}


@pytest.mark.parametrize("case", LATER_PACKS)
def test_later_pack_is_served_or_refused_by_the_rules(
    workbench: Workbench, site: SplitSite, case: str
) -> None:
    changes, refusal = LATER_PACKS[case]
    site.add("cc90", "sm_90", **changes)
    found, talk = letters(workbench, site)
    assert found == ("--" if refusal else "hH")
    assert refusal in talk
    assert bool(talk) is bool(refusal)


def test_later_table_is_read(workbench: Workbench, site: SplitSite) -> None:
    site.add("cc90", "sm_90")
    site.table(**LATER_PACKS["all of it"][0])
    assert letters(workbench, site) == ("hH", "")
    site.table(descriptor=Stub(shape=2, contract=(2, 0)))
    found, talk = letters(workbench, site)
    assert found == "--"
    assert f"({site.face}/core.pack); install the core again" in talk


def test_plugin_of_the_other_shape_is_refused(workbench: Workbench, site: SplitSite) -> None:
    path = site.add("cc90", "sm_90")
    assert f"candidate not-elf: {path}" in workbench.probe("--file", path, "--skip").stdout
    shutil.copy(workbench.stub(path.with_name("stub.so")), path)
    found, talk = letters(workbench, site)
    assert found == "--"
    assert "is not a device pack: it starts with 7f 45 4c 46" in talk
