"""Environments as uv makes them: their files are links into a cache that others use."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from slim_site_samples import LIBRARY, Environment, slim, snapshot, with_neighbour
from slim_wheel_samples import fat_wheel

from archsplit.slim.site_packages import commit_site, undo_site
from handmade_samples import held
from index_wheels import program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.download


@pytest.mark.parametrize("links", ["hardlink", "symlink", "copy"])
def test_environment_of_uv_is_slimmed_without_changing_its_cache(
    links: str, downloads: Path, tmp_path: Path
) -> None:
    uv = program(downloads, "uv==0.13.8", "scripts/uv", tmp_path)
    cache, environment = tmp_path / "cache", Environment(root=tmp_path / "env")
    wheel = fat_wheel(tmp_path, library=with_neighbour(tmp_path).read_bytes())

    def run(*argv: str | Path) -> None:
        words = [str(uv), *map(str, argv), "--offline", "--cache-dir", str(cache)]
        subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)

    run("venv", environment.root)
    python = ("--python", environment.root)
    run("pip", "install", *python, "--no-deps", f"--link-mode={links}", wheel)
    site = environment.site
    before, cached = snapshot(site), snapshot(cache)
    report = slim(site)
    shared = any("shared with a cache" in note for note in report.notes)
    assert shared == (links != "copy")
    assert snapshot(cache) == cached
    assert held(site / LIBRARY)[0] == ["sm_90"]
    undo_site(site)
    assert snapshot(site) == before
    slim(site)
    commit_site(site)
    assert snapshot(cache) == cached
    run("pip", "check", *python)
    run("pip", "uninstall", *python, "fat")
    assert not list(site.glob("fat*"))
