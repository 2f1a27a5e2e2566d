"""The folders in which device packs are sought, in the layouts of installers.

Each case is a child process. The C code and Python report the same folders, and the library has the
code of a pack that is not beside the core's own files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, SplitSite, places_of, split_site
from loader_stubs import HERE, Stub, Workbench, compile_c
from loader_wheels import wheel_of

from warm_programs import run_pip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = """
import ctypes, json, sys
import toy._archsplit as loader
from toy._archsplit._bindings import open_library
from toy._archsplit._folders import pack_folders
from toy._archsplit._reading import read_core
lines = []
@ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
def trace(line, context):
    lines.append(line.decode())
open_library().archsplit_trace(trace, None)
here = toy.__path__[0]
found = letters(here + "/lib/libtoy.so")
start = "packs of toy are searched in "
print(json.dumps({
    "letters": found,
    "c": [line[len(start):] for line in lines if line.startswith(start)],
    "python": pack_folders(read_core()),
    "verdicts": [each.verdict for each in loader.explain().candidates],
}))
loader.require()
"""


@pytest.fixture(scope="module")
def store(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> SplitSite:
    """A core whose pack is in a site of its own: ``../pack``."""
    folder = tmp_path_factory.mktemp("a store")
    core = split_site(workbench, folder / "core")
    core.add("cc90", "sm_90")
    shutil.move(core.site / "toy_plugins", folder / "pack" / "toy_plugins")
    return core


def look(
    workbench: Workbench, *path: Path, python: str = sys.executable, **more: str
) -> tuple[str, list[str], list[str]]:
    """Code in the library, the folders that were searched, and the verdicts."""
    child = workbench.environment("9.0") | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.environ["PATH"],
        **more,
    }
    command = [python, "-c", f"{LETTERS}\n{PROGRAM}".replace("import toy.", "import toy, toy.")]
    done = subprocess.run(command, env=child, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    found = json.loads(done.stdout)
    assert found["c"] == found["python"]
    return found["letters"], found["c"], found["verdicts"]


def files(site: Path) -> list[Path]:
    return [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def forest(sites: tuple[Path, ...], place: Path, link: Callable[[Path, Path], None]) -> Path:
    """An environment of links to each file of some sites."""
    for site in sites:
        for file in files(site):
            target = place / file.relative_to(site)
            target.parent.mkdir(parents=True, exist_ok=True)
            link(file, target)
    return place


def symbolic(file: Path, target: Path) -> None:
    target.symlink_to(file)


def hard(file: Path, target: Path) -> None:
    os.link(file, target)


def copied(file: Path, target: Path) -> None:
    shutil.copy(file, target)


def plugins(site: Path) -> str:
    return str(site / "toy_plugins")


def test_pack_is_found_in_a_folder_for_each_package(workbench: Workbench, store: SplitSite) -> None:
    """As Bazel's rules_python and Nix's NIX_PYTHONPATH have it."""
    pack = store.site.parent / "pack"
    found = look(workbench, store.site, pack)
    assert found == ("hH", [plugins(store.site), plugins(pack)], ["accepted"])


@pytest.mark.parametrize("link", [symbolic, hard])
def test_packs_are_found_through_links_to_each_file(
    workbench: Workbench, store: SplitSite, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """As conda installs, and as Bazel's runfiles and venvs have it."""
    sites = (store.site, store.site.parent / "pack")
    place = forest(sites, tmp_path / "env" / "lib" / "site-packages", link)
    first = [] if link is hard else [plugins(store.site)]
    assert look(workbench, place) == ("hH", [*first, plugins(place)], ["accepted"])


def test_packs_are_found_through_links_to_folders(
    workbench: Workbench, store: SplitSite, tmp_path: Path
) -> None:
    """As an environment of Nix has it: a folder that several packages have is not a package's."""
    place = tmp_path / "env"
    (place / "toy_plugins").mkdir(parents=True)
    (place / "toy").symlink_to(store.site / "toy")
    (place / "toy_plugins" / "cuda").symlink_to(store.site.parent / "pack" / "toy_plugins" / "cuda")
    assert look(workbench, place) == ("hH", [plugins(store.site), plugins(place)], ["accepted"])


def test_sitecustomize_adds_folders(workbench: Workbench, store: SplitSite, tmp_path: Path) -> None:
    """As a Python of Nix does for NIX_PYTHONPATH."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, site\nfor each in os.environ.pop('NIX_PYTHONPATH').split(':'):\n"
        "    site.addsitedir(each)\n"
    )
    pack = store.site.parent / "pack"
    found = look(workbench, tmp_path, NIX_PYTHONPATH=f"{store.site}:{pack}")
    assert found == ("hH", [plugins(store.site), plugins(pack)], ["accepted"])


def wheels(store: SplitSite, folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    core = wheel_of(folder, "toy", store.site / "toy")
    pack = store.site.parent / "pack" / "toy_plugins"
    return core, wheel_of(folder, "toy-cc90", pack)


def install(python: Path | str, *arguments: object, **more: str) -> None:
    words = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    command = ["--python", python, *words, *arguments]
    done = run_pip(list(map(str, command)), {"PATH": os.environ["PATH"], **more})
    assert done.returncode == 0, done.stderr


def test_pack_of_an_environment_serves_a_users_core(
    workbench: Workbench, store: SplitSite, tmp_path: Path
) -> None:
    core, pack = wheels(store, tmp_path / "wheels")
    base = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages"]
    subprocess.run([*base, tmp_path / "venv"], check=True)
    python, user = tmp_path / "venv" / "bin" / "python", {"PYTHONUSERBASE": str(tmp_path / "user")}
    install(python, "--user", core, **user)
    install(python, pack, **user)
    letters, folders, verdicts = look(workbench, python=str(python), **user)
    assert (letters, verdicts) == ("hH", ["accepted"])
    assert [folder.startswith(str(tmp_path / "user")) for folder in folders] == [True, False]


def test_pack_in_another_target_folder_is_found(
    workbench: Workbench, store: SplitSite, tmp_path: Path
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for wheel, place in zip(wheels(store, tmp_path / "wheels"), places, strict=True):
        install(sys.executable, "--target", place, wheel)
    assert look(workbench, *places) == ("hH", list(map(plugins, places)), ["accepted"])


def test_first_fitting_pack_counts(workbench: Workbench, store: SplitSite, tmp_path: Path) -> None:
    other = SplitSite(site=tmp_path / "old", package="toy", places=store.places, stub=store.stub)
    other.add("cc90", "sm_90", descriptor=Stub(shape=2, version=b"1.2.2"))
    pack = store.site.parent / "pack"
    again = forest((pack,), tmp_path / "again", copied)
    # A pack of another version in another environment does not concern this process.
    letters, folders, verdicts = look(workbench, store.site, other.site, pack, again)
    assert letters == "hH"
    assert folders == list(map(plugins, (store.site, other.site, pack, again)))
    assert verdicts == ["wrong-version", "accepted", "shadowed"]


def test_refused_pack_is_reported_if_needed(
    workbench: Workbench, store: SplitSite, tmp_path: Path
) -> None:
    other = SplitSite(site=tmp_path, package="toy", places=store.places, stub=store.stub)
    path = other.add("cc90", "sm_90", descriptor=Stub(shape=2, version=b"1.2.2"))
    code = f"{LETTERS}\nprint(letters({str(store.library)!r}))"
    done = workbench.python(tmp_path, code, gpus="9.0")
    assert done.stdout == "--\n"
    assert f"{path} is a plugin for vecsort 1.2.2, expected one for 1.2.3" in done.stderr
    assert "hint: python -m toy.doctor --install\n" in done.stderr


def test_gpu_without_any_pack_is_reported(workbench: Workbench, store: SplitSite) -> None:
    code = f"{LETTERS}\nprint(letters({str(store.library)!r}))"
    done = workbench.python(store.site, code, gpus="9.0")
    assert done.stdout == "--\n"
    assert "finds no code in 2 of 2 containers" in done.stderr
    assert done.stderr.endswith("hint: python -m toy.doctor --install\n")


def test_working_folder_adds_none(workbench: Workbench, store: SplitSite) -> None:
    pack = store.site.parent / "pack"
    code = (
        f"import os, sys; os.chdir({str(pack)!r}); sys.path += ['', '.', {str(pack)!r}]\n"
        f"{LETTERS}\nprint(letters({str(store.library)!r}))"
    )
    assert workbench.python(store.site, code, gpus="9.0").stdout == "--\n"


ODD = """
pack = {pack!r}
class Name(str): pass
sys.path[1:1] = [None, 7, b"x", "/nul\\0", "\\udcff", "relative", "/", "", *{value}]
print(letters({library!r}))
"""


@pytest.mark.parametrize(
    ("value", "letters"),
    [
        ("[pack]", "hH"),
        ("[Name(pack)]", "hH"),
        ("[__import__('pathlib').Path(pack)]", "--"),
        ("[pack.encode()]", "--"),
    ],
)
def test_packs_are_found_only_on_usable_search_paths(
    workbench: Workbench, store: SplitSite, value: str, letters: str
) -> None:
    pack = str(store.site.parent / "pack")
    code = ODD.format(pack=pack, library=str(store.library), value=value)
    done = workbench.python(store.site, f"{LETTERS}\n{code}", gpus="9.0")
    assert done.stdout == f"{letters}\n", done.stderr


@pytest.mark.parametrize("value", ["None", "(pack,)", "7"])
def test_search_path_of_another_type_finds_no_pack(
    workbench: Workbench, store: SplitSite, value: str
) -> None:
    pack = str(store.site.parent / "pack")
    code = f"pack = {pack!r}; sys.path = {value}; print(letters({str(store.library)!r}))"
    done = workbench.python(store.site, f"{LETTERS}\n{code}", gpus="9.0")
    assert done.stdout == "--\n", done.stderr


HOST = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int c, char **v) {
    void *l = dlopen(v[c - 1], RTLD_NOW); int (*f)(int) = 0;
    if (l) *(void **)&f = dlsym(l, "first_letter");
    if (f) printf("%c%c\n", f(0), f(1)); else puts(dlerror());
    return !f;
}
"""


def letters_in_c(workbench: Workbench, library: Path, tmp_path: Path, **more: str) -> str:
    """Code of a library that a program without Python opens."""
    source = tmp_path / "host.c"
    source.write_text(HOST)
    host = compile_c(tmp_path / "host", str(source), "-ldl")
    environment = {**workbench.environment("9.0"), **more}
    done = subprocess.run(
        [host, library], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_program_without_python_ignores_pythonpath(
    workbench: Workbench, store: SplitSite, tmp_path: Path
) -> None:
    sites = (store.site, store.site.parent / "pack")
    place = forest(sites, tmp_path / "links", symbolic)
    for library, letters in ((place / "toy" / "lib" / "libtoy.so", "hH"), (store.library, "--")):
        more = {"PYTHONPATH": str(sites[1])}
        assert letters_in_c(workbench, library, tmp_path, **more) == letters


@pytest.mark.parametrize("search", ["$ORIGIN/../../..", "{folder}", "/nowhere:{folder}"])
def test_search_path_of_a_library_leads_to_packs(
    workbench: Workbench, tmp_path: Path, search: str
) -> None:
    core = split_site(workbench, tmp_path / "core")
    words = ("-shared", "-fPIC", "-fvisibility=hidden", str(HERE / "stub_fat.c"))
    place = search.format(folder=tmp_path) + "/links/toy/_archsplit"
    runpath = ("-Wl,--no-as-needed", f"-Wl,-rpath,{place}", f"-L{core.face}", f"-l:{core.stub}")
    compile_c(core.library, *words, *runpath)
    core = replace(core, places=places_of(core.library))
    core.table()
    core.add("cc90", "sm_90")
    shutil.move(core.site / "toy_plugins", tmp_path / "links" / "toy_plugins")
    more = {"LD_LIBRARY_PATH": f"{core.face}:{workbench.folder}"}
    assert letters_in_c(workbench, core.library, tmp_path, **more) == "hH"


def test_copied_stub_finds_its_core(workbench: Workbench, store: SplitSite, tmp_path: Path) -> None:
    """As PyInstaller 5 and others copy libraries into one folder, which LD_LIBRARY_PATH names."""
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy(store.face / store.stub, flat)
    pack = store.site.parent / "pack"
    more = {"LD_LIBRARY_PATH": f"{flat}:{workbench.folder}"}
    found = look(workbench, store.site, pack, **more)
    assert found == ("hH", [plugins(store.site), plugins(pack)], ["accepted"])
