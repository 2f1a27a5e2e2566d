"""A core and its packs in the runfiles of a Python program that Bazel makes.

The layout follows Bazel 4.2.3 and the repositories that rules_python makes of wheels: one for
each wheel, all of them on ``sys.path``, and a link for each file. Bazel writes an empty
``__init__.py`` into each folder with Python files or libraries, and into those above it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, split_site
from loader_stubs import visible_folder

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench

ASK = """
from toy._archsplit import explain, require
print(letters({library!r}))
require()
print(explain().healthy, [each.verdict for each in explain().candidates])
"""


def link_runfiles(external: Path, runfiles: Path) -> None:
    """Link each file of the repositories, and write the files that make folders packages."""
    for file in [each for each in external.rglob("*") if each.is_file()]:
        place = runfiles / file.relative_to(external)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)
    for file in [*runfiles.rglob("*.py"), *runfiles.rglob("*.so")]:
        folder = file.parent
        while folder.is_relative_to(runfiles):
            (folder / "__init__.py").touch()
            folder = folder.parent


@pytest.mark.parametrize("has_code_beside_packs", [False, True])
def test_packs_in_repositories_of_their_own_are_found(
    workbench: Workbench, *, has_code_beside_packs: bool
) -> None:
    with visible_folder() as folder:
        external, runfiles = folder / "external", folder / "app.runfiles"
        core = split_site(workbench, external / "pip_toy" / "site-packages")
        if has_code_beside_packs:  # then the namespace is a package
            hook = core.site / "toy_plugins" / "pyinstaller" / "__init__.py"
            hook.parent.mkdir(parents=True)
            hook.write_text("")
        for name in ("cc80", "cc90"):
            place = core.add(name, f"sm_{name[2:]}").parent
            away = external / f"pip_toy_{name}" / "site-packages" / place.relative_to(core.site)
            away.parent.mkdir(parents=True)
            place.rename(away)
        link_runfiles(external, runfiles)
        sites = sorted(runfiles.glob("*/site-packages"))
        assert (sites[0] / "toy_plugins" / "__init__.py").exists() == has_code_beside_packs
        code = LETTERS + ASK.format(library=str(sites[0] / "toy" / "lib" / "libtoy.so"))
        path = os.pathsep.join(map(str, sites))
        done = workbench.python(sites[0], code, gpus="9.0", PYTHONPATH=path)
        assert done.stdout == "hH\nTrue ['accepted', 'accepted']\n", done.stderr
        assert done.stderr == ""
