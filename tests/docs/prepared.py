"""Inputs that a page of the manual assumes, made small.

A page says it in its first line, ``<!-- test: venv, fat wheel -->``; each name is in `MAKERS`.
"""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.system.toml import loads
from index_wheels import index_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.nvcc.toolkit import Toolkit

DOCS = Path(__file__).parents[2] / "docs"
FAT = "xgboost-3.2.0-py3-none-manylinux_2_28_x86_64.whl"
TARGETS = (
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
)
_KERNEL = """
__global__ void predict(float *out, int rows) { if (threadIdx.x < rows) out[threadIdx.x] = 1.0f; }
extern "C" int launch(float *out, int rows) {
  predict<<<1, 32>>>(out, rows);
  return cudaGetLastError();
}
"""
_METADATA = "Metadata-Version: 2.4\nName: xgboost\nVersion: 3.2.0\nSummary: Stands in.\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: false\nTag: {tag}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The folder in which the commands of one page are run.

    Attributes:
        folder: the current folder of its commands; empty at first.
        index: a folder of wheels; what is in it is served as an index.
        installer: what ``bin/pip`` of a page's own environments runs.
        made: what was made for an earlier page, and is the same for this one.
        cache: the compile cache.
        real: whether wheels come from the real index.
        downloads: where those are kept.
        port: a free one; the pages say 8000.
        beside: programs that run as long as the page's commands do.
    """

    folder: Path
    index: Path
    made: Path
    cache: Path
    toolkit: Toolkit
    real: bool
    downloads: Path
    port: int
    installer: str = "ensurepip"
    beside: list[list[str]] = field(default_factory=list)

    @property
    def libraries(self) -> Path:
        """A folder that linkers look into."""
        return self.folder.parent / "libraries"

    @property
    def environment(self) -> Mapping[str, str]:
        """Nothing of this process's own but the index to download from."""
        here = Path(sys.executable).parent
        folders = (self.folder.parent / "venv" / "bin", here, self.toolkit.nvcc.parent)
        # A company's proxy may have a certificate of its own.
        kept = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE")
        passed = {name: text for name, text in os.environ.items() if name.startswith(kept)}
        # Given twice, so that a page may name an index of its own.
        simple = self.simple.as_uri()
        offline = {"PIP_INDEX_URL": simple, "PIP_EXTRA_INDEX_URL": simple}
        offline |= {"UV_DEFAULT_INDEX": simple, "UV_NO_CACHE": "1", "UV_NO_CONFIG": "1"}
        return {
            "PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"]),
            "HOME": str(self.folder.parent),
            "VIRTUAL_ENV": str(self.folder.parent / "venv"),
            "LC_ALL": "C.UTF-8",
            # The index's wheels put libraries where nvcc's own profile doesn't look.
            "LIBRARY_PATH": f"{self.toolkit.library_folder}{os.pathsep}{self.libraries}",
            "CUDA_HOME": str(self.toolkit.root),
            "ARCHSPLIT_CACHE_DIR": str(self.cache),
            **passed,
            **({} if self.real else offline),
        }

    @property
    def simple(self) -> Path:
        """The pages of the index (PEP 503)."""
        return self.folder.parent / "simple"

    def _write_pages(self) -> None:
        self.simple.mkdir(exist_ok=True)
        for wheel in self.index.glob("*.whl"):
            project = self.simple / wheel.name.partition("-")[0].replace("_", "-")
            project.mkdir(exist_ok=True)
            page = f'<!DOCTYPE html><a href="{wheel.as_uri()}">{wheel.name}</a>'
            (project / "index.html").write_text(page)

    def run(self, script: str) -> str:
        """Run shell lines as a reader would, and stop at the first that fails.

        What they started in the background ends with them.
        """
        here = script.replace("8000", str(self.port))
        self._write_pages()
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", f"trap 'kill $(jobs -p) || true' EXIT\n{here}"],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout


def venv(desk: Desk) -> None:
    """A virtual environment, in use, that sees what the tests' own has: archsplit, build, pip."""
    folder = desk.folder.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    tests = sysconfig.get_path("purelib")
    (site / "of_the_tests.pth").write_text(f"import site; site.addsitedir({tests!r})\n")
    for command in distribution("archsplit").entry_points:
        # With the interpreter of this environment: `archsplit doctor` looks into its own.
        module, _, function = command.value.partition(":")
        lines = f"import sys; from {module} import {function}; sys.exit({function}())"
        _script(folder / "bin" / command.name, lines, f"{folder}/bin/python3")
    _script(folder / "bin" / "pip", f'exec {folder}/bin/python -m pip "$@"')
    if not desk.real:
        _with_quick_venvs(desk, folder / "bin")


def _pip_lines(installer: str) -> str:
    """A page's ``bin/pip``: the old one of ensurepip, the tests' own, or uv."""
    python = '--python "$(dirname "$0")/python"'
    uv = Path(sys.executable).with_name("uv")
    return {
        "ensurepip": 'exec "$(dirname "$0")/python" -m pip "$@"',
        "pip": f'exec "{sys.executable}" -m pip {python} "$@"',
        "uv": f'verb=$1; shift; exec "{uv}" pip "$verb" {python} "$@"',
    }[installer]


def _with_quick_venvs(desk: Desk, programs: Path) -> None:
    """Let ``python -m venv`` copy pip with its bytecode: ensurepip compiles it for four seconds."""
    _script(programs / "pip-of-a-page", _pip_lines(desk.installer))
    sample = desk.made / "venv"
    if not sample.exists():
        _make_sample_venv(sample)
    python = programs / "python"
    links = list(programs.glob("python*"))
    (original,) = (link.readlink() for link in links if link.readlink().is_absolute())
    for path in links:
        path.unlink()
        path.symlink_to(original)
    python.unlink()
    (packages,) = sample.glob("lib/python*/site-packages")
    lines = (
        f'if [ "$1 $2" != "-m venv" ]; then exec {python}3 "$@"; fi',
        f'{python}3 -m venv --without-pip "$3" || exit',
        f'cp -a {packages}/. "$(echo "$3"/lib/python*/site-packages)"',
        f'cp {programs}/pip-of-a-page "$3/bin/pip"',
    )
    _script(python, "\n".join(lines))


def _make_sample_venv(folder: Path) -> None:
    """Unpack the pip of ensurepip, whose own installation takes six CPU seconds."""
    bundled = list(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
    options = ["--without-pip"] if bundled else []  # Debian has the wheel in another folder.
    subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for wheel in bundled:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        # Python keeps the bytecode of what an installation imports.
        nothing = packages / "nothing"
        nothing.mkdir()
        words = ("install", "--quiet", "--no-compile", "--target", str(nothing), str(wheel))
        subprocess.run([folder / "bin" / "python", "-m", "pip", *words], check=True)
        shutil.rmtree(nothing)


def _script(path: Path, text: str, program: str = "/bin/sh") -> None:
    path.write_text(f"#!{program}\n{text}\n")
    path.chmod(0o755)


def setuptools(desk: Desk) -> None:
    """The installed setuptools as a wheel: builds in isolation ask the index for it."""
    found = distribution("setuptools")
    tree = desk.folder.parent / "setuptools"
    for file in found.files or ():
        if file.suffix != ".pyc" and ".." not in file.parts:
            target = tree / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
    for name in ("INSTALLER", "REQUESTED", "direct_url.json"):
        (next(tree.glob("*.dist-info")) / name).unlink(missing_ok=True)
    _pack(tree, desk.index)


def fat_wheel(desk: Desk) -> None:
    """xgboost's wheel: the real one, or one of that name with one kernel in it."""
    if desk.real:
        return
    if not (desk.made / FAT).exists():
        _make_fat_wheel(desk)
    shutil.copyfile(desk.made / FAT, desk.index / FAT)


def _make_fat_wheel(desk: Desk) -> None:
    tree = desk.folder.parent / "fat"
    library, info = tree / "xgboost" / "lib" / "libxgboost.so", tree / "xgboost-3.2.0.dist-info"
    for folder in (library.parent, info):
        folder.mkdir(parents=True)
    source = tree.parent / "predict.cu"
    source.write_text(_KERNEL)
    options = ["-shared", "-Xcompiler=-fPIC", f"-L{desk.toolkit.library_folder}", *TARGETS]
    nvcc = [str(desk.toolkit.nvcc), *options, "-o", str(library), str(source)]
    subprocess.run(nvcc, check=True, capture_output=True)
    (tree / "xgboost" / "__init__.py").write_text('"""Stands in for the real one."""\n')
    (info / "METADATA").write_text(_METADATA)
    (info / "WHEEL").write_text(_WHEEL.format(tag=FAT.removesuffix(".whl").split("-", 2)[2]))
    _pack(tree, desk.made)


def split(desk: Desk) -> None:
    """The core of that wheel, installed, and the fat wheel in ``fat/``."""
    fat_wheel(desk)
    source = index_wheel(desk.downloads, "xgboost==3.2.0") if desk.real else desk.index / FAT
    (desk.folder / "fat").mkdir()
    shutil.copyfile(source, desk.folder / "fat" / FAT)
    out = desk.folder.parent / "split"
    desk.run(
        f"archsplit split fat/{FAT} --out {out}; pip install --find-links {out} xgboost==3.2.0"
    )


def torch(desk: Desk) -> None:
    """PyTorch for CUDA 13, and what its extensions are built with."""
    # The last release with the headers of CUDA 13.0, as the desk's nvcc.
    desk.run("pip install --quiet torch==2.14.* ninja wheel")
    # The index's wheels have the runtime only under its SONAME.
    desk.libraries.mkdir()
    (runtime,) = desk.toolkit.library_folder.glob("libcudart.so.*")
    (desk.libraries / "libcudart.so").symlink_to(runtime)


def desk_with_wheel(folder: Path, toolkit: Toolkit, downloads: Path) -> Desk:
    """Return a desk in a folder, with the stand-in of the real wheel on it."""
    desk = Desk(
        folder=folder / "desk",
        index=folder / "index",
        made=folder,
        cache=folder / "cache",
        toolkit=toolkit,
        real=False,
        downloads=downloads,
        port=0,
    )
    for each in (desk.folder, desk.index):
        each.mkdir()
    wheel(desk)
    return desk


def wheel(desk: Desk) -> None:
    """That wheel, in the current folder."""
    fat_wheel(desk)
    source = index_wheel(desk.downloads, "xgboost==3.2.0") if desk.real else desk.index / FAT
    shutil.copyfile(source, desk.folder / FAT)


def environment(desk: Desk) -> None:
    """An environment of its own in ``env``, with xgboost in it."""
    desk.run("python -m venv env; env/bin/pip install --quiet xgboost==3.2.0")


def kernels(desk: Desk) -> None:
    """A source, ``kernels.cu``."""
    (desk.folder / "kernels.cu").write_text(_KERNEL)


def libraries(desk: Desk) -> None:
    """``libfoo.so`` and ``libfoo.a``, for two targets and PTX."""
    kernels(desk)
    pic = "-Xcompiler=-fPIC"
    desk.run(f"nvcc -shared {pic} {' '.join(TARGETS)} -o libfoo.so kernels.cu")
    desk.run(f"nvcc -lib {pic} {' '.join(TARGETS)} -o libfoo.a kernels.cu")


def sources(desk: Desk) -> None:
    """Copy the sources of the loader, as in a checkout."""
    shutil.copytree(DOCS.parent / "plugin_loader", desk.folder / "plugin_loader")


def recipe(desk: Desk) -> None:
    """A small project with a recipe in the current folder: tests/tinyvec, renamed to vecsort."""
    folder = desk.folder
    shutil.copytree(DOCS.parent / "tests" / "tinyvec", folder, dirs_exist_ok=True)
    (folder / "python" / "tinyvec").rename(folder / "python" / "vecsort")
    text = (folder / "recipe.toml").read_text()
    for old, new in (('"tinyvec"', '"vecsort"'), ('"1.2.3"', '"1.3.dev20261121"')):
        assert old in text
        text = text.replace(old, new)
    (folder / "recipe.toml").write_text(text)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace('"tinyvec"', '"vecsort"'))


def dist(desk: Desk) -> None:
    """Build the recipe into ``dist``."""
    recipe(desk)
    if not (desk.made / "dist").exists():
        desk.run(f"archsplit build . --out {desk.made}/dist")
    shutil.copytree(desk.made / "dist", desk.folder / "dist")


def index(desk: Desk) -> None:
    """An index on this machine that takes uploads, by the names of the two well-known indexes."""
    address = f"http://localhost:{desk.port}/"
    section = f"repository = {address}\nusername = anyone\npassword = anything\n"
    names = "[distutils]\nindex-servers =\n    pypi\n    testpypi\n"
    text = "\n".join([names, f"[testpypi]\n{section}", f"[pypi]\n{section}"])
    (desk.folder.parent / ".pypirc").write_text(text)
    folder = desk.folder.parent / "served"
    folder.mkdir()
    words = ["run", "-p", str(desk.port), "-i", "127.0.0.1", "-P", ".", "-a", ".", str(folder)]
    desk.beside.append([sys.executable, "-m", "pypiserver", *words])


def _pack(tree: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder), str(tree)]
    subprocess.run(command, check=True, capture_output=True)


def wheelhouse(desk: Desk) -> None:
    """Fat wheels of one project for three Pythons, as cibuildwheel repairs and collects them.

    The library has no Python in it, so a wheel with another tag is what that Python would build.
    """
    made = desk.made / "wheelhouse"
    if not made.exists():
        shutil.copytree(DOCS / "how-to" / "projects" / "setuptools", desk.folder / "project")
        desk.run("cd project; python -m build --no-isolation --wheel --outdir ../fat")
        page = (DOCS / "how-to" / "ci" / "cibuildwheel.toml").read_text()
        repair: str = loads(page)["tool"]["cibuildwheel"]["linux"]["repair-wheel-command"]
        desk.run(repair.format(dest_dir=made, wheel="fat/*.whl"))
        (own,) = made.iterdir()
        (found,) = (desk.folder / "fat").iterdir()
        python = found.name.split("-")[2]
        tags = [each for each in ("cp311", "cp312", "cp313") if each != python][:2]
        for tag in tags:
            desk.run(f"python -m wheel tags --python-tag {tag} --abi-tag {tag} {own}")
        shutil.rmtree(desk.folder / "project")
        shutil.rmtree(desk.folder / "fat")
    shutil.copytree(made, desk.folder / "wheelhouse")


MAKERS = {
    "venv": venv,
    "setuptools": setuptools,
    "fat wheel": fat_wheel,
    "split": split,
    "wheel": wheel,
    "environment": environment,
    "kernels": kernels,
    "libraries": libraries,
    "sources": sources,
    "recipe": recipe,
    "dist": dist,
    "index": index,
    "wheelhouse": wheelhouse,
    "torch": torch,
}
