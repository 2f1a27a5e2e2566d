"""Opened files are the checked ones, and the core stays the one that was imported."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, LIBRARY, Stub, Workbench, compile_c

from archsplit.release.loader import copy_loader_and_stub

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    workbench.core(tmp_path)
    return tmp_path


UPGRADE = """
import os, sys, vecsort
first = vecsort.load(capability="9.0")
os.replace({new!r}, {plugin!r})
for name in ("core.pack", "core.json"):
    os.replace(os.path.join({upgraded!r}, name), os.path.join({face!r}, name))
try:
    vecsort.explain()
except vecsort.PluginError as error:
    print(error)
for name in [name for name in sys.modules if name.startswith("vecsort")]:
    del sys.modules[name]
import vecsort
try:
    vecsort.load(capability="9.0")
except vecsort.PluginOpenError as error:
    print(error)
"""


def test_upgrade_in_place_needs_a_new_process(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    plugin = workbench.plugin(site, "sm_90")
    new = workbench.stub(tmp_path / "new", Stub(version=b"1.2.4"))
    face = site / "vecsort" / "_archsplit"
    (tmp_path / "upgraded").mkdir()
    upgraded = workbench.core(tmp_path / "upgraded", version="1.2.4")
    core = face / "core.json"
    code = UPGRADE.format(new=str(new), plugin=str(plugin), face=str(face), upgraded=str(upgraded))
    done = workbench.python(site, code)
    first, second = done.stdout.splitlines()
    assert first == f"{core} was replaced after it was imported; start the process again"
    assert second.startswith(f"{plugin} is not what was loaded under its name")
    assert second.endswith("start it again")


SWAP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void *dlopen(const char *path, int mode) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (path != NULL && strcmp(path, getenv("SWAP_OLD")) == 0) {
        rename(getenv("SWAP_NEW"), path);
    }
    return next(path, mode);
}
"""


@pytest.mark.parametrize("version", [b"1.2.4", b"1.2.3"])
def test_plugin_swapped_after_the_check_is_refused(
    workbench: Workbench, site: Path, tmp_path: Path, version: bytes
) -> None:
    plugin = workbench.plugin(site, "sm_90")
    other = workbench.stub(tmp_path / "other.so", Stub(version=version))
    source = tmp_path / "swap.c"
    source.write_text(SWAP)
    swap = compile_c(tmp_path / "swap.so", "-shared", "-fPIC", str(source), "-ldl")
    code = (
        "import vecsort\ntry:\n    vecsort.load(capability='9.0')\n"
        "except vecsort.PluginOpenError as error:\n    print(error)\n"
    )
    places = {"LD_PRELOAD": swap, "SWAP_OLD": plugin, "SWAP_NEW": other}
    done = workbench.python(site, code, **{name: str(path) for name, path in places.items()})
    assert not other.exists(), done.stderr
    assert done.stdout.startswith(f"{plugin} is not what was loaded under its name"), done.stderr


@pytest.mark.parametrize("version", [b"1.2.4", b"1.2.3"])
def test_plugin_with_a_loaded_soname_is_refused(
    workbench: Workbench, site: Path, tmp_path: Path, version: bytes
) -> None:
    """Even where the other file has the same descriptor, it is not what was checked."""
    plugin = workbench.plugin(site, "sm_90")
    other = compile_c(
        tmp_path / "other.so", "-shared", "-fPIC", "-Os", f"-Wl,-soname,{plugin}",
        str(HERE / "stub_plugin.c"),
    )  # fmt: skip
    content = other.read_bytes()
    assert content.count(b"\xa5" * 512) == 1
    other.write_bytes(content.replace(b"\xa5" * 512, Stub(version=version).encode()))
    code = (
        f"import ctypes, vecsort\nctypes.CDLL({str(other)!r})\n"
        "try:\n    vecsort.load(capability='9.0')\n"
        "except vecsort.PluginOpenError as error:\n    print(error)"
    )
    done = workbench.python(site, code)
    assert done.stdout.startswith(f"{plugin} is not what was loaded under its name"), done
    good = workbench.python(site, "import vecsort; print(vecsort.load(capability='9.0')._name)")
    assert good.stdout == f"{plugin}\n"


def test_plugin_for_an_unknown_target_is_refused(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    own = workbench.plugin(site, "sm_90")
    workbench.plugin(tmp_path / "other", "sm_90a")
    code = (
        f"import sys; sys.path.append({str(tmp_path / 'other')!r})\nimport vecsort\n"
        "print(vecsort.load()._name)\n"
        "print(*(f'{each.verdict}: it {each.reason}' for each in vecsort.explain().candidates))"
    )
    name, verdicts = workbench.python(site, code, gpus="9.0").stdout.splitlines()
    assert name == str(own)
    assert verdicts.endswith(
        "unknown-target: it is for sm_90a, but vecsort 1.2.3 has no plugin for that; remove it"
    )


def notes(library: Path) -> str:
    command = ["readelf", "-nW", "--dyn-syms", str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_compiled_libraries_are_hardened(tmp_path: Path, machine: str) -> None:
    built = copy_loader_and_stub(folder=tmp_path, machine=machine)  # type: ignore[arg-type] # one of the two
    branches = "IBT, SHSTK" if machine == "x86_64" else "BTI, PAC"
    for library in built:
        assert "Build ID: " in notes(library)
        assert "__stack_chk_fail" in notes(library)
        assert branches in notes(library)


def test_name_with_control_characters_is_escaped(workbench: Workbench, site: Path) -> None:
    bad = site / "vecsort_plugins" / "cuda" / "sm_9\x1b[31m0\n\xc2\x9b"
    bad.mkdir(parents=True)
    (bad / LIBRARY).write_bytes(b"no library")
    code = "from vecsort._archsplit.doctor import main; main({})"
    text, document = (
        workbench.python(site, code.format(arguments), gpus="9.0").stdout
        for arguments in ("[]", "['--json']")
    )
    assert not {"\x1b", "\x9b"} & {*text, *document}
    assert bad.name in json.loads(document)["candidates"][0]["path"]
    failed = workbench.python(site, "import vecsort; vecsort.load()", gpus="9.0")
    assert "\x1b" not in failed.stderr
    assert "sm_9\\x1b[31m0\\x0a" in failed.stderr
