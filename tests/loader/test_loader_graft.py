"""Images that a split library gets, for each driver and each set of visible GPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, Image, SplitSite, images, split_site
from loader_stubs import Stub, Workbench, compile_c, run

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = "--"


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    return split_site(workbench, tmp_path / "site")


def served(workbench: Workbench, core: SplitSite, gpus: str | None, **more: str) -> tuple[str, str]:
    code = f"{LETTERS}\nprint(letters({str(core.library)!r}))"
    done = workbench.python(core.site, code, gpus=gpus, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.fixture
def all_packs(core: SplitSite) -> SplitSite:
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    core.add("ptx", "compute_90")
    return core


VIEWS: dict[str, tuple[str | None, dict[str, str], str]] = {
    "one": ("9.0", {}, "hH"),
    "only ptx": ("12.0", {}, "pP"),
    "an older minor": ("8.6", {}, "aA"),
    "none at all": (None, {}, NOTHING),
    "no gpu": ("", {}, NOTHING),
    "hidden": ("9.0", {"CUDA_VISIBLE_DEVICES": ""}, "hH"),
    "only the second": ("8.0;9.0", {"CUDA_VISIBLE_DEVICES": "GPU-a0000001"}, "aA"),
    "an instance": ("9.0/3", {}, "hH"),
    "an instance by its name": ("8.0;9.0/3", {"CUDA_VISIBLE_DEVICES": "MIG-b0010002"}, "aA"),
    "both": ("8.0;9.0", {}, "aA"),
    "nvml fails": ("9.0", {"STAND_IN_FAIL": "nvmlInit_v2=18"}, "aA"),
    "one is lost": ("8.0;9.0", {"STAND_IN_FAIL": "nvmlDeviceGetHandleByIndex_v2=15:0"}, "hH"),
    "eight": (";".join(["9.0"] * 8), {}, "hH"),
}
"""Visible GPUs, and the first image that each container then has; merged ones begin with a. What is
hidden is served too, because a program may show it later."""


@pytest.mark.parametrize("view", VIEWS)
def test_visible_device_is_served(workbench: Workbench, all_packs: SplitSite, view: str) -> None:
    gpus, more, letters = VIEWS[view]
    assert served(workbench, all_packs, gpus, **more) == (letters, "")


def test_driver_older_than_the_packs_toolkit_is_told(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc90", "sm_90", descriptor=Stub(shape=2, cuda_version=13020))
    assert served(workbench, core, "9.0") == ("hH", "")  # the same major version
    letters, talk = served(workbench, core, "9.0", STAND_IN_CUDA="12080")
    assert letters == NOTHING
    assert "is built with CUDA 13.2, but the driver (580.95.05) supports CUDA up to 12.8" in talk
    assert "finds no code in 2 of 2 containers" in talk


def test_ptx_newer_than_the_driver_is_not_taken(workbench: Workbench, core: SplitSite) -> None:
    newer = Stub(shape=2, cuda_version=13010, targets=("compute_90",))
    core.add("ptx", "compute_90", descriptor=newer)
    assert served(workbench, core, "12.0", STAND_IN_CUDA="13010") == ("pP", "")
    letters, talk = served(workbench, core, "12.0", STAND_IN_CUDA="13000")
    assert letters == NOTHING
    assert "update the driver" in talk
    core.add("cc80", "sm_80")
    assert served(workbench, core, "8.0", STAND_IN_CUDA="13000")[0] == "aA"


def test_pack_with_both_keeps_its_machine_code_when_its_ptx_is_too_new(
    workbench: Workbench, core: SplitSite
) -> None:
    both = Stub(shape=2, cuda_version=13010, targets=("sm_80", "sm_90", "compute_90"))
    core.add("all", "all", descriptor=both)
    # The pack's container as it is, which begins with sm_80; the driver takes sm_90 out of it.
    assert served(workbench, core, "9.0") == ("aA", "")
    letters, talk = served(workbench, core, "12.0")
    assert letters == NOTHING
    assert "finds no code in 2 of 2 containers" in talk


PINS = {
    "package": (Stub(shape=2, package=b"other"), "is a plugin of other, expected one of vecsort"),
    "version": (Stub(shape=2, version=b"1.2.4"), "is a plugin for vecsort 1.2.4, expected one"),
    "build": (Stub(shape=2, build_id=bytes(32)), "has the build id 0000000000000000"),
    "interface": (Stub(shape=2, interface_hash=bytes(32)), "has the interface hash 00000000"),
}


@pytest.mark.parametrize("pin", PINS)
def test_pack_of_another_core_is_refused(workbench: Workbench, core: SplitSite, pin: str) -> None:
    stub, words = PINS[pin]
    core.add("cc90", "sm_90", descriptor=stub)
    letters, talk = served(workbench, core, "9.0")
    assert letters == NOTHING
    assert words in talk
    assert "hint: python -m toy.doctor" in talk


@pytest.mark.parametrize("count", [1, 2])
def test_pack_without_a_container_of_the_core_is_refused(
    workbench: Workbench, core: SplitSite, count: int
) -> None:
    other = tuple((Image(number=0, target="sm_90", letter=letter),) for letter in "xy"[:count])
    core.add("cc90", "sm_90", containers=other, whole=other, places=core.places[:count])
    letters, said = served(workbench, core, "9.0")
    assert letters == NOTHING
    assert "has device code for another Python or platform, and none for this core" in said


def test_image_of_the_next_container_serves_no_other(workbench: Workbench, core: SplitSite) -> None:
    (old, new, _), (_, upper, _) = images(contained="all")
    both = Stub(shape=2, targets=("sm_80", "sm_90"))
    # In the index, the images of both containers are neighbors.
    core.add("first", "all", containers=((old,), (upper,)), descriptor=both)
    core.add("second", "all", containers=((new,), ()), descriptor=both)
    assert served(workbench, core, "9.0") == ("hH", "")


LISTED = {
    "number": lambda image: replace(image, number=image.number + 3),
    "size": lambda image: replace(image, size=136),
    "target": lambda image: replace(image, target=image.target.replace("90", "89")),
    "digest": lambda image: replace(image, letter="x"),
}


@pytest.mark.parametrize("field", LISTED)
def test_pack_with_another_image_than_the_table_lists_is_refused(
    workbench: Workbench, core: SplitSite, field: str
) -> None:
    listed = tuple(tuple(map(LISTED[field], held)) for held in images(contained="all"))
    core.table(containers=listed)
    core.add("cc90", "sm_90", whole=listed)
    letters, said = served(workbench, core, "9.0")
    assert letters == NOTHING
    assert "an image's number is 1, expected one that the core lists" in said


def test_wrapper_with_another_container_than_the_tables_is_left(
    workbench: Workbench, core: SplitSite
) -> None:
    (first, address), second = core.places
    core.table(places=((first, address + 8), second))
    core.add("cc90", "sm_90")
    letters, said = served(workbench, core, "9.0")
    assert letters == "-H"
    assert "1 of 2 wrappers are not where the core's table has them" in said


def test_malformed_capability_is_reported_and_not_used(
    workbench: Workbench, core: SplitSite
) -> None:
    core.add("cc90", "sm_90")
    letters, said = served(workbench, core, "9.0", ARCHSPLIT_CAPABILITY="banana")
    assert letters == "hH"
    assert said == (
        "archsplit: ARCHSPLIT_CAPABILITY=banana is not a compute capability; write it as in 8.7,"
        " or remove the variable\n"
    )
    command = [sys.executable, str(core.face)]
    done = run(command, workbench.environment("9.0", ARCHSPLIT_CAPABILITY="banana"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ARCHSPLIT_CAPABILITY=banana is not a compute capability")


NO_ITERATION = """
#include <stdlib.h>
int dl_iterate_phdr(int (*visit)(void *, size_t, void *), void *data) {
    (void)visit, (void)data;
    abort();
}
"""


def test_library_plugin_is_opened_without_the_lock_of_dl_iterate_phdr(
    workbench: Workbench, tmp_path: Path
) -> None:
    """A forked child may find that lock taken by a thread that it doesn't have."""
    workbench.core(tmp_path)
    workbench.plugin(tmp_path, "sm_90")
    source = tmp_path / "iterate.c"
    source.write_text(NO_ITERATION)
    preload = compile_c(tmp_path / "iterate.so", "-shared", "-fPIC", str(source))
    code = "import vecsort; print(vecsort.load())"
    done = workbench.python(tmp_path, code, gpus="9.0", LD_PRELOAD=str(preload))
    assert "sm_90/libvecsort.so" in done.stdout, done.stderr


NO_FILES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
struct dl_phdr_info;
typedef int visitor(struct dl_phdr_info *, size_t, void *);
static __thread int is_inside;
int dl_iterate_phdr(visitor *visit, void *data) {
    int (*iterate)(visitor *, void *) = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    is_inside = 1;
    int stopped = iterate(visit, data);
    is_inside = 0;
    return stopped;
}
int open(const char *path, int flags, ...) {
    if (is_inside) {
        abort();
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666);
}
"""


def test_packs_are_mapped_outside_of_the_lock_of_dl_iterate_phdr(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    """A child that is forked meanwhile would hang in its next dlopen."""
    core.add("cc90", "sm_90")
    source = tmp_path / "files.c"
    source.write_text(NO_FILES)
    preload = compile_c(tmp_path / "files.so", "-shared", "-fPIC", str(source), "-ldl")
    assert served(workbench, core, "9.0", LD_PRELOAD=str(preload)) == ("hH", "")
