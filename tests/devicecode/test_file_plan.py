"""Input of device links, fatbins, and files that only a linker reads."""

from __future__ import annotations

import pytest

from archsplit.devicecode.file_plan import EditMode, FileEdit, plan_rewrite
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.formats.fatbin import read_containers
from archsplit.formats.reader import open_file
from handmade_samples import (
    THREE,
    Maker,
    container,
    for_devices,
    held,
    image,
    in_memory,
    slimmed,
)
from target_lists import parse_targets

NINE = for_devices("9.0")


INPUT = container(image("sm_80"), image("sm_90"), image("compute_80"), image("compute_90"))


@pytest.mark.parametrize(
    ("linked", "choice", "kept"),
    [
        (("sm_80", "sm_90"), for_devices("9.0"), []),
        (("sm_80", "sm_90"), for_devices("8.6", "9.0"), []),
        # A newer GPU links the newest PTX itself.
        (("sm_80", "sm_90"), for_devices("9.0", ptx=PtxPolicy.NEWEST), ["compute_90"]),
        # The driver links for a GPU that the device link did not serve.
        (("sm_80",), for_devices("8.0", "9.0"), ["sm_90"]),
        (("sm_80",), for_devices("10.0"), ["compute_90"]),
        (("compute_80",), for_devices("9.0"), ["sm_90"]),
        # A list names what stays.
        (
            ("sm_80", "sm_90"),
            Selection(keep=frozenset(parse_targets("sm_90")), ptx=PtxPolicy.NONE),
            ["sm_90"],
        ),
    ],
)
def test_link_input_stays_for_gpus_without_linked_code(
    linked: tuple[str, ...], choice: Selection, kept: list[str], maker: Maker
) -> None:
    library = maker.linked_library(container(*map(image, linked)), INPUT, INPUT)
    new, _ = slimmed(library, choice)
    assert held(new)[2:] == [kept, kept]
    assert len(in_memory(new, 4)) == 4


@pytest.mark.parametrize("mode", EditMode)
def test_a_fatbin_holds_the_containers_back_to_back(maker: Maker, mode: EditMode) -> None:
    fatbin = maker.folder / "three.fatbin"
    fatbin.write_bytes(b"".join(THREE))
    new, plan = slimmed(fatbin, NINE, mode)
    found = [
        [str(entry.target) for entry in one.entries()] for one in read_containers(open_file(new))
    ]
    assert found == [["sm_90"], ["compute_80"], ["sm_90a"]]
    saved = fatbin.stat().st_size - new.stat().st_size
    gone = sum(one.container.size - one.size for one in plan.containers)
    assert saved == (gone if mode is EditMode.SHRINK else 0)


@pytest.mark.parametrize("name", ["one.o", "libone.a"])
def test_input_of_a_linker_stays_as_it_is(name: str, maker: Maker) -> None:
    wrapped, host = maker.objects("one", THREE)
    path = maker.folder / name
    if path.suffix == ".a":
        maker.run("ar", "rcs", name, wrapped.name, host.name)
    else:
        wrapped.replace(path)
    plan = plan_rewrite(open_file(path), FileEdit(selection=NINE))
    assert not plan.containers
    assert not plan.is_changed


def test_other_files_have_nothing_to_take_out(maker: Maker) -> None:
    text = maker.folder / "text.txt"
    text.write_text("text")
    plan = plan_rewrite(open_file(text), FileEdit(selection=NINE))
    assert plan.form is None
    assert not plan.is_changed
