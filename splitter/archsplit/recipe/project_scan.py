"""Facts of a source tree that decide which kind of recipe fits.

In: a folder. Out: `ProjectFacts`: CUDA sources, bindings, build system, targets, and what a reader
could not know. Text alone is read, nothing is run: build files may do anything. CMake's file API
and ``compile_commands.json`` of an earlier configuration are read if the tree has them.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from archsplit.arch.target import Target
from archsplit.errors import InputError, TargetError
from archsplit.recipe.build_faults import find_build_faults
from archsplit.system.fs import input_errors
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_LARGEST = 1 << 20
"""Bytes of a file that is read: larger ones are data."""
_SKIPPED = {".git", ".github", "node_modules", "__pycache__", ".venv", ".nox", ".tox"}
_ASIDE = re.compile(r"tests?|testing|examples?|bench\w*|docs?|samples?|third_?party|extern(al)?\w*")
"""Names of folders whose kernels don't decide about the project."""
_BUILD_FILES = re.compile(
    r"CMakeLists\.txt|.*\.cmake|setup\.py|setup\.cfg|pyproject\.toml|Makefile|.*\.mk|meson\.build"
    r"|BUILD(\.bazel)?|SConstruct|build\.rs"
)
_TEXTS = re.compile(r".*\.(cu|cuh|c|cc|cpp|cxx|h|hh|hpp|hxx|py|pyx|rs|hip|i)")
_HOST = (".c", ".cc", ".cpp", ".cxx")

_BINDINGS: Mapping[str, str] = {
    "PyTorch": r"#\s*include\s*[<\"]torch/|\btorch\.utils\.cpp_extension\b|\bcpp_extension\.CUDA",
    "pybind11": r"#\s*include\s*[<\"]pybind11/",
    "nanobind": r"#\s*include\s*[<\"]nanobind/",
    "Boost.Python": r"#\s*include\s*[<\"]boost/python",
    "Python's C API": r"\bPyInit_\w+\s*\(|\bPyModule_Create\b",
    "SWIG": r"^%module\b",
    "PyO3": r"\bpyo3\b",
    "JAX": r"#\s*include\s*[<\"]xla/ffi/",
    "cffi's API mode": r"\bcffi_modules\b|\bffibuilder\.set_source\b",
}
_RUNTIME: Mapping[str, str] = {
    "numba": r"\bnumba\b.*\bcuda\b|@cuda\.jit",
    "CuPy": r"\b(cupy|cp|xp)\.(RawKernel|RawModule|ElementwiseKernel|ReductionKernel)\b",
    "PyCUDA": r"\bpycuda\.compiler\b|\bSourceModule\b",
    "Triton": r"@triton\.jit",
    "NVRTC": r"\bnvrtcCompileProgram\b|\bnvrtc\b",
    "PyTorch's cpp_extension": r"\bcpp_extension\.load(_inline)?\s*\("
    r"|\bfrom torch\.utils\.cpp_extension import [^\n]*\bload(_inline)?\b",
}
_LOADING = r"\bctypes\.(CDLL|cdll|PyDLL)\b|\bcdll\.LoadLibrary\b|\bffi\.dlopen\b|\bload_library\("
_BUILD_CUDA: Mapping[str, str] = {
    "CMake": r"\b(enable_language|project)\s*\([^)]*\bCUDA\b|\bfind_package\s*\(\s*CUDA",
    "setuptools": r"\bCUDAExtension\b|\bnvcc\b",
    "meson": r"project\s*\([^)]*'cuda'|add_languages\s*\([^)]*'cuda'",
    "make": r"\bnvcc\b",
}
_SYSTEM = {"CMakeLists.txt": "CMake", "setup.py": "setuptools", "meson.build": "meson"}
_HIP = r"#\s*include\s*[<\"]hip/|\bhipcc\b|\benable_language\s*\([^)]*HIP|\bhipLaunchKernel"
_OWN_NVCC = re.compile(
    r"[^\s\"'=]*/usr/local/cuda[^\s\"']*/bin/nvcc|set\s*\(\s*CMAKE_CUDA_COMPILER\b[^)]*"
)
_ARCH_LISTS = re.compile(
    r"(?:CMAKE_CUDA_ARCHITECTURES|CUDA_ARCHITECTURES|TORCH_CUDA_ARCH_LIST)\W{1,20}"
    r"((?:[\d.]+[af]?(?:-real|-virtual|\+PTX)?[;,\s\"']*)+)"
)
# The virtual architecture of a -gencode flag is no target by itself.
_VIRTUAL = re.compile(r"\barch=\[?compute_\w+")
_TARGET = re.compile(r"\b((?:sm|compute)_\d{2,3}[af]?)\b")
_NUMBER = re.compile(r"(\d+)\.?(\d?)([af]?)(-real|-virtual|\+PTX)?")
_NAMED_CUDA = re.compile(r"[\"']([\w./+-]*[\w+-]\.cu)[\"']")
_CMAKE_CUDA = re.compile(r"(?<![\w./${}*-])([\w./-]*\w\.cu)(?![\w.])")
_DEFAULT_GUARD = re.compile(r"if\s*\(\s*NOT\s+(DEFINED\s+)?CMAKE_CUDA_ARCHITECTURES", re.IGNORECASE)
_FETCHES = re.compile(r"\b(?:FetchContent_Declare|ExternalProject_Add|CPMAddPackage)\s*\(")
_VISIBILITY = re.compile(r"\bvisibility\s*\(\s*\"")
_C_BLOCK = re.compile(r"extern\s+\"C\"")
_FUNCTION = re.compile(
    r"^[ \t]*(?:[A-Z][A-Z0-9_]*(?:\([^()\n]*\))?\s+)*[A-Za-z_][\w \t*]*?\b"
    r"([A-Za-z_]\w*)\s*\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)\s*;",
    re.MULTILINE,
)
_NO_DECLARATION = re.compile(
    r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE
)
_SINGLE = re.compile(r"extern\s+\"C\"\s+(?!\{)[^;{(]*?\b([A-Za-z_]\w*)\s*\(")
_BLOCK = re.compile(r"extern\s+\"C\"\s*\{")
_DEFINITION = re.compile(
    r"^(?!.*__(?:global|device)__)[ \t]*(?!(?:static|if|else|for|while|switch|return)\b)"
    r"(?:__(?:declspec|attribute__)\s*\([^;{}\n]*?\)\s+)?"
    r"[A-Za-z_][\w \t*]*?\b([A-Za-z_]\w*)\s*\([^;{}()]*\)\s*\{",
    re.MULTILINE,
)
_TYPES = re.compile(r"\b(typedef|using|static|inline|return|namespace|template|class|operator)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFacts:
    """Facts of a source tree; all paths are relative to it.

    Attributes:
        name: the project's name; "" if unknown.
        version: "" if unknown, or computed by the build.
        summary: one line; "" if unknown.
        license: an SPDX expression; "" if unknown.
        license_files: the files with license texts.
        backend: the PEP 517 backend; "" for a tree that makes no wheel.
        requires: the packages that the backend's build requires.
        sources: the CUDA sources, without those of tests, examples and bundled projects.
        missing: the CUDA sources that a build file names, and the tree lacks.
        faults: reasons why the project's own build makes no wheel that works.
        aside: the number of these others.
        host_sources: the C and C++ sources beside the CUDA sources.
        systems: the build systems that compile CUDA.
        bindings: the ways in which Python calls the code, but for C functions.
        loading: the Python files that open a library with ctypes or cffi.
        interfaces: the headers with C functions, and the functions of each.
        definitions: the functions of C that CUDA sources define.
        targets: the targets that build files name.
        has_defaults: True if targets are set only where the caller sets none.
        own_nvcc: places where a build file names an nvcc by its path.
        is_hip: True for sources of AMD's HIP.
        has_visibility: True if code sets the visibility of functions.
        libraries: shared libraries that the tree has.
        downloads: the build files that fetch other sources while they run.
        at_run_time: the tools that compile kernels at run time.
        includes: include folders, from a configuration of CMake.
        defines: macros, from a configuration of CMake.
        configured: the file that these are from; "" for none.
    """

    name: str = ""
    version: str = ""
    summary: str = ""
    license: str = ""
    license_files: tuple[str, ...] = ()
    backend: str = ""
    requires: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    aside: int = 0
    host_sources: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()
    interfaces: Mapping[str, tuple[str, ...]]
    definitions: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    has_defaults: bool = False
    own_nvcc: tuple[str, ...] = ()
    is_hip: bool = False
    has_visibility: bool = False
    libraries: tuple[str, ...] = ()
    downloads: tuple[str, ...] = ()
    at_run_time: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    configured: str = ""


def scan_project(root: Path) -> ProjectFacts:
    """Read the facts of a source tree.

    Raises:
        InputError: the folder can't be read.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", hint="name a source tree or an sdist")
    with input_errors(root):
        texts = dict(_read_texts(root))
    files = _SourceTree.of(texts)
    code, build = files.code, files.build
    configured, includes, defines = _configuration(root, texts)
    identity = _identity(texts)
    faults = find_build_faults(
        build,
        code,
        name=identity["name"],
        backend=identity["backend"],
        requires=" ".join(identity["requires"]),
    )
    return ProjectFacts(
        **identity,
        sources=files.cuda,
        missing=tuple(_missing(texts, build)),
        faults=tuple(dict.fromkeys(faults)),
        aside=sum(name.endswith(".cu") for name in texts) - len(files.cuda),
        host_sources=files.host_sources(),
        systems=tuple(_systems(build)),
        bindings=_found(_BINDINGS, {**code, **build}) + _cython(code),
        loading=files.loading(),
        interfaces=dict(_interfaces(code)),
        definitions=files.definitions(),
        targets=_targets(build.values()),
        has_defaults=any(map(_DEFAULT_GUARD.search, build.values())),
        own_nvcc=tuple(f"{name}: {one[0]}" for name, one in _matches(_OWN_NVCC, build)),
        is_hip=files.is_hip(),
        has_visibility=any(map(_VISIBILITY.search, code.values())),
        libraries=tuple(_libraries(root)),
        downloads=tuple(name for name, text in sorted(build.items()) if _FETCHES.search(text)),
        at_run_time=_found(_RUNTIME, files.python),
        includes=includes,
        defines=defines,
        configured=configured,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceTree:
    """The texts of a source tree by kind.

    Tests, samples and copies of other projects are left out.
    """

    build: Mapping[str, str]
    code: Mapping[str, str]
    cuda: tuple[str, ...]
    python: Mapping[str, str]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> _SourceTree:
        main = {name: text for name, text in texts.items() if not _is_aside(name)}
        build = {name: text for name, text in main.items() if _is_build_file(name)}
        code = {name: text for name, text in main.items() if name not in build}
        return cls(
            build=build,
            code=code,
            cuda=tuple(sorted(name for name in code if name.endswith(".cu"))),
            python={name: text for name, text in code.items() if name.endswith(".py")},
        )

    def host_sources(self) -> tuple[str, ...]:
        """Return the C++ sources beside the CUDA sources."""
        folders = {str(PurePosixPath(name).parent) for name in self.cuda}
        return tuple(
            name
            for name in sorted(self.code)
            if name.endswith(_HOST) and str(PurePosixPath(name).parent) in folders
        )

    def loading(self) -> tuple[str, ...]:
        """Return the Python files that open a library."""
        found = (name for name, text in self.python.items() if re.search(_LOADING, text))
        return tuple(sorted(found))

    def definitions(self) -> tuple[str, ...]:
        """Return the functions that the CUDA sources export."""
        found = (one for name in self.cuda for one in _definitions(self.code[name]))
        return tuple(dict.fromkeys(found))

    def is_hip(self) -> bool:
        """Return True if the project also compiles for AMD's GPUs."""
        main = {**self.code, **self.build}
        return any(name.endswith(".hip") or re.search(_HIP, main[name]) for name in main)


def _read_texts(root: Path) -> Iterator[tuple[str, str]]:
    for path in _files(root):
        if _wanted(path) and path.stat().st_size <= _LARGEST:
            name = path.relative_to(root).as_posix()
            yield name, path.read_text(encoding="utf-8", errors="replace")


def _libraries(root: Path) -> Iterator[str]:
    for path in _files(root):
        if path.suffix == ".so":
            yield path.relative_to(root).as_posix()


def _files(root: Path) -> Iterator[Path]:
    """Yield the files of a tree, without links and folders of tools."""
    waiting = [root]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.is_symlink() or path.name in _SKIPPED:
                continue
            if path.is_dir():
                waiting.append(path)
            else:
                yield path


def _wanted(path: Path) -> bool:
    named = _BUILD_FILES.fullmatch(path.name) or _TEXTS.fullmatch(path.name)
    return (
        bool(named)
        or path.name in {"PKG-INFO", "compile_commands.json", "Cargo.toml"}
        or (path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE")))
        or (path.suffix == ".json" and path.parent.name == "reply")
    )


def _is_aside(name: str) -> bool:
    return any(_ASIDE.fullmatch(part.lower()) for part in PurePosixPath(name).parts[:-1])


def _is_build_file(name: str) -> bool:
    return bool(_BUILD_FILES.fullmatch(PurePosixPath(name).name))


def _found(patterns: Mapping[str, str], texts: Mapping[str, str]) -> tuple[str, ...]:
    joined = [re.compile(pattern, re.MULTILINE) for pattern in patterns.values()]
    return tuple(
        name
        for name, pattern in zip(patterns, joined, strict=True)
        if any(pattern.search(text) for text in texts.values())
    )


def _cython(code: Mapping[str, str]) -> tuple[str, ...]:
    return ("Cython",) if any(name.endswith(".pyx") for name in code) else ()


def _matches(
    pattern: re.Pattern[str], texts: Mapping[str, str]
) -> Iterator[tuple[str, re.Match[str]]]:
    return ((name, match) for name, text in texts.items() for match in pattern.finditer(text))


def _systems(build: Mapping[str, str]) -> Iterator[str]:
    for system, pattern in _BUILD_CUDA.items():
        files = (
            text
            for name, text in build.items()
            if _SYSTEM.get(PurePosixPath(name).name, "CMake" if name.endswith(".cmake") else "make")
            == system
            and not name.endswith((".toml", ".cfg"))
        )
        if any(re.search(pattern, text) for text in files):
            yield system


def _missing(texts: Mapping[str, str], build: Mapping[str, str]) -> Iterator[str]:
    names = {PurePosixPath(name).name for name in texts}
    named = _NAMED_CUDA.findall(texts.get("setup.py", ""))
    for file, text in build.items():
        if PurePosixPath(file).name == "CMakeLists.txt":
            # Tests and benchmarks are often left out of an sdist, and switched off.
            named += [path for path in _CMAKE_CUDA.findall(text) if not _is_aside(path)]
    for path in dict.fromkeys(named):
        # The folder may be a variable of the script: the file's own name is compared.
        if PurePosixPath(path).name not in names:
            yield path


def _targets(texts: Iterable[str]) -> tuple[Target, ...]:
    names = set()
    for text in texts:
        names.update(_TARGET.findall(_VIRTUAL.sub("", text)))
        for match in _ARCH_LISTS.finditer(text):
            names.update(_from_list(match[1]))
    targets = set()
    for name in names:
        with suppress(TargetError):
            targets.add(Target.parse(name))
    return tuple(sorted(targets))


def _from_list(text: str) -> Iterator[str]:
    newest = ""
    for match in _NUMBER.finditer(text):
        number = f"{match[1]}{match[2]}{match[3]}"
        if len(number.rstrip("af")) > 1:
            if match[4] != "-virtual":
                yield f"sm_{number}"
            if match[4] in {"-virtual", "+PTX"}:
                yield f"compute_{number}"
            # CMake's plain "90" is both; of several, the newest PTX serves all later GPUs.
            elif not match[4] and not match[2]:
                newest = max(newest, number, key=lambda one: (len(one.rstrip("af")), one))
    if newest:
        yield f"compute_{newest}"


def _interfaces(code: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, text in sorted(code.items()):
        if name.endswith((".h", ".hpp")) and (start := _C_BLOCK.search(text)):
            plain = _NO_DECLARATION.sub("", text[start.start() :])
            found = (match[1] for match in _FUNCTION.finditer(plain) if not _TYPES.search(match[0]))
            if functions := tuple(dict.fromkeys(found)):
                yield name, functions


def _definitions(text: str) -> Iterator[str]:
    """Yield the functions of C that a source defines."""
    plain = _NO_DECLARATION.sub("", text)
    yield from _SINGLE.findall(plain)
    if block := _BLOCK.search(plain):
        yield from _DEFINITION.findall(plain[block.end() :])


def _identity(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return name, version, license and backend, by ``pyproject.toml`` and PKG-INFO."""
    table: dict[str, Any] = {}
    with suppress(ValueError):
        table = loads(texts.get("pyproject.toml", ""))
    project = table.get("project", {})
    info = HeaderParser().parsestr(texts.get("PKG-INFO", ""))
    build = table.get("build-system", {})
    backend = str(build.get("build-backend", ""))
    if not backend and ("setup.py" in texts or "pyproject.toml" in texts):
        backend = "setuptools.build_meta:__legacy__" if "setup.py" in texts else ""
    stated = project.get("license")
    return {
        "name": str(info["Name"] or project.get("name", "")),
        "version": str(info["Version"] or project.get("version", "")),
        "summary": " ".join(str(info["Summary"] or project.get("description", "")).split()),
        "license": str(info["License-Expression"] or (stated if isinstance(stated, str) else "")),
        "license_files": tuple(
            sorted(
                name
                for name in texts
                if "/" not in name
                and name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))
            )
        ),
        "backend": backend,
        "requires": tuple(map(str, build.get("requires", ()))),
    }


def _configuration(
    root: Path, texts: Mapping[str, str]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return include folders and macros of CUDA sources, and the file that has them."""
    for name, text in sorted(texts.items()):
        options = _Options()
        # Both files are a build folder's, which may be half-written.
        with suppress(ValueError, KeyError, TypeError):
            if PurePosixPath(name).parent.name == "reply" and "target-" in name:
                options = _cmake_options(text)
            elif name.endswith("compile_commands.json"):
                options = _command_options(text)
        if options.found:
            return name, _inside(root, options.folders), tuple(dict.fromkeys(options.macros))
    return "", (), ()


@dataclass(frozen=True, slots=True)
class _Options:
    """The include folders and macros of the CUDA sources in a file."""

    found: bool = False
    folders: Sequence[str] = ()
    macros: Sequence[str] = ()


def _cmake_options(text: str) -> _Options:
    """Read a target of CMake's file API."""
    groups = [
        group
        for group in json.loads(text).get("compileGroups", ())
        if group.get("language") == "CUDA"
    ]
    folders = [one["path"] for group in groups for one in group.get("includes", ())]
    macros = [one["define"] for group in groups for one in group.get("defines", ())]
    return _Options(bool(groups), folders, macros)


def _command_options(text: str) -> _Options:
    """Read a ``compile_commands.json``."""
    words = [
        word
        for one in json.loads(text)
        if str(one["file"]).endswith(".cu")
        for word in one.get("arguments") or shlex.split(one["command"])
    ]
    folders = [word[2:] for word in words if word.startswith("-I")]
    macros = [word[2:] for word in words if word.startswith("-D")]
    return _Options(bool(words), folders, macros)


def _inside(root: Path, folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders below the root, relative to it."""
    found = (root / folder for folder in folders)
    real = root.resolve()
    return tuple(
        dict.fromkeys(
            path.resolve().relative_to(real).as_posix() or "."
            for path in found
            if path.is_dir() and path.resolve().is_relative_to(real)
        )
    )
