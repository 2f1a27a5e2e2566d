"""Packs that arrive while a process runs: used before the registration of device code, never after.

Each case is a child process with a real library, and a CUDA runtime that records registrations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import HERE, STRICT, Workbench, compile_c

from made_once import made_once

if TYPE_CHECKING:
    from pathlib import Path

START = """
import _ctypes, ctypes, os, shutil
runtime = ctypes.CDLL({runtime!r}, mode=ctypes.RTLD_GLOBAL)
loader = ctypes.CDLL({loader!r})
from toy._archsplit import PluginError, explain, require
def graft():
    return loader.archsplit_graft({face!r}.encode(), {stub!r}.encode())
def load():
    return ctypes.CDLL({library!r})
def registered():
    letters = ""
    for read in (runtime.letter_at_registration, runtime.letter_at_first_kernel):
        letters += "".join(chr(read(index)) for index in range(runtime.registration_count()))
        letters += " "
    unchanged = all(runtime.is_as_registered(each) for each in range(runtime.registration_count()))
    return letters + ("unchanged" if unchanged else "changed")
def ask():
    found = explain()
    served = [each.served for each in found.libraries]
    try:
        require()
        hint = "fine"
    except PluginError as error:
        hint = str(error).splitlines()[-1]
    print(served, found.devices[0].served.restart, hint)
def arrive():
    shutil.move({away!r}, {place!r})
"""
RESTART = "hint: start this process again: a pack was installed after it loaded its libraries"
AGAIN = 'hint: pip install --force-reinstall --no-deps "toy==1.2.3"'


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "stand_in_cudart", make_runtime)


def make_runtime(folder: Path) -> Path:
    shared = ("-shared", "-fPIC", *STRICT)
    return compile_c(folder / "cudart.so", *shared, str(HERE / "stand_in_cudart.c"))


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    return split_site(workbench, tmp_path / "site")


def say(
    workbench: Workbench, core: SplitSite, runtime: Path, code: str, gpus: str = "9.0"
) -> list[str]:
    """Run code in a child, in which ``arrive()`` installs the pack ``cc90``."""
    place = core.add("cc90", "sm_90").parent
    away = core.site.parent / "cc90"
    place.rename(away)
    places = {"runtime": runtime, "face": core.face, "library": core.library, "stub": core.stub}
    places |= {"loader": core.face / "libarchsplit_loader.so", "away": away, "place": place}
    start = START.format(**{name: str(path) for name, path in places.items()})
    done = workbench.python(core.site, start + code, gpus=gpus)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_pack_before_registration_is_registered(
    workbench: Workbench, core: SplitSite, runtime: Path
) -> None:
    code = "ask(); arrive(); kept = load(); print(registered()); ask()"
    before, *after = say(workbench, core, runtime, code)
    assert before.startswith("[] False hint: ")
    assert after == ["hH hH unchanged", "[2] False fine"]


def test_pack_after_registration_changes_no_wrapper(
    workbench: Workbench, core: SplitSite, runtime: Path
) -> None:
    code = "kept = load(); arrive(); print(graft(), registered()); ask(); print(graft()); ask()"
    assert say(workbench, core, runtime, code) == [
        "0 -- -- unchanged", f"[0] True {RESTART}", "0", f"[0] True {RESTART}",
    ]  # fmt: skip


def test_better_pack_after_registration_changes_no_wrapper(
    workbench: Workbench, core: SplitSite, runtime: Path
) -> None:
    core.add("ptx", "compute_90")
    code = "kept = load(); arrive(); print(graft(), registered()); ask()"
    assert say(workbench, core, runtime, code) == ["0 pP pP unchanged", "[2] True fine"]


@pytest.mark.parametrize("gpus", ["9.0", "8.0;9.0"])
def test_pack_repaired_after_registration_changes_no_wrapper(
    workbench: Workbench, core: SplitSite, runtime: Path, gpus: str
) -> None:
    """With two GPUs, the containers are merged from two packs, one of which can't be used."""
    core.add("cc80", "sm_80")
    code = (
        "arrive()\n"
        f"path = {str(core.path('cc90'))!r}\n"
        "content = open(path, 'rb').read(); start = content.index(b'\\x50\\xed\\x55\\xba')\n"
        "damaged = content[:start] + b'\\x00' + content[start + 1:]\n"
        "open(path, 'wb').write(damaged)\n"
        "kept = load(); print(registered())\n"
        "open(path, 'wb').write(content); print(graft(), registered())"
    )
    letters = {"9.0": "-H -H", "8.0;9.0": "aA aA"}[gpus]
    first, second = say(workbench, core, runtime, code, gpus)
    assert (first, second) == (f"{letters} unchanged", f"0 {letters} unchanged")


def test_closed_library_is_not_reported(
    workbench: Workbench, core: SplitSite, runtime: Path
) -> None:
    code = "arrive(); kept = load(); ask(); _ctypes.dlclose(kept._handle); ask(); load(); ask()"
    assert say(workbench, core, runtime, code) == [
        "[2] False fine", "[] False fine", "[2] False fine",
    ]  # fmt: skip


def test_library_reloaded_without_its_stub_is_not_served(
    workbench: Workbench, core: SplitSite, runtime: Path
) -> None:
    """The stub stays loaded, so its constructor doesn't run for the second load."""
    code = (
        f"arrive(); kept = load(); stub = ctypes.CDLL({core.stub!r})\n"
        "_ctypes.dlclose(kept._handle); again = load()\n"
        "print(''.join(chr(again.first_letter(each)) for each in range(2))); ask()"
    )
    assert say(workbench, core, runtime, code) == ["--", f"[] False {AGAIN}"]
