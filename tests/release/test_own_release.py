"""archsplit's own release: the source distribution, the wheel, and their texts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trove_classifiers as trove

from archives import extract_tar
from archsplit import __version__
from archsplit.system.fs import sha256
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"\(https://[^)]*?/archsplit/archsplit/(?:blob/)?main/([^)#]+)")
HOOKS = """
import os, sys, build_backend as b
os.umask(int(sys.argv[2], 8))
print(getattr(b, sys.argv[1])(sys.argv[3]))
"""


LEFT = shutil.ignore_patterns(
    *(".git", ".venv", ".nox", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", ".coverage*")
)


def copy_tree(folder: Path) -> Path:
    """The files of a checkout, without what tools leave in it."""

    def ignored(place: str, names: list[str]) -> set[str]:
        outputs = {"build", "dist", "demo"} if Path(place) == ROOT else set()
        return {*LEFT(place, names), *outputs}

    return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored))


def build(hook: str, tree: Path, out: Path, *, umask: str = "022") -> Path:
    out.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-c", HOOKS, hook, umask, str(out)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "tools")}
    environment.pop("SOURCE_DATE_EPOCH", None)
    done = subprocess.run(
        argv, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    return build("build_sdist", copy_tree(folder / "tree"), folder / "dist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path) -> Path:
    with tarfile.open(sdist) as archive:
        extract_tar(archive, sdist.parent.parent)
    return sdist.parent.parent / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    return build("build_wheel", unpacked, unpacked.parent / "wheel")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_source_distribution_has_tests_manual_and_changelog(unpacked: Path) -> None:
    files = {path.relative_to(ROOT) for path in tracked(ROOT)}
    missing = sorted(str(path) for path in files if not (unpacked / path).exists())
    assert missing == []
    names = ("tests/conftest.py", "docs/index.md", "CHANGELOG.md", "noxfile.py", ".ci/run")
    assert all((unpacked / name).is_file() for name in names)
    assert os.access(unpacked / ".ci" / "run", os.X_OK)


def tracked(root: Path) -> list[Path]:
    """All files that a contributor writes."""
    folders = ("docs", "splitter", "tests", "recipes", "bench", "tools", "plugin_loader/src")
    suffixes = {".py", ".md", ".toml", ".c", ".h", ".cu", ".json", ".html", ".yml"}
    return [
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in suffixes and "cache" not in str(path.parent.name)
    ]


def test_another_place_and_umask_give_the_same_bytes(
    sdist: Path, unpacked: Path, wheel: Path
) -> None:
    # From the unpacked one: what is built of a source distribution is that distribution.
    again = build("build_sdist", unpacked, sdist.parent.parent / "again", umask="077")
    assert sha256(again) == sha256(sdist)
    other = build("build_wheel", unpacked, sdist.parent.parent / "again", umask="077")
    assert sha256(other) == sha256(wheel)


def test_programs_of_the_index_accept_both(sdist: Path, wheel: Path) -> None:
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(twine, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    contents = [sys.executable, "-m", "check_wheel_contents", str(wheel)]
    # Its settings are in pyproject.toml of the current folder.
    done = subprocess.run(contents, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, f"{wheel}: OK")


def test_the_version_has_one_source(wheel: Path) -> None:
    assert metadata(wheel)["Version"] == __version__
    project = loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    for name in ("pyproject.toml", "docs/conf.py", "noxfile.py", "README.md"):
        assert f'"{__version__}"' not in (ROOT / name).read_text(), name


def test_description_links_to_existing_files(wheel: Path) -> None:
    text = metadata(wheel).get_payload()
    assert isinstance(text, str)
    assert re.findall(r"\]\((?!https://)", text) == []
    paths = OURS.findall(text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_metadata_has_urls_and_classifiers(wheel: Path) -> None:
    found = metadata(wheel)
    labels = {text.partition(",")[0] for text in found.get_all("Project-URL", [])}
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= labels
    classifiers = found.get_all("Classifier", [])
    assert "Programming Language :: Python :: 3.14" in classifiers
    assert not any(text.startswith("License ::") for text in classifiers)
    assert set(classifiers) <= trove.classifiers


def test_the_release_script_reads_the_readmes_commands() -> None:
    tools = str(ROOT / "tools")
    code = "import check_release as c; print(c.read_commands((c.ROOT / 'README.md').read_text()))"
    environment = {**os.environ, "PYTHONPATH": tools}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line[:1] != "#") == "pip install archsplit"
    assert any(line.startswith("archsplit split ") for line in lines)
    assert any("pip install" in line and "--find-links split " in line for line in lines)


def test_release_from_a_repository_other_than_the_metadatas_is_refused() -> None:
    address = loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    own = address.removeprefix("https://github.com/")
    script = (sys.executable, "tools/check_release.py", "--no-use", "--version", "0")
    environment = {**os.environ, "GITHUB_REPOSITORY": "someone/archsplit"}
    done = subprocess.run(
        script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    for name in ("pyproject.toml", "README.md"):
        assert f"{name} has github.com/{own}" in done.stderr
    assert "expected github.com/someone/archsplit\nhint: " in done.stderr
    # Nothing was built.
    assert done.stdout == ""
    code = f"import check_release as c; c.check_repository(c.ROOT, {own!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
