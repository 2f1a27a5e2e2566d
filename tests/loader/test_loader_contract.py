"""Old cores with new plugins and the reverse: served, or refused as the rules of plugin.h say.

What is old is frozen in ``old_contract``. What is new is what this tree writes, and plugins of
minor versions yet to come, which have appended to every struct that may grow.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import HERE, LOADER, Stub, Workbench, run, sources
from test_loader_abi import DESCRIPTOR

from archsplit.formats import descriptor

if TYPE_CHECKING:
    from pathlib import Path

OLD = HERE / "old_contract"
FROZEN = "21675a24"
END = ("-ldl", "-lpthread")


def compile_with(include: Path, output: Path, *arguments: object) -> Path:
    """Compile with these headers and no others."""
    command = ["gcc", "-std=c11", f"-I{include}", "-o", output, *arguments]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def folder(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs: of old and new, a whole one and one whose loader is a library of the other age."""
    folder: Path = tmp_path_factory.mktemp("contract")
    old_sources = sorted((OLD / "src").glob("*.c"))
    probe, old = HERE / "loader_probe.c", folder / "include"
    old.mkdir()
    (old / "archsplit").symlink_to(OLD / "include")  # where programs of today look for it
    hidden = ("-shared", "-fPIC", "-fvisibility=hidden")
    for age in ("old", "new"):
        (folder / age).mkdir()
    library = "libarchsplit_loader.so"
    soname = f"-Wl,-soname,{library}"
    compile_with(old, folder / "old" / library, *hidden, soname, *old_sources, *END)
    shutil.copy(workbench.library, folder / "new" / library)
    compile_with(old, folder / "old-whole", probe, *old_sources, *END)
    compile_with(LOADER / "include", folder / "new-whole", probe, *sources(), *END)
    for client, age, include in (("old", "new", old), ("new", "old", LOADER / "include")):
        # Before LD_LIBRARY_PATH, which leads to the stand-in for NVML and to a loader beside it.
        rpath = f"-Wl,--disable-new-dtags,-rpath,{folder / age}"
        where = (f"-L{folder / age}", "-larchsplit_loader", rpath)
        compile_with(include, folder / f"{client}-client", probe, *where, *END)
    return folder


PROGRAMS = ("old-whole", "new-whole", "old-client", "new-client")


def probed(workbench: Workbench, program: Path, *arguments: object) -> str:
    return run([str(program), *map(str, arguments)], workbench.environment("9.0")).stdout


def test_what_is_frozen_was_not_touched() -> None:
    digest = hashlib.sha256()
    for path in sorted(each for each in OLD.rglob("*") if each.is_file()):
        digest.update(str(path.relative_to(OLD)).encode() + b"\0" + path.read_bytes())
    assert digest.hexdigest()[: len(FROZEN)] == FROZEN


@pytest.fixture(scope="module")
def old_plugin(folder: Path) -> Path:
    return compile_with(OLD, folder / "plugin.so", "-shared", "-fPIC", OLD / "plugin.c")


@pytest.mark.parametrize("program", PROGRAMS)
def test_old_plugin_is_served(
    workbench: Workbench, folder: Path, old_plugin: Path, program: str
) -> None:
    found = probed(workbench, folder / program, "--file", old_plugin, "--open", 0)
    assert f"candidate accepted: {old_plugin}" in found
    assert "opened, the answer is 42" in found


@pytest.mark.parametrize("program", PROGRAMS)
def test_plugin_of_today_is_served(
    workbench: Workbench, folder: Path, tmp_path: Path, program: str
) -> None:
    plugin = workbench.stub(tmp_path / "stub.so", Stub(contract=descriptor.CONTRACT))
    found = probed(workbench, folder / program, "--file", plugin, "--open", 0)
    assert "opened, the answer is 42" in found
    (tmp_path / "note").write_bytes(descriptor.encode_note(DESCRIPTOR))
    source = tmp_path / "plugin.s"
    source.write_text(
        f'.section {descriptor.NOTE_SECTION}, "a", %note\n.balign 4\n.incbin "{tmp_path}/note"\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    written = compile_with(OLD, tmp_path / "written.so", "-shared", source)
    assert f"candidate accepted: {written}" in probed(
        workbench, folder / program, "--file", written, "--skip"
    )


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


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("case", LATER)
def test_later_plugin_is_served_or_refused_by_the_rules(
    workbench: Workbench, folder: Path, tmp_path: Path, program: str, case: str
) -> None:
    stub, verdict = LATER[case]
    plugin = workbench.stub(tmp_path / "stub.so", stub)
    found = probed(workbench, folder / program, "--file", plugin, "--open", 0)
    assert f"candidate {verdict}: {plugin}" in found
    assert ("opened, the answer is 42" in found) is (verdict == "accepted")


@pytest.mark.parametrize("program", PROGRAMS)
def test_pack_in_a_librarys_place_is_refused(
    workbench: Workbench, folder: Path, program: str
) -> None:
    found = probed(workbench, folder / program, "--file", OLD / "cc90.pack", "--skip")
    assert f"candidate not-elf: {OLD}/cc90.pack" in found


def core(workbench: Workbench, folder: Path, tmp_path: Path, age: str) -> SplitSite:
    loader = folder / age / "libarchsplit_loader.so"
    return split_site(workbench, tmp_path / "site", loader=loader)


def letters(workbench: Workbench, site: SplitSite) -> tuple[str, str]:
    code = (
        f"import ctypes; toy = ctypes.CDLL({str(site.library)!r})\n"
        "print(chr(toy.first_letter(0)) + chr(toy.first_letter(1)))"
    )
    done = workbench.python(site.site, code, gpus="9.0")
    return done.stdout.strip(), done.stderr


LATER_PACKS: dict[str, tuple[dict[str, object], str]] = {
    "as it was": ({}, ""),
    "a longer head": ({"head_size": 96}, ""),
    "longer rows": ({"library_size": 32, "container_size": 64, "image_size": 72}, ""),
    "all of it": (
        {
            "head_size": 128,
            "library_size": 40,
            "container_size": 56,
            "image_size": 80,
            "descriptor": Stub(shape=2, contract=(1, 3), fixed_size=160, target_size=12),
        },
        "",
    ),
    "another major": ({"descriptor": Stub(shape=2, contract=(2, 0))}, "follows contract 2.0"),
    "another shape": ({"descriptor": Stub(shape=1)}, "has shape 1, expected 2"),
    "shorter rows": ({"image_size": 56}, "the size of a row is 56"),
    "odd rows": ({"container_size": 52}, "the size of a row"),
    "a shorter head": ({"head_size": 72}, "the size of the head is 72"),
}


@pytest.mark.parametrize("age", ["old", "new"])
@pytest.mark.parametrize("case", LATER_PACKS)
def test_later_pack_is_served_or_refused_by_the_rules(
    workbench: Workbench, folder: Path, tmp_path: Path, age: str, case: str
) -> None:
    changes, refusal = LATER_PACKS[case]
    site = core(workbench, folder, tmp_path, age)
    site.add("cc90", "sm_90", **changes)
    found, talk = letters(workbench, site)
    assert found == ("--" if refusal else "hH")
    assert refusal in talk
    assert bool(talk) is bool(refusal)


@pytest.mark.parametrize("age", ["old", "new"])
def test_later_table_is_read(workbench: Workbench, folder: Path, tmp_path: Path, age: str) -> None:
    site = core(workbench, folder, tmp_path, age)
    site.add("cc90", "sm_90")
    changes = LATER_PACKS["all of it"][0]
    site.table(**changes)
    assert letters(workbench, site) == ("hH", "")
    site.table(descriptor=Stub(shape=2, contract=(2, 0)))
    found, talk = letters(workbench, site)
    assert found == "--"
    assert "the core is damaged, install it again" in talk


@pytest.mark.parametrize("age", ["old", "new"])
def test_library_in_a_packs_place_is_refused(
    workbench: Workbench, folder: Path, tmp_path: Path, old_plugin: Path, age: str
) -> None:
    site = core(workbench, folder, tmp_path, age)
    path = site.add("cc90", "sm_90")
    shutil.copy(old_plugin, path)
    found, talk = letters(workbench, site)
    assert found == "--"
    assert "is not a device pack: it starts with 7f 45 4c 46" in talk


def test_frozen_packs_are_served_by_the_loader_of_today(
    workbench: Workbench, folder: Path, tmp_path: Path
) -> None:
    site = core(workbench, folder, tmp_path, "new")
    shutil.copy(OLD / "core.pack", site.face)
    shutil.copy(OLD / "cc90.pack", site.add("cc90", "sm_90"))
    command = [sys.executable, str(site.face), "--json", "--full"]
    found = json.loads(run(command, workbench.environment("9.0")).stdout)
    assert [each["verdict"] for each in found["candidates"]] == ["accepted"]
    (device,) = found["devices"]
    assert (device["served"]["containers"]["native"], found["healthy"]) == (2, True)
