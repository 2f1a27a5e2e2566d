"""First recipe of a project, as text with comments.

In: a source tree and the targets of the toolkit here. Out: the text of a ``recipe.toml``. Build
files are not searched for hints: a project that pip can build keeps its own build, whose wheel is
split; another one gets the list of its sources, and marks at the values that only a person knows.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.errors import NothingToDoError, WheelError
from archsplit.recipe.pyproject_table import PROJECT_FILE
from archsplit.system.fs import read_file
from archsplit.system.toml import TOMLDecodeError, loads
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__pure__ = True

FILL_IN = "FILL IN"
"""Mark of a value that only a person knows."""
_USUAL = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_SOURCES = (".cu", ".c", ".cc", ".cpp", ".cxx")
_SKIPPED = {"build", "node_modules", "tests", "test", "examples", "docs"}
_DECLARATION = re.compile(r"^[\w \t*]+?\b(\w+)\s*\([^(){};]*\)\s*;", re.MULTILINE)
"""A function in a C header; a declaration that this misses is added by hand."""

_OWN_BUILD = """\
# Your own build makes the wheel, and archsplit splits it. The command gets the targets below as
# TORCH_CUDA_ARCH_LIST, CUDAARCHS and, for nvcc's own command line, ARCHSPLIT_GENCODE.

{identity}
[source]
# For a PyTorch extension add --no-build-isolation, and install the build's requirements first.
build = "python3 -m pip wheel --no-deps --wheel-dir {{out}} ."

{targets}
[split]
# "capability": one pack for each kind of GPU. "target": one for each target.
by = "capability"

[install]
# "core": users choose packs by extras. "all": the core requires every pack. "meta": a wheel
# NAME-all besides, which requires them.
mode = "core"
"""

_OF_SOURCES = """\
# Host code is compiled once, and a small library for each GPU. For C functions that Python opens
# with ctypes or cffi; all others need a pyproject.toml, and then `archsplit init --force`.

[project]
name = {name}
version = {version}
summary = "{fill_in}"
license = "LicenseRef-Unknown" # {fill_in}: an SPDX expression
license-files = {license_files}

[source]
files = {files}
include = {include}

{targets}
[interface]
header = {header}
# The functions that the library exports: all that the header declares.
symbols = {symbols}

[python]
package = {package}
root = {root}
files = {python_files}
"""


def usual_targets(known: Collection[Target]) -> tuple[Target, ...]:
    """Return the usual targets that a toolkit knows, and PTX of the newest.

    Args:
        known: the targets of a toolkit; empty for an unknown toolkit.
    """
    usual = [Target.parse(name) for name in _USUAL]
    sass = [target for target in usual if target in known] or usual
    newest = Target(kind=CodeKind.PTX, capability=sass[-1].capability)
    return (*sass, newest)


def starter_recipe(root: Path, targets: tuple[Target, ...]) -> str:
    """Return the text of a recipe for a source tree.

    Raises:
        InputError: a file can't be read.
        NothingToDoError: pip can't build the tree, and it has no CUDA sources.
    """
    name, version = _identity(root)
    # Without a build-system table pip takes setuptools, but only if there is a setup.py.
    if "build-system" in _pyproject(root) or (root / "setup.py").is_file():
        identity = f"# {name or root.name} {version}".rstrip() + "\n"
        return _OWN_BUILD.format(identity=identity, targets=_target_lines(targets))
    return _of_sources(root, name or _folder_name(root), version or "0.1.0", targets)


def _identity(root: Path) -> tuple[str, str]:
    """Return name and version by PKG-INFO (an sdist's) or ``pyproject.toml``; "" for unknown."""
    if (root / "PKG-INFO").is_file():
        info = HeaderParser().parsestr(read_file(root / "PKG-INFO").decode(errors="replace"))
        return str(info["Name"] or ""), str(info["Version"] or "")
    project = _pyproject(root).get("project")
    table = project if isinstance(project, dict) else {}
    return str(table.get("name", "")), str(table.get("version", ""))


def _pyproject(root: Path) -> dict[str, object]:
    # A damaged file is the build's problem: its own message is better than one from here.
    with suppress(TOMLDecodeError, UnicodeDecodeError):
        if (root / PROJECT_FILE).is_file():
            return loads(read_file(root / PROJECT_FILE).decode())
    return {}


def _folder_name(root: Path) -> str:
    try:
        return distribution_name(root.resolve().name)
    except WheelError:
        return "project"


def _of_sources(root: Path, name: str, version: str, targets: tuple[Target, ...]) -> str:
    files = [path.relative_to(root) for path in _walk(root)]
    sources = [str(path) for path in files if path.suffix in _SOURCES]
    if not any(source.endswith(".cu") for source in sources):
        raise NothingToDoError(
            f"{root} has no CUDA sources (*.cu), and no pyproject.toml or setup.py",
            hint="archsplit split WHEEL splits a finished wheel without any recipe",
        )
    headers = [path for path in files if path.suffix in {".h", ".hpp"}]
    functions = {str(path): _functions(root / path) for path in headers}
    header = max(functions, key=lambda one: (len(functions[one]), one), default="")
    packages = [path.parent for path in files if path.name == "__init__.py"]
    package = min(packages, key=lambda one: (len(one.parts), one), default=Path("python", name))
    return _OF_SOURCES.format(
        fill_in=FILL_IN,
        name=json.dumps(name),
        version=json.dumps(version),
        license_files=json.dumps(sorted(_licenses(files)) or ["LICENSE"]),
        files=_listed(sources),
        include=json.dumps(sorted({str(path.parent) for path in headers})),
        targets=_target_lines(targets),
        header=json.dumps(header or FILL_IN),
        symbols=_listed(functions.get(header) or [FILL_IN.lower().replace(" ", "_")]),
        package=json.dumps(package.name),
        root=json.dumps(str(package.parent)),
        python_files=json.dumps([f"{package.name}/**/*.py"]),
    )


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files of a tree, sorted, without hidden folders, tests and builds."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in _SKIPPED and not path.name.startswith("."):
                yield from _walk(path)
        else:
            yield path


def _licenses(files: Collection[Path]) -> Iterator[str]:
    for path in files:
        if path.parent == Path() and path.stem.upper() in {"LICENSE", "LICENCE", "COPYING"}:
            yield path.name


def _functions(header: Path) -> list[str]:
    text = read_file(header).decode(errors="replace")
    # Functions of C++ have other names in the library; only C's can be opened by name.
    return sorted(set(_DECLARATION.findall(text))) if 'extern "C"' in text else []


def _target_lines(targets: tuple[Target, ...]) -> str:
    lines = ["[targets]"]
    for key, kind in (("sass", CodeKind.SASS), ("ptx", CodeKind.PTX)):
        lines.append(f"{key} = {json.dumps([str(one) for one in targets if one.kind is kind])}")
    return "\n".join(lines) + "\n"


def _listed(names: Collection[str]) -> str:
    # JSON's strings are TOML's, except that TOML has characters beyond ASCII as they are.
    return "[\n" + "".join(f"    {json.dumps(one, ensure_ascii=False)},\n" for one in names) + "]"
