"""A core and its packs as Nix installs them: separate store paths, joined by an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, split_site
from loader_stubs import visible_folder

if TYPE_CHECKING:
    from loader_stubs import Workbench

ENVIRONMENT = """
derivation {
  name = "environment";
  system = builtins.currentSystem;
  builder = "/bin/sh";
  PATH = builtins.getEnv "PATH";
  core = ./core;
  packs = [ %s ];
  args = [ "-c" ''
    mkdir -p $out %s
    ln -s $core/toy $out/toy
    for pack in $packs; do %s; done
  '' ];
}
"""
JOINED = "toy_plugins", "ln -s $pack/toy_plugins $out/toy_plugins"
MERGED = "$out/toy_plugins/cuda", "ln -s $pack/toy_plugins/cuda/* $out/toy_plugins/cuda/"
ASK = """
from toy._archsplit import require
print(letters({library!r}))
require()
print("fine")
"""


def nix_build(folder: Path) -> Path:
    """Build ``default.nix`` with a store of its own, without network, sandbox and daemon."""
    places = {f"NIX_{name.upper()}_DIR": str(folder / name) for name in ("store", "state", "log")}
    options = {"substitute": "false", "sandbox": "false", "build-users-group": ""}
    words = [word for name, value in options.items() for word in ("--option", name, value)]
    done = subprocess.run(
        ["nix-build", "--no-out-link", *words, "default.nix"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "NIX_REMOTE": "", **places},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize("packs", [("cc90",), ("cc80", "cc90")])
def test_packs_in_store_paths_of_their_own_are_found(
    workbench: Workbench, packs: tuple[str, ...]
) -> None:
    if shutil.which("nix-build") is None:
        pytest.skip("nix-build is not installed")
    with visible_folder() as folder:
        core = split_site(workbench, folder / "core")
        for name in packs:
            place = core.add(name, f"sm_{name[2:]}").parent
            away = folder / name / place.relative_to(core.site)
            away.parent.mkdir(parents=True)
            place.rename(away)
        plugins = next(each for each in core.site.iterdir() if each.name.endswith("_plugins"))
        shutil.rmtree(plugins)
        top, link = MERGED if len(packs) > 1 else ("", JOINED[1])
        text = ENVIRONMENT % (" ".join(f"./{name}" for name in packs), top, link)
        (folder / "default.nix").write_text(text.replace("toy_plugins", plugins.name))
        environment = nix_build(folder)
        stored = environment.resolve() / "toy"
        assert stored.is_symlink()
        assert stored.resolve().parent != environment.resolve()
        library = environment / core.library.relative_to(core.site)
        code = LETTERS + ASK.format(library=str(library))
        done = workbench.python(environment, code, gpus="9.0")
        assert done.stdout == "hH\nfine\n", done.stderr
