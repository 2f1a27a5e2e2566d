"""Faults of a project's own build that its files show: its wheel would lack what it needs.

In: the texts of the build files and of the code, by path. Out: a sentence for each fault, with the
next step. Nothing is run: a fault that a value of a script hides is found by the build alone.
"""

from __future__ import annotations

import ast
import re
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__pure__ = True

_BY_CMAKE = ("scikit_build_core", "py_build_cmake")
"""Backends whose wheels have what CMake installs, and nothing else of its outputs."""
_BY_SETUP = "setuptools"
_MODULE = re.compile(
    r"\b(?:pybind11_add_module|nanobind_add_module|Python3?_add_library|swig_add_library)"
    r"\s*\(\s*([\w.-]+)"
)
_INSTALLED = re.compile(r"\binstall\s*\(\s*TARGETS\s([^()]*)", re.IGNORECASE)
_KEYWORD = re.compile(r"[A-Z_]+")
_BY_PATH = re.compile(r"\$<TARGET_FILE:([\w.-]+)>|(LIBRARY_OUTPUT_DIRECTORY)")
_LIBRARY = re.compile(r"\b(?:cuda_)?add_library\s*\(\s*([\w.-]+)", re.IGNORECASE)
_LINKED = re.compile(r"\blibraries\s*=\s*\[([^\]]*)\]")
_QUOTED = re.compile(r"[\"']([\w.+-]+)[\"']")
_STARTS_CMAKE = re.compile(r"[\"']cmake[\"']")
_OTHER_BUILD = re.compile(r"\bcmake\b|\bCMakeExtension\b|\bskbuild\b|[\"']make[\"']|\bnvcc\b")
_COMPILES = frozenset({"ext_modules", "cmdclass", "cffi_modules", "rust_extensions"})
"""Arguments of setuptools' ``setup`` that can bring compiled files into a wheel."""


def find_build_faults(
    build: Mapping[str, str], code: Mapping[str, str], *, name: str, backend: str, requires: str
) -> Iterator[str]:
    """Yield the faults of a build.

    Args:
        build: the texts of the build files.
        code: the texts of the sources.
        name: the project's name.
        backend: the PEP 517 backend.
        requires: the requirements of the backend's build, as one text.
    """
    if backend.startswith(_BY_CMAKE):
        yield from _uninstalled_modules(build)
    if backend.startswith(_BY_SETUP) and "setup.py" not in build:
        yield from _nothing_compiled("setup()", build, file="pyproject.toml")
    if backend.startswith(_BY_SETUP) and (script := build.get("setup.py")):
        yield from _nothing_compiled(script, build)
        yield from _unmade_libraries(script, build, code, name)
        if _STARTS_CMAKE.search(script) and "cmake" not in requires:
            yield (
                "setup.py starts cmake, and the project does not require it: `pip install cmake`"
                " first, so that PATH has one"
            )


def _uninstalled_modules(build: Mapping[str, str]) -> Iterator[str]:
    cmake = {file: text for file, text in build.items() if _is_cmake(file)}
    installed = {name for text in cmake.values() for name in _installed_names(text)}
    # A name that a variable makes may be any of them; a folder may be that of the package.
    if any("${" in name or name == "LIBRARY_OUTPUT_DIRECTORY" for name in installed):
        return
    for file, text in sorted(cmake.items()):
        for module in _MODULE.findall(text):
            if module not in installed:
                yield (
                    f"{file} builds the module {module}, and no install() has it, so that the wheel"
                    f" lacks it: add `install(TARGETS {module} LIBRARY DESTINATION PACKAGE)`"
                )


def _installed_names(text: str) -> Iterator[str]:
    for target, option in _BY_PATH.findall(text):
        yield target or option
    for arguments in _INSTALLED.findall(text):
        # The names end at the first keyword, such as DESTINATION.
        yield from takewhile(lambda word: not _KEYWORD.fullmatch(word), arguments.split())


def _nothing_compiled(
    script: str, build: Mapping[str, str], *, file: str = "setup.py"
) -> Iterator[str]:
    """Yield a fault if the call of ``setup`` can bring no compiled file."""
    arguments = _setup_arguments(script)
    elsewhere = ("pyproject.toml", "setup.cfg")
    named = any(re.search(r"ext[-_]modules", build.get(each, "")) for each in elsewhere)
    if arguments is None or arguments & _COMPILES or named:
        return
    makefiles = (each for each in sorted(build) if PurePosixPath(each).name == "Makefile")
    unused = next((each for each in makefiles if "nvcc" in build[each]), None)
    calls = f", and nothing starts {unused}" if unused else ""
    yield (
        f"{file} compiles nothing: it names no ext_modules{calls}; name the extension there, or"
        " write the command that compiles it into source.build"
    )


def _setup_arguments(script: str) -> set[str] | None:
    """Return the names of the arguments of ``setup``; None where they can't be read."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            # `setup(**options)` may have any argument.
            names = {one.arg for one in node.keywords if one.arg is not None}
            return names if len(names) == len(node.keywords) else None
    return None


def _unmade_libraries(
    script: str, build: Mapping[str, str], code: Mapping[str, str], name: str
) -> Iterator[str]:
    """Yield the project's own libraries that its extensions link and no step compiles."""
    if _OTHER_BUILD.search(script):
        return
    makers = {
        library.casefold(): file
        for file, text in sorted(build.items())
        if _is_cmake(file)
        for library in _LIBRARY.findall(text)
    }
    linking = {"setup.py": script}
    linking.update({file: text for file, text in code.items() if "set_source(" in text})
    for file, text in sorted(linking.items()):
        for library in _QUOTED.findall(" ".join(_LINKED.findall(text))):
            maker = makers.get(library.casefold())
            if maker or library.casefold() == name.casefold().replace("-", "_"):
                first = f"{maker} does, and setup.py does not start it" if maker else "no file does"
                yield (
                    f"{file} links the project's own {library} (-l{library}), which the build does"
                    f" not make: {first}; let source.build compile and install it first"
                )


def _is_cmake(file: str) -> bool:
    return file.endswith((".cmake", "CMakeLists.txt"))
