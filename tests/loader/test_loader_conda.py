"""A core and its packs as conda packages, solved from a channel and linked into an environment.

rattler is the library of pixi and of other clients of conda's format.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, split_site
from loader_stubs import visible_folder

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench

SITE = "lib/python3.12/site-packages"
LINKS = {
    "hard": "allow-hard-links = true\nallow-ref-links = false\nallow-symbolic-links = false",
    "copies": "allow-hard-links = false\nallow-ref-links = false\nallow-symbolic-links = false",
}
ASK = """
from toy._archsplit import explain, require
print(letters({library!r}))
require()
print(explain().healthy, [each.verdict for each in explain().candidates])
"""


def write_package(channel: Path, folder: Path, *depends: str) -> None:
    """Pack a folder as ``linux-64/<name>-1.2.3-0.tar.bz2``."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    paths = [
        {
            "_path": str(each.relative_to(folder)),
            "path_type": "hardlink",
            "sha256": hashlib.sha256(each.read_bytes()).hexdigest(),
            "size_in_bytes": each.stat().st_size,
        }
        for each in files
    ]
    index = {
        "name": folder.name,
        "version": "1.2.3",
        "build": "0",
        "build_number": 0,
        "subdir": "linux-64",
        "depends": list(depends),
    }
    info = folder / "info"
    info.mkdir()
    (info / "index.json").write_text(json.dumps(index))
    (info / "paths.json").write_text(json.dumps({"paths": paths, "paths_version": 1}))
    (info / "files").write_text("".join(f"{each['_path']}\n" for each in paths))
    place = channel / "linux-64" / f"{folder.name}-1.2.3-0.tar.bz2"
    place.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(place, "w:bz2", compresslevel=1) as archive:
        for each in [*sorted(info.iterdir()), *files]:
            archive.add(each, each.relative_to(folder))


def write_channel(workbench: Workbench, folder: Path) -> Path:
    """Write a channel with a core and two packs; each pack requires its core."""
    staged = folder / "toy"
    core = split_site(workbench, staged / SITE)
    packs = []
    for name in ("cc80", "cc90"):
        place = core.add(name, f"sm_{name[2:]}").parent
        packs.append(folder / f"toy-{name}")
        away = packs[-1] / place.relative_to(staged)
        away.parent.mkdir(parents=True)
        place.rename(away)
    channel = folder / "channel"
    write_package(channel, staged)
    for each in packs:
        write_package(channel, each, "toy ==1.2.3")
    return channel


CREATE = """
import asyncio, os, pathlib, sys, rattler
async def create(channel, environment, options, *specs):
    config = rattler.Config.from_toml(options)
    await rattler.index.index_fs(channel)
    records = await rattler.solve([pathlib.Path(channel).as_uri()], specs)
    cache = pathlib.Path(environment).parent / "pkgs"
    places = {"target_prefix": environment, "cache_dir": cache}
    await rattler.install(records, **places, config=config, show_progress=False)
asyncio.run(create(*sys.argv[1:]))
os._exit(0)  # its threads may abort at the end of the interpreter
"""


@pytest.fixture(scope="module")
def rattler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rattler")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--target", str(folder))
    subprocess.run([*pip, "py-rattler==0.28.0"], check=True)
    return folder


def link_softly(environment: Path) -> None:
    """Turn hard links into links to the cache, as conda's ``always_softlink`` makes them."""
    inodes = {each.stat().st_ino: each for each in environment.parent.glob("pkgs/**/*")}
    for path in (environment / SITE).rglob("*"):
        if path.is_file():
            cached = inodes[path.stat().st_ino]
            path.unlink()
            path.symlink_to(cached)


@pytest.mark.download
@pytest.mark.parametrize("links", [*LINKS, "soft"])
def test_packs_of_a_conda_environment_are_found(
    workbench: Workbench, rattler: Path, links: str
) -> None:
    with visible_folder() as folder:
        channel = write_channel(workbench, folder)
        environment = folder / "environment"
        options = LINKS.get(links, LINKS["hard"])
        command = (sys.executable, "-c", CREATE, str(channel), str(environment), options)
        child = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(rattler)}
        subprocess.run([*command, "toy-cc90", "toy-cc80"], env=child, check=True)
        if links == "soft":
            link_softly(environment)
        site = environment / SITE
        for path in (site / "toy/_archsplit/core.pack", site / "toy_plugins/cuda/cc90/device.pack"):
            assert path.is_symlink() == (links == "soft")
            assert (path.stat().st_nlink > 1) == (links == "hard")
        code = LETTERS + ASK.format(library=str(site / "toy/lib/libtoy.so"))
        done = workbench.python(site, code, gpus="9.0")
        assert done.stdout == "hH\nTrue ['accepted', 'accepted']\n", done.stderr
        assert done.stderr == ""
