"""Libraries that are loaded before the program's own constructors, or by them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import Workbench, compile_c, run

if TYPE_CHECKING:
    from pathlib import Path

OPENER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void *library;
static void begin(void) {
    setenv("STAND_IN_GPUS", "9.0", 1); /* the C library may not have the environment yet */
    library = dlopen(TOY, RTLD_NOW);
}
static void end(void) {
    int (*letter)(int) = library ? (int (*)(int))dlsym(library, "first_letter") : NULL;
    if (letter) { printf("%c%c\\n", letter(0), letter(1)); fflush(stdout); }
}
"""
CONSTRUCTOR = (
    OPENER
    + """
__attribute__((constructor)) static void construct(void) { begin(); end(); }
"""
)
PREINIT = (
    OPENER
    + """
__attribute__((section(".preinit_array"), used)) static void (*first)(void) = begin;
int main(void) { end(); return 0; }
"""
)
NEEDS = """
#include <stdio.h>
int first_letter(int);
__attribute__((constructor)) static void construct(void) {
    printf("%c%c\\n", first_letter(0), first_letter(1));
    fflush(stdout);
}
"""
AUDIT = """
unsigned la_version(unsigned version) { return version; }
"""


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    core = split_site(workbench, tmp_path / "site")
    core.add("cc90", "sm_90")
    return core


def make(folder: Path, text: str, *words: str) -> Path:
    source = folder / "source.c"
    source.write_text(text)
    return compile_c(folder / "made", "-w", str(source), *words, "-ldl")


def toy(core: SplitSite) -> str:
    """Return the compiler's option for the path; the environment may come after constructors."""
    return f'-DTOY="{core.library}"'


def printed(workbench: Workbench, core: SplitSite, program: list[str], **more: str) -> str:
    done = run(program, workbench.environment("9.0", **more))
    assert done.returncode == 0, done.stderr
    return done.stdout


TRUE = [sys.executable, "-S", "-c", ""]


def test_preloaded_library_is_served(workbench: Workbench, core: SplitSite) -> None:
    code = "import ctypes; f = ctypes.CDLL(None).first_letter; print(chr(f(0)) + chr(f(1)))"
    program = [sys.executable, "-c", code]
    assert printed(workbench, core, program, LD_PRELOAD=str(core.library)) == "hH\n"


def test_library_needed_by_a_preloaded_one_is_served(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    folder = core.library.parent
    links = (f"-L{folder}", "-ltoy", f"-Wl,-rpath,{folder}", f"-Wl,-rpath-link,{core.face}")
    preload = make(tmp_path, NEEDS, "-shared", "-fPIC", *links)
    assert printed(workbench, core, TRUE, LD_PRELOAD=str(preload)) == "hH\n"


def test_library_opened_by_a_constructor_is_served(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    preload = make(tmp_path, CONSTRUCTOR, "-shared", "-fPIC", toy(core))
    assert printed(workbench, core, TRUE, LD_PRELOAD=str(preload)) == "hH\n"


def test_library_opened_before_all_constructors_is_served(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    assert printed(workbench, core, [str(make(tmp_path, PREINIT, toy(core)))]) == "hH\n"


def test_library_under_an_audit_module_is_served(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    audit = make(tmp_path, AUDIT, "-shared", "-fPIC", "-Wl,-z,now")
    code = f"import ctypes; f = ctypes.CDLL({str(core.library)!r}).first_letter; print(chr(f(0)))"
    program = [sys.executable, "-c", code]
    assert printed(workbench, core, program, LD_AUDIT=str(audit), LD_BIND_NOW="1") == "h\n"
