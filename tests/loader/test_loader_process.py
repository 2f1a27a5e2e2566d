"""Reports of ``require`` and ``explain`` on a process: its memory counts, not the disk.

Each case is a child process that loads a real library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, SplitSite, places_of, split_site
from loader_stubs import HERE, Stub, Workbench, compile_c

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

ASK = """
import os, shutil
from toy._archsplit import PluginError, explain, require
def ask():
    try:
        require()
    except PluginError as error:
        print("refused:", str(error).replace("\\n", " | "))
    else:
        print("fine")
def visible(value):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
"""


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    return split_site(workbench, tmp_path / "site")


def talk(
    workbench: Workbench, core: SplitSite, code: str, gpus: str = "9.0", **more: str
) -> subprocess.CompletedProcess[str]:
    start = f"{LETTERS}{ASK}\nlibrary = {str(core.library)!r}\n"
    return workbench.python(core.site, start + code, gpus=gpus, **more)


def test_late_pack_needs_a_restart(workbench: Workbench, core: SplitSite, tmp_path: Path) -> None:
    pack = core.add("cc90", "sm_90")
    away = tmp_path / "cc90"
    pack.parent.rename(away)
    done = talk(
        workbench,
        core,
        f"print(letters(library)); shutil.move({str(away)!r}, {str(pack.parent)!r}); ask()\n"
        "found = explain()\nprint(found.healthy, found.devices[0].served.restart)\n"
        "print(found.text())",
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "--", done.stderr
    assert lines[1].startswith("refused: no plugin of vecsort 1.2.3 serves device 0")
    assert lines[1].endswith(
        "hint: start this process again: a pack was installed after it loaded its libraries"
    )
    assert lines[2] == "False True"
    assert "  toy/lib/libtoy.so: 0 of 2 containers served" in lines
    assert talk(workbench, core, "print(letters(library)); ask()").stdout == "hH\nfine\n"


def test_late_pack_serves_later_libraries(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    pack = core.add("cc90", "sm_90")
    away = tmp_path / "cc90"
    pack.parent.rename(away)
    done = talk(
        workbench,
        core,
        "import ctypes\n"
        f"graft = ctypes.CDLL({str(core.face / 'libarchsplit_loader.so')!r}).archsplit_graft\n"
        f"graft({str(core.face)!r}.encode(), {core.stub!r}.encode())\n"  # no library yet
        f"shutil.move({str(away)!r}, {str(pack.parent)!r})\n"
        "print(letters(library)); ask()",
    )
    assert done.stdout == "hH\nfine\n"


@pytest.mark.parametrize("first", ["", "0", "1"])
def test_gpu_visible_later_is_served(workbench: Workbench, core: SplitSite, first: str) -> None:
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    code = "letters(library); visible('1'); ask()\nprint(explain().libraries[0].targets)"
    more = {"CUDA_VISIBLE_DEVICES": first, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = talk(workbench, core, code, gpus="8.0;9.0", **more)
    assert done.stdout == "fine\n('sm_80', 'sm_90')\n", done.stderr


def test_child_may_choose_another_gpu(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    code = (
        "letters(library)\npid = os.fork()\n"
        "if pid == 0:\n    visible('1'); ask(); sys.stdout.flush(); os._exit(0)\nos.waitpid(pid, 0)"
    )
    more = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert talk(workbench, core, code, gpus="8.0;9.0", **more).stdout == "fine\n"


def test_stub_behind_a_link_finds_its_core(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    core.add("cc90", "sm_90")
    links = tmp_path / "links"
    links.mkdir()
    (links / core.stub).symlink_to(core.face / core.stub)
    done = talk(
        workbench,
        core,
        "print(letters(library)); ask()",
        LD_LIBRARY_PATH=f"{links}:{workbench.folder}",
    )
    assert (done.stdout, done.stderr) == ("hH\nfine\n", "")


def test_library_without_a_loader_is_not_served(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    core.add("cc90", "sm_90")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stub = elsewhere / core.stub
    stub.write_bytes((core.face / core.stub).read_bytes())
    code = f"import ctypes; ctypes.CDLL({str(stub)!r}); print(letters(library)); ask()"
    done = talk(workbench, core, code)
    assert done.stdout.startswith("--\nrefused: "), done.stdout
    assert "install the core again" in done.stderr
    strict = talk(workbench, core, code, ARCHSPLIT_STRICT="1")
    assert (strict.returncode, strict.stdout) == (1, "")


def test_code_of_an_older_minor_is_counted(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc80", "sm_80")
    code = "letters(library); print(explain().devices[0].served.containers)"
    found = talk(workbench, core, code, gpus="8.6").stdout
    assert found == "Containers(native=0, older_minor=2, ptx=0, missing=0)\n"


def test_pack_with_a_changed_index_is_damaged(workbench: Workbench, core: SplitSite) -> None:
    pack = core.add("cc90", "sm_90")
    content = bytearray(pack.read_bytes())
    content[content.index(b"vecsort")] ^= 1
    pack.write_bytes(content)
    done = talk(workbench, core, "print(letters(library))")
    assert done.stdout == "--\n", done.stderr
    assert f"{pack} is damaged: its index does not match its digest" in done.stderr


def test_misplaced_wrapper_is_an_error(workbench: Workbench, core: SplitSite) -> None:
    moved = tuple((wrapper + 8, address) for wrapper, address in core.places)
    core.add("cc90", "sm_90")
    core.table(places=moved)
    code = "print(letters(library)); ask(); print(explain().libraries[0].unmatched)"
    done = talk(workbench, core, code)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[2]) == ("--", "2")
    assert 'hint: pip install --force-reinstall --no-deps "toy==1.2.3"' in lines[1]
    assert (
        "toy/lib/libtoy.so: 2 of 2 wrappers are not where the core's table has them" in done.stderr
    )
    strict = talk(workbench, core, code, ARCHSPLIT_STRICT="1")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert strict.stderr.endswith("archsplit: ARCHSPLIT_STRICT=1, so this process ends here\n")


def unmatched(workbench: Workbench, core: SplitSite) -> None:
    """See that no wrapper of a core's library is changed."""
    core.add("cc90", "sm_90")
    done = talk(workbench, core, "print(letters(library))")
    assert done.stdout == "--\n", done.stderr
    assert "2 of 2 wrappers are not where the core's table has them" in done.stderr


def test_wrapper_of_another_container_than_the_tables_stays(
    workbench: Workbench, core: SplitSite
) -> None:
    first, second = core.places
    core.table(places=((first[0], second[1]), (second[0], first[1])))
    unmatched(workbench, core)


def test_record_without_the_magic_number_of_wrappers_stays(
    workbench: Workbench, core: SplitSite
) -> None:
    core.table(places=places_of(core.library, "decoys"))
    unmatched(workbench, core)


def test_read_only_wrapper_is_unchanged(workbench: Workbench, tmp_path: Path) -> None:
    fixed = ('-DWRITABLE=__attribute__((section(".data.rel.ro")))', "-Wl,-z,relro")
    unmatched(workbench, split_site(workbench, tmp_path / "fixed", options=fixed))


def test_library_loaded_again_is_served_again(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc90", "sm_90")
    code = (
        "import ctypes, _ctypes\nprint(letters(library))\n"
        "one = ctypes.CDLL(library); handle = one._handle\n"
        "for _ in range(2): _ctypes.dlclose(handle)\n"
        "print('libtoy' in open('/proc/self/maps').read(), letters(library)); ask()\n"
        # Until one has the address of another that was closed.
        "bases = set()\n"
        "for count in range(1, 40):\n"
        "    maps = [line for line in open('/proc/self/maps') if 'libtoy' in line]\n"
        "    bases.add(maps[0].partition('-')[0])\n"
        "    handle = ctypes.CDLL(library)._handle\n"
        "    for _ in range(2): _ctypes.dlclose(handle)\n"
        "    assert letters(library) == 'hH'\n"
        "print(len(bases) < count)"
    )
    assert talk(workbench, core, code).stdout == "hH\nFalse hH\nfine\nTrue\n"


def test_replaced_core_is_not_mixed_with_the_loaded_one(
    workbench: Workbench, core: SplitSite
) -> None:
    core.add("cc90", "sm_90")
    code = (
        "import ctypes\nprint(letters(library))\n"
        f"path = {str(core.face / 'core.pack')!r}\n"
        "content = open(path, 'rb').read()\nimport hashlib, struct\n"
        "head = struct.unpack_from('<II', content, 8)\n"
        "size = head[0] + (head[1] + 7) // 8 * 8 + struct.unpack_from('<I', content, 24)[0]\n"
        "front = content[80:size].replace(b'\\x11' * 32, b'\\x33' * 32)\n"
        "digest = hashlib.sha256(front).digest()\n"
        "changed = content[:48] + digest + front + content[size:]\n"
        "os.unlink(path); open(path, 'wb').write(changed)\n"
        f"graft = ctypes.CDLL({str(core.face / 'libarchsplit_loader.so')!r}).archsplit_graft\n"
        f"print(graft({str(core.face)!r}.encode(), {core.stub!r}.encode()))\n"
    )
    done = talk(workbench, core, code)
    assert done.stdout == "hH\n5\n"
    assert "was replaced by another build after its first library was loaded" in done.stderr


SLOW = """
#include <unistd.h>
__attribute__((constructor)) static void wait_a_moment(void) { usleep(1000 * 1000); }
"""

DEADLOCK = """
import ctypes, threading, time
graft = ctypes.CDLL({loader!r}).archsplit_graft
def load():
    ctypes.CDLL("libdl.so.2").dlopen({slow!r}.encode(), 2)  # lets other threads run
loading = threading.Thread(target=load, daemon=True)
loading.start()
time.sleep(0.3)
asking = threading.Thread(target=lambda: graft({face!r}.encode(), {stub!r}.encode()), daemon=True)
asking.start()
for each in (loading, asking):
    each.join(20)
print("deadlock" if loading.is_alive() or asking.is_alive() else "done", flush=True)
import os; os._exit(0)
"""


def test_graft_during_dlopen_causes_no_deadlock(
    workbench: Workbench, core: SplitSite, tmp_path: Path
) -> None:
    """A thread holds ld.so's lock while its library's stub calls; another one opens NVML."""
    core.add("cc90", "sm_90")
    source = tmp_path / "slow.c"
    source.write_text(SLOW)
    shared = ("-shared", "-fPIC")
    first = compile_c(tmp_path / "libfirst.so", *shared, str(source), "-Wl,-soname,libfirst.so")
    needs = ("-Wl,--no-as-needed", f"-Wl,-rpath,{tmp_path}:{core.face}", f"-L{tmp_path}")
    # Constructors run from the last needed library on: the slow one before the stub.
    both = (f"-L{core.face}", f"-l:{core.stub}", f"-l:{first.name}")
    slow = compile_c(tmp_path / "slow.so", *shared, str(HERE / "stub_fat.c"), *needs, *both)
    code = DEADLOCK.format(
        loader=str(core.face / "libarchsplit_loader.so"),
        slow=str(slow), face=str(core.face), stub=core.stub,
    )  # fmt: skip
    done = workbench.python(core.site, code, gpus="9.0")
    assert done.stdout == "done\n", done.stderr


def test_trace_says_each_decision(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc90", "sm_90")
    done = talk(workbench, core, "print(letters(library))", ARCHSPLIT_TRACE="1")
    assert done.stdout == "hH\n"
    lines = done.stderr.splitlines()
    assert all(line.startswith("archsplit-trace: ") for line in lines)
    for words in (
        f"packs of toy are searched in {core.site / 'toy_plugins'}",
        "cc90/device.pack is a plugin of this core",
        "cc90/device.pack is mapped",
        "device 0: Stand-in GPU 0, capability 9.0",
        "toy/lib/libtoy.so: 2 of 2 containers served, 0 unmatched",
    ):
        assert any(words in line for line in lines), done.stderr
    # One pack has all of each container.
    assert "images are merged" not in done.stderr
    assert talk(workbench, core, "letters(library)", ARCHSPLIT_TRACE="0").stderr == ""
    core.add("cc80", "sm_80")
    code = "letters(library); require(verify='full')"
    both = talk(workbench, core, code, gpus="8.0;9.0", ARCHSPLIT_TRACE="1").stderr
    assert "toy/lib/libtoy.so: images are merged in " in both
    assert "cc80/device.pack has the recorded digests" in both
    newer = Stub(shape=2, cuda_version=13010, targets=("compute_90",))
    core.add("ptx", "compute_90", descriptor=newer)
    more = {"ARCHSPLIT_TRACE": "1", "STAND_IN_CUDA": "13000"}
    refused = talk(workbench, core, "letters(library)", gpus="12.0", **more).stderr.splitlines()
    traced = [line for line in refused if line.startswith("archsplit-trace: ")]
    assert any("ptx/device.pack " in line and "update the driver" in line for line in traced)


def test_trace_calls_back(workbench: Workbench, core: SplitSite) -> None:
    core.add("cc90", "sm_90")
    code = (
        "import ctypes\nlines = []\n"
        f"loader = ctypes.CDLL({str(core.face / 'libarchsplit_loader.so')!r})\n"
        "kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)\n"
        "callback = kind(lambda line, context: lines.append((line.decode(), context)))\n"
        "loader.archsplit_trace(callback, ctypes.c_void_p(7))\nletters(library)\n"
        "loader.archsplit_trace(None, None)\ncount = len(lines); explain()\n"
        "print(lines[-1], count == len(lines))"
    )
    done = talk(workbench, core, code)
    expected = "('toy/lib/libtoy.so: 2 of 2 containers served, 0 unmatched', 7) True\n"
    assert (done.stdout, done.stderr) == (expected, "")
