"""Objects, static libraries and fatbins: slimmed, then used by their tools."""

from __future__ import annotations

import re
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.file_plan import EditMode, FileEdit, plan_rewrite, shrink_archive
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import BinaryFormatError
from archsplit.formats.fatbin import read_containers
from archsplit.formats.reader import open_file
from handmade_samples import (
    THREE,
    Maker,
    container,
    digest,
    for_devices,
    held,
    image,
    in_memory,
    slimmed,
)
from target_lists import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

NINE = for_devices("9.0")


def linked(maker: Maker, *inputs: Path) -> Path:
    library = maker.folder / "liblinked.so"
    maker.run("gcc", "-shared", *map(str, inputs), "-o", str(library))
    return library


def test_an_object_gets_shorter_and_links_as_before(maker: Maker) -> None:
    wrapped, host = maker.objects("one", THREE[:1])
    new, plan, _ = slimmed(wrapped, NINE)
    gone = sum(one.container.size - one.size for one in plan.containers)
    assert gone - 64 < wrapped.stat().st_size - new.stat().st_size <= gone
    assert held(new) == [["sm_90"]]
    subprocess.run(["readelf", "-aW", str(new)], capture_output=True, check=True)
    library = linked(maker, new, host)
    assert held(library) == [["sm_90"]]
    assert in_memory(library, 1) == [digest(container(image("sm_90", 0x5000)))]


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
    new, _, _ = slimmed(library, choice)
    assert held(new)[2:] == [kept, kept]
    assert len(in_memory(new, 4)) == 4


@pytest.mark.parametrize("mode", EditMode)
def test_an_object_with_several_containers_keeps_their_places(maker: Maker, mode: EditMode) -> None:
    wrapped, host = maker.objects("several", THREE)
    new, _, _ = slimmed(wrapped, NINE, mode)
    # Of the last container the SASS for 9.0a stays; the room behind it is cut.
    assert (new.stat().st_size < wrapped.stat().st_size) == (mode is EditMode.SHRINK)
    assert held(new) == [["sm_90"], ["compute_80"], ["sm_90a"]]
    assert len(in_memory(linked(maker, new, host), 3)) == 3


def test_an_object_whose_last_container_stays_whole(maker: Maker) -> None:
    wrapped, _ = maker.objects("last", (THREE[0], container(image("sm_90"))))
    new, plan, _ = slimmed(wrapped, NINE)
    assert plan.is_changed
    assert new.stat().st_size == wrapped.stat().st_size
    assert held(new) == [["sm_90"], ["sm_90"]]


@pytest.mark.parametrize("mode", EditMode)
def test_a_static_library_links_as_before(maker: Maker, mode: EditMode) -> None:
    wrapped, host = maker.objects("one", THREE[:1])
    (maker.folder / "text.txt").write_text("no object at all")
    archive = maker.folder / "libone.a"
    names = [wrapped.name, "text.txt", host.name]
    maker.run("ar", "rcs", archive.name, *names)
    new, plan, _ = slimmed(archive, NINE, mode)
    assert plan.is_changed
    assert (new.stat().st_size < archive.stat().st_size) == (mode is EditMode.SHRINK)
    assert maker.run("ar", "t", new.name).split() == names
    assert maker.run("nm", "-s", new.name) == maker.run("nm", "-s", archive.name)
    # Linked by the index only: `container` is asked for, so the linker has to find its member.
    library = maker.folder / "libfound.so"
    maker.run("gcc", "-shared", "-Wl,-u,container", "-L.", f"-l:{new.name}", "-o", library.name)
    assert in_memory(library, 1) == [digest(container(image("sm_90", 0x5000)))]


def test_an_index_of_64_bits_is_followed(maker: Maker) -> None:
    """As binutils write it for archives over 4 GB; made here by rewriting a small one's."""
    wrapped, host = maker.objects("one", THREE[:1])
    archive = maker.folder / "lib64.a"
    maker.run("ar", "rcs", archive.name, wrapped.name, host.name)
    archive.write_bytes(_with_wide_index(archive.read_bytes()))
    assert "container" in maker.run("nm", "-s", archive.name)
    new, _, _ = slimmed(archive, NINE)
    library = maker.folder / "libfound.so"
    maker.run("gcc", "-shared", "-Wl,-u,container", "-L.", f"-l:{new.name}", "-o", library.name)
    assert len(in_memory(library, 1)) == 1


def _with_wide_index(content: bytes) -> bytes:
    size = int(content[8 + 48 : 8 + 58])
    index, rest = content[68 : 68 + size], content[68 + size :]
    (count,) = struct.unpack_from(">I", index)
    offsets = struct.unpack_from(f">{count}I", index, 4)
    names = index[4 + 4 * count :]
    wide_size = 8 + 8 * count + len(names)
    wide_size += wide_size % 2
    growth = wide_size - size
    wide = struct.pack(f">{count + 1}Q", count, *(offset + growth for offset in offsets)) + names
    header = b"/SYM64/".ljust(48) + str(wide_size).encode().ljust(10) + b"`\n"
    header = header[:16] + content[24:56] + header[48:]
    return content[:8] + header + wide.ljust(wide_size, b"\0") + rest


def test_a_static_library_without_an_index(maker: Maker) -> None:
    wrapped, _ = maker.objects("one", THREE[:1])
    archive = maker.folder / "libplain.a"
    maker.run("ar", "rcS", archive.name, wrapped.name)
    new, _, _ = slimmed(archive, NINE)
    assert new.stat().st_size < archive.stat().st_size
    assert maker.run("ar", "t", new.name).split() == [wrapped.name]


def test_a_static_library_of_which_one_member_stays_as_it_is(maker: Maker) -> None:
    wrapped, _ = maker.objects("one", THREE[:1])
    other, _ = maker.objects("other", (container(image("sm_90")),))
    archive = maker.folder / "libtwo.a"
    maker.run("ar", "rcs", archive.name, other.name, wrapped.name)
    slimmed(archive, NINE)
    assert shrink_archive(open_file(archive), [(open_file(archive), ())]) == ()


def test_a_damaged_index_is_one_error(maker: Maker) -> None:
    wrapped, host = maker.objects("one", THREE[:1])
    archive = maker.folder / "libone.a"
    maker.run("ar", "rcs", archive.name, wrapped.name, host.name)
    content = bytearray(archive.read_bytes())
    content[68:72] = b"\xff\xff\xff\xff"
    archive.write_bytes(content)
    with pytest.raises(BinaryFormatError, match="index of a static library"):
        plan_rewrite(open_file(archive), FileEdit(selection=NINE))


@pytest.mark.parametrize("mode", EditMode)
def test_a_fatbin_holds_the_containers_back_to_back(maker: Maker, mode: EditMode) -> None:
    fatbin = maker.folder / "three.fatbin"
    fatbin.write_bytes(b"".join(THREE))
    new, plan, _ = slimmed(fatbin, NINE, mode)
    found = [
        [str(entry.target) for entry in one.entries()] for one in read_containers(open_file(new))
    ]
    assert found == [["sm_90"], ["compute_80"], ["sm_90a"]]
    saved = fatbin.stat().st_size - new.stat().st_size
    gone = sum(one.container.size - one.size for one in plan.containers)
    assert saved == (gone if mode is EditMode.SHRINK else 0)


def test_other_files_have_nothing_to_take_out(maker: Maker) -> None:
    text = maker.folder / "text.txt"
    text.write_text("text")
    plan = plan_rewrite(open_file(text), FileEdit(selection=NINE))
    assert plan.form is None
    assert not plan.is_changed


def test_an_archive_of_texts_has_no_containers(maker: Maker) -> None:
    (maker.folder / "text.txt").write_text("text")
    maker.run("ar", "rc", "libtext.a", "text.txt")
    plan = plan_rewrite(open_file(maker.folder / "libtext.a"), FileEdit(selection=NINE))
    assert not plan.containers
    assert re.search("STATIC", str(plan.form))
