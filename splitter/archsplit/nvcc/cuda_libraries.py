"""CUDA's shared libraries: their files in a toolkit or in NVIDIA's wheels, and the wheels' names.

In: names as ``cublas``, a toolkit and site-packages folders. Out: the file to link with, the
folders of its headers, and what the plugins need at run time: the soname, the requirement on
NVIDIA's wheel, and the folder of that wheel. NVIDIA's wheels have no ``libcublas.so`` that a linker
would look for, so that the linker gets the path of ``libcublas.so.13``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import ToolNotFoundError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.nvcc.toolkit import SHARED_FOLDER_MAJOR
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

_SONAME_VERSION = re.compile(r"\.so\.([\d.]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaWheel:
    """A wheel of NVIDIA's with libraries of CUDA.

    Attributes:
        libraries: by the name that follows ``-l``.
        distribution: without ``-cu12``.
        folder: below ``nvidia``, up to CUDA 12.
        extra: of the package ``cuda-toolkit``; "" for a library that is not in the toolkit: its
            wheel has a folder of its own and a name with the version for every CUDA.
    """

    libraries: tuple[str, ...]
    distribution: str
    folder: str
    extra: str = ""

    def name(self, major: int) -> str:
        """Return the distribution for a version of CUDA."""
        plain = major >= SHARED_FOLDER_MAJOR and self.extra
        return self.distribution if plain else f"{self.distribution}-cu{major}"

    def place(self, major: int) -> str:
        """Return the folder of the libraries in site-packages."""
        shared = major >= SHARED_FOLDER_MAJOR and self.extra
        return f"nvidia/cu{major}/lib" if shared else f"nvidia/{self.folder}/lib"

    def install_hint(self, release: str) -> str:
        """Return the command that installs the wheel for a toolkit's release."""
        major, minor = release.split(".")[:2]
        wanted = (
            f"cuda-toolkit[{self.extra}]=={major}.{minor}.*"
            if self.extra
            else self.name(int(major))
        )
        return f"pip install '{wanted}'"


_NPP = ("c", "ial", "icc", "idei", "if", "ig", "im", "ist", "isu", "itc", "s")
_WHEELS = (
    CudaWheel(
        libraries=("cublas", "cublasLt", "nvblas"),
        distribution="nvidia-cublas",
        folder="cublas",
        extra="cublas",
    ),
    CudaWheel(
        libraries=("cufft", "cufftw"), distribution="nvidia-cufft", folder="cufft", extra="cufft"
    ),
    CudaWheel(libraries=("cufile",), distribution="nvidia-cufile", folder="cufile", extra="cufile"),
    CudaWheel(libraries=("curand",), distribution="nvidia-curand", folder="curand", extra="curand"),
    CudaWheel(
        libraries=("cusolver", "cusolverMg"),
        distribution="nvidia-cusolver",
        folder="cusolver",
        extra="cusolver",
    ),
    CudaWheel(
        libraries=("cusparse",), distribution="nvidia-cusparse", folder="cusparse", extra="cusparse"
    ),
    CudaWheel(
        libraries=tuple(f"npp{part}" for part in _NPP),
        distribution="nvidia-npp",
        folder="npp",
        extra="npp",
    ),
    CudaWheel(
        libraries=("nvJitLink",),
        distribution="nvidia-nvjitlink",
        folder="nvjitlink",
        extra="nvjitlink",
    ),
    CudaWheel(libraries=("nvjpeg",), distribution="nvidia-nvjpeg", folder="nvjpeg", extra="nvjpeg"),
    CudaWheel(
        libraries=("nvrtc",), distribution="nvidia-cuda-nvrtc", folder="cuda_nvrtc", extra="nvrtc"
    ),
    CudaWheel(libraries=("cudnn",), distribution="nvidia-cudnn", folder="cudnn"),
    CudaWheel(libraries=("cusparseLt",), distribution="nvidia-cusparselt", folder="cusparselt"),
    CudaWheel(libraries=("nccl",), distribution="nvidia-nccl", folder="nccl"),
)
CUDA_WHEELS = {name: wheel for wheel in _WHEELS for name in wheel.libraries}
"""NVIDIA's wheels by the names of their libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLibrary:
    """A library of CUDA that plugins are linked with.

    Attributes:
        file: absolute, for the linker.
        soname: the name by which plugins need it.
        include: the folder of its headers, or None.
        requirement: of the plugins, on NVIDIA's wheel.
        place: the folder of the wheel's libraries, relative to site-packages.
    """

    name: str
    file: Path
    soname: str
    include: Path | None
    requirement: str
    place: str


def is_cuda_wheel(distribution: str) -> bool:
    """Return True if a distribution is one of NVIDIA's wheels with libraries of CUDA."""
    plain = re.sub(r"-cu\d+$", "", distribution)
    return any(wheel.distribution == plain for wheel in _WHEELS)


def find_cuda_libraries(
    names: Sequence[str], toolkit: Toolkit, site_folders: Sequence[Path]
) -> tuple[CudaLibrary, ...]:
    """Find libraries of CUDA, in the toolkit first.

    Args:
        names: keys of `CUDA_WHEELS`.
        site_folders: site-packages folders, which may have NVIDIA's wheels.

    Raises:
        ToolNotFoundError: a library is not there; the message has the places of all that are
            missing.
        BinaryFormatError: a file is not a library.
    """
    found = {name: _find(name, toolkit, site_folders) for name in names}
    missing = [name for name, library in found.items() if library is None]
    if missing:
        lines = [f"lib{name}.so of CUDA {toolkit.release}" for name in missing]
        places = dict.fromkeys(
            str(folder) for name in missing for folder, _ in _places(name, toolkit, site_folders)
        )
        hints = dict.fromkeys(CUDA_WHEELS[name].install_hint(toolkit.release) for name in missing)
        raise ToolNotFoundError(
            f"{' and '.join(lines)} not found; searched\n  " + "\n  ".join(places),
            hint="; ".join(hints),
        )
    return tuple(library for library in found.values() if library is not None)


def wheel_folders(toolkit: Toolkit, site_folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the library folders of NVIDIA's wheels for a toolkit's major, without its own."""
    places = dict.fromkeys(wheel.place(toolkit.cuda_version // 1000) for wheel in _WHEELS)
    return tuple(_site_places(toolkit, places, site_folders))


def _site_places(
    toolkit: Toolkit, places: Iterable[str], site_folders: Sequence[Path]
) -> Iterator[Path]:
    for folder in (site_folder / place for site_folder in site_folders for place in places):
        if folder.is_dir() and not folder.samefile(toolkit.library_folder):
            yield folder


def _places(
    name: str, toolkit: Toolkit, site_folders: Sequence[Path]
) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of libraries to search, each with the folder of the headers."""
    yield toolkit.library_folder, toolkit.root / "include"
    place = CUDA_WHEELS[name].place(toolkit.cuda_version // 1000)
    for folder in _site_places(toolkit, (place,), site_folders):
        yield folder, folder.parent / "include"


def _find(name: str, toolkit: Toolkit, site_folders: Sequence[Path]) -> CudaLibrary | None:
    for folder, include in _places(name, toolkit, site_folders):
        files = sorted(folder.glob(f"lib{name}.so*"))
        if files:
            # Without version if there is one: the linker's own name of the library.
            return _read(name, files[0], include, toolkit.cuda_version // 1000)
    return None


def _read(name: str, file: Path, include: Path, major: int) -> CudaLibrary:
    wheel = CUDA_WHEELS[name]
    with input_errors(file):
        elf = Elf(open_file(file))
        # A symbolic link may lead out of a toolkit's folder.
        real = file.resolve()
    soname = Dynamic(elf).soname or file.name
    return CudaLibrary(
        name=name,
        file=file.absolute(),
        soname=soname,
        include=include if include.is_dir() else None,
        requirement=_requirement(wheel, major, _version(wheel.name(major), real), soname),
        place=wheel.place(major),
    )


def _version(distribution: str, file: Path) -> str:
    """Return the version of a library by its wheel or its file name; "" if neither has one."""
    pattern = f"{distribution.replace('-', '_')}-*.dist-info"
    for folder in file.parents[:5]:
        for found in folder.glob(pattern):
            return found.name.split("-")[1]
    match = _SONAME_VERSION.search(file.name)
    return match[1] if match and "." in match[1] else ""


def _requirement(wheel: CudaWheel, major: int, version: str, soname: str) -> str:
    name = wheel.name(major)
    if version:
        # A later minor release adds functions, and the next major one has another soname.
        first, second = [*version.split("."), "0"][:2]
        return f"{name}<{int(first) + 1},>={first}.{second}"
    match = _SONAME_VERSION.search(soname)
    number = int(match[1].split(".")[0]) if match else 0
    # libcufile.so.0 is a part of version 1 of its wheel.
    return f"{name}<{number + 1},>={number}" if number else name
