"""Processes of every kind that load a core's library: how they link, fork, thread and start."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, SplitSite, split_site
from loader_stubs import Stub, Workbench, compile_c, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    core = split_site(workbench, tmp_path / "site")
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    return core


def told(workbench: Workbench, core: SplitSite, code: str, **more: str) -> str:
    gpus = more.pop("gpus", "9.0")
    code = f"{LETTERS}\nlibrary = {str(core.library)!r}\n{code}"
    done = workbench.python(core.site, code, gpus=gpus, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("gpus", "letters"), [("8.0", "aA"), ("9.0", "hH"), ("8.0;9.0", "aA"), ("7.0", "--")]
)
def test_library_finds_the_images_of_its_gpus(
    workbench: Workbench, core: SplitSite, gpus: str, letters: str
) -> None:
    code = f"{LETTERS}\nprint(letters({str(core.library)!r}))"
    done = workbench.python(core.site, code, gpus=gpus)
    assert done.stdout.strip() == letters
    assert ("finds no code in 2 of 2" in done.stderr) is False  # the table has nothing for 7.0


MODES = {
    "deepbind": "os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND",
    "global": "os.RTLD_NOW | os.RTLD_GLOBAL",
    "lazy": "os.RTLD_LAZY | os.RTLD_LOCAL",
    "nodelete": "os.RTLD_NOW | os.RTLD_NODELETE",
}


@pytest.mark.parametrize("mode", MODES)
def test_host_may_open_it_in_any_mode(workbench: Workbench, core: SplitSite, mode: str) -> None:
    assert told(workbench, core, f"import os\nprint(letters(library, mode={MODES[mode]}))") == "hH"


def test_library_may_be_preloaded(workbench: Workbench, core: SplitSite) -> None:
    child = {**workbench.environment("9.0"), "LD_PRELOAD": str(core.library)}
    code = "import ctypes; print([chr(ctypes.CDLL(None).first_letter(i)) for i in range(2)])"
    done = run([sys.executable, "-c", code], child)
    assert (done.stdout, done.stderr) == ("['h', 'H']\n", "")


def test_reopened_library_is_served_again(workbench: Workbench, core: SplitSite) -> None:
    code = """
import _ctypes
for _ in range(3):
    opened = ctypes.CDLL(library)
    print(chr(opened.first_letter(0)))
    _ctypes.dlclose(opened._handle)
print("libtoy.so" in open("/proc/self/maps").read())
"""
    assert told(workbench, core, code).split() == ["h", "h", "h", "False"]


def test_library_is_served_in_another_namespace(workbench: Workbench, core: SplitSite) -> None:
    code = """
libc = ctypes.CDLL(None)
libc.dlmopen.restype = ctypes.c_void_p
libc.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
handle = libc.dlmopen(-1, library.encode(), 2)
print(chr(ctypes.CDLL(library, handle=handle).first_letter(1)), letters(library))
"""
    assert told(workbench, core, code) == "H hH"


IMPOSTOR = """
#include <stdlib.h>
#define F(name) void archsplit_##name(void); void archsplit_##name(void) { abort(); }
F(loader_create) F(loader_destroy) F(loader_service) F(last_error) F(best_target) F(verdict_name)
F(graft) F(loader_summary) F(loader_choose) F(loader_open) F(known_capability)
"""


def test_no_other_loader_is_called(workbench: Workbench, core: SplitSite, tmp_path: Path) -> None:
    source = tmp_path / "impostor.c"
    source.write_text(IMPOSTOR)
    impostor = compile_c(tmp_path / "impostor.so", "-shared", "-fPIC", str(source))
    assert told(workbench, core, "print(letters(library))", LD_PRELOAD=str(impostor)) == "hH"


def test_two_cores_are_served_each_by_its_own_packs(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    other = split_site(workbench, tmp_path / "site2", "othertoy")
    other.add("cc90", "compute_90")
    code = f"print(letters(library), letters({str(other.library)!r}))"
    assert told(workbench, core, code) == "hH pP"
    loader = str(other.face / "libarchsplit_loader.so")
    code = f"import os; ctypes.CDLL({loader!r}, mode=os.RTLD_GLOBAL)\n{code}"
    assert told(workbench, core, code) == "hH pP"


FORKS = """
import os
def child():
    pid = os.fork()
    if pid == 0:
        print(letters(library), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
child()
print(letters(library), flush=True)
child()
"""


def test_forks_before_and_after_the_load_are_served(workbench: Workbench, core: SplitSite) -> None:
    assert told(workbench, core, FORKS).split() == ["hH", "hH", "hH"]


FORK_MEANWHILE = """
import os, threading, time, warnings
warnings.simplefilter("ignore")
loader = ctypes.CDLL(os.path.dirname(library) + "/../_archsplit/libarchsplit_loader.so")
def graft():
    return loader.archsplit_graft({face!r}.encode(), {stub!r}.encode())
thread = threading.Thread(target=graft)
thread.start()
time.sleep(0.5)
pid = os.fork()
if pid == 0:
    os._exit(graft())
print(thread.is_alive(), os.waitpid(pid, 0)[1])
thread.join()
"""


def test_fork_while_another_thread_is_served_leaves_no_lock(
    workbench: Workbench, core: SplitSite
) -> None:
    code = FORK_MEANWHILE.format(face=str(core.face), stub=core.stub)
    assert told(workbench, core, code, STAND_IN_SLEEP="1") == "True 0"


PAUSE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

/* The call at which a thread stops, counted down to 0; then it waits until it is -1. */
volatile int pause_at = -1;

typedef int visit_one(struct dl_phdr_info *, size_t, void *);
static int (*real)(visit_one *, void *);

__attribute__((constructor)) static void find_real(void) {
    *(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
}

int dl_iterate_phdr(visit_one *visit, void *data) {
    if (pause_at > 0 && --pause_at == 0) {
        while (pause_at == 0) {
            usleep(1000);
        }
    }
    return real(visit, data);
}
"""

FORK_IN_LOCK = """
import os, signal, threading, time, warnings
warnings.simplefilter("ignore")
letters(library)
loader = ctypes.CDLL(os.path.dirname(library) + "/../_archsplit/libarchsplit_loader.so")
pause_at = ctypes.c_int.in_dll(ctypes.CDLL(None), "pause_at")
def graft():
    return loader.archsplit_graft({face!r}.encode(), {stub!r}.encode())
def start():
    thread = threading.Thread(target=graft)
    thread.start()
    return thread
ended, locked = [], []
for call in range(1, 9):
    pause_at.value = call
    first = start()
    while first.is_alive() and pause_at.value:
        time.sleep(0.001)
    if not first.is_alive():
        break
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        pause_at.value = -1
        os._exit(graft())
    ended.append(os.waitpid(pid, 0)[1])
    second = start()
    second.join(0.2)
    locked.append(second.is_alive())
    pause_at.value = -1
    first.join()
    second.join()
print(set(ended), set(locked))
"""


def test_fork_while_another_thread_has_the_lock_leaves_none_in_the_child(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    source = tmp_path / "pause.c"
    source.write_text(PAUSE)
    pause = compile_c(tmp_path / "pause.so", "-shared", "-fPIC", str(source), "-ldl")
    code = FORK_IN_LOCK.format(face=str(core.face), stub=core.stub)
    # Both: some calls are made with the lock, others without it.
    assert told(workbench, core, code, LD_PRELOAD=str(pause)) == "{0} {False, True}"


def test_links_to_folders_and_files_are_followed(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    for path in [each for each in core.site.rglob("*") if each.is_file()]:
        place = linked / path.relative_to(core.site)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    (tmp_path / "folder").symlink_to(core.site)
    for site in (linked, tmp_path / "folder"):
        code = f"print(letters({str(site / 'toy' / 'lib' / 'libtoy.so')!r}))"
        assert told(workbench, core, code) == "hH"


def test_packs_of_another_build_elsewhere_are_not_taken(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    other = split_site(workbench, tmp_path / "second")
    for name, target in (("cc80", "sm_80"), ("cc90", "sm_90")):
        core.add(name, target, descriptor=Stub(shape=2, build_id=bytes(32)))
    code = f"{LETTERS}\nprint(letters({str(other.library)!r}))"
    path = f"{core.site}:{other.site}"
    done = workbench.python(core.site, code, gpus="9.0", PYTHONPATH=path)
    assert done.stdout == "--\n"


@pytest.mark.parametrize("mine", [True, False])
def test_plugin_of_the_first_of_two_equal_cores_counts(
    workbench: Workbench, tmp_path: Path, mine: bool
) -> None:
    sites = [tmp_path / "first", tmp_path / "second"]
    for site in sites:
        workbench.core(site)
    paths = [workbench.plugin(site, "sm_90") for site in (sites if mine else sites[1:])]
    code = (
        f"import sys; sys.path[1:1] = {list(map(str, sites))!r}\nimport vecsort\n"
        "print(vecsort.load()._name)\n"
        "print([each.verdict for each in vecsort.explain().candidates])"
    )
    done = workbench.python(tmp_path, code, gpus="9.0")
    verdicts = ["accepted", "shadowed"][: len(paths)]
    assert done.stdout == f"{paths[0]}\n{verdicts}\n", done.stderr


def test_working_folder_is_not_looked_into(workbench: Workbench, tmp_path: Path) -> None:
    workbench.core(tmp_path / "site")
    here = tmp_path / "here"
    workbench.plugin(here, "sm_90")
    code = "import vecsort; print(len(vecsort.explain().candidates))"
    for start in ([], ["import os, shutil; shutil.rmtree(os.getcwd())"]):
        done = subprocess.run(
            [sys.executable, "-c", "\n".join([*start, code])],
            cwd=here, env={**workbench.environment("9.0"), "PYTHONPATH": str(tmp_path / "site")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("0\n", "")


def test_zip_on_the_path_is_passed_over(workbench: Workbench, tmp_path: Path) -> None:
    site = tmp_path / "site"
    workbench.core(site)
    path = workbench.plugin(site, "sm_90", Stub())
    (tmp_path / "some.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    code = "import vecsort; print(vecsort.load()._name)"
    more = {"PYTHONPATH": f"{tmp_path / 'some.zip'}:{site}"}
    assert workbench.python(site, code, gpus="9.0", **more).stdout == f"{path}\n"
