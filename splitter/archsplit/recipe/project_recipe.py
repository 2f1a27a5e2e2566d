"""The recipe that fits a source tree, as text with comments.

In: `ProjectFacts`. Out: what could not be known, and a recipe: of sources for C functions that
Python calls through ctypes or cffi; for all else one that runs the project's own build and splits
its wheel.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target, cmake_architectures, torch_arch_list
from archsplit.errors import NothingToDoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from archsplit.recipe.project_scan import ProjectFacts

__pure__ = True

_DEFAULT_TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120")
_MOST_NAMES = 3
FILL_IN = "FILL IN"
"""The mark of a value that only a person knows."""
_NO_WHEEL = (
    f"{FILL_IN}: no pyproject.toml or setup.py makes a wheel here. Write the command that makes",
    "one into {out}, or name the built library in `library`, with a [project] table.",
)
_NO_TARGETS = (
    "The build files name no target, so nvcc gets the recipe's: it reads NVCC_APPEND_FLAGS.",
)
_FOR_TORCH = (
    "An extension fits one release of torch: it is compiled against the installed one, so",
    "install the build's requirements first.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRecipe:
    """A recipe for a project.

    Attributes:
        text: the content of ``recipe.toml``.
        reason: why this kind of recipe fits.
        unknown: what could not be known, a line each.
        faults: reasons why the project's own build fails, a line each.
        targets: the targets of the recipe, or of the build files.
    """

    text: str
    reason: str
    unknown: tuple[str, ...]
    faults: tuple[str, ...] = ()
    targets: tuple[Target, ...]


def propose_recipe(facts: ProjectFacts, folder: str) -> ProposedRecipe:
    """Return the recipe that fits.

    Args:
        folder: the source tree's name, for messages.

    Raises:
        NothingToDoError: the project has no CUDA sources; the message has what was found instead.
    """
    # CUDA sources that no build file compiles may be data, for a compiler at run time.
    if not facts.systems and (facts.at_run_time or not facts.sources):
        raise _nothing(facts, folder)
    # The first reason is enough: later ones often follow from it.
    if reason := next(_against_sources(facts), None):
        return _own_build(facts, reason)
    return _of_sources(facts)


def _nothing(facts: ProjectFacts, folder: str) -> NothingToDoError:
    if facts.is_hip:
        return NothingToDoError(
            f"{folder} has HIP sources for AMD's GPUs, and no CUDA",
            hint="archsplit is for CUDA; rocm-kpack does the same for AMD",
        )
    if facts.at_run_time:
        return NothingToDoError(
            f"{folder} compiles its kernels at run time ({', '.join(facts.at_run_time)}): its wheel"
            " has no device code",
            hint="there is nothing to split; the libraries that it requires may be split",
        )
    if facts.libraries:
        return NothingToDoError(
            f"{folder} has no CUDA sources (*.cu), but built libraries: {_some(facts.libraries)}",
            hint="split the wheel that has them: `python3 -m pip wheel --no-deps"
            f" --wheel-dir fat {shlex.quote(folder)}`, then `archsplit split fat/*.whl --out dist`",
        )
    if facts.loading and not facts.aside:
        return NothingToDoError(
            f"{folder} has no CUDA sources (*.cu), and {facts.loading[0]} opens a library that is"
            " not here either",
            hint="take the source tree of the project's repository; `archsplit split` splits a"
            " wheel that has the library",
        )
    aside = f", but {facts.aside} in tests, examples or bundled projects" if facts.aside else ""
    return NothingToDoError(
        f"{folder} has no CUDA sources (*.cu){aside}, and no build file that compiles CUDA",
        hint="if its wheel has device code all the same, `archsplit split WHEEL` splits that",
    )


def _some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _against_sources(facts: ProjectFacts) -> Iterator[str]:
    """Yield the reasons for the project's own build."""
    if not facts.sources:
        yield "its CUDA sources are not in the tree"
    if facts.bindings:
        yield f"Python calls it by {', '.join(facts.bindings)}, compiled for each Python"
    elif not facts.loading:
        yield "no Python file opens the library with ctypes or cffi"
    if not facts.interfaces:
        yield 'no header has functions of C (extern "C")'
    if absent := _absent(facts):
        yield f"the tree has no {' and no '.join(absent)}"


def _absent(facts: ProjectFacts) -> list[str]:
    """Return what a recipe of sources needs and the tree lacks."""
    needed = {
        "name": facts.name,
        "version": facts.version,
        "license text (a file LICENSE or COPYING)": facts.license_files,
    }
    return [what for what, value in needed.items() if not value]


def _own_build(facts: ProjectFacts, reason: str) -> ProposedRecipe:
    command, notes = _command(facts)
    lines = [
        f"# The project's own build, whose wheel is split: {reason}.",
        "",
        "[source]",
        *(f"# {note}" for note in notes),
        f"build = {_text(command)}",
        "",
        *_target_lines(facts),
        "[split]",
        '# "capability": one pack for each kind of GPU. "target": one for each target.',
        'by = "capability"',
        "",
        "[install]",
        '# "core": users choose packs by extras. "all": the core requires every pack, as the fat',
        '# wheel had all code. "meta": a wheel NAME-all besides.',
        'mode = "core"',
    ]
    return ProposedRecipe(
        text="\n".join(lines) + "\n",
        reason=reason,
        unknown=tuple(_unknown_of_build(facts)),
        faults=facts.faults,
        targets=_targets(facts),
    )


def _command(facts: ProjectFacts) -> tuple[str, tuple[str, ...]]:
    """Return the command, and comments on it."""
    if not facts.backend:
        configure = "cmake -S . -B {out}/build -DCMAKE_BUILD_TYPE=Release"
        return f"sh -c '{configure} && cmake --build {{out}}/build'", _NO_WHEEL
    plain = "python3 -m pip wheel --no-deps --wheel-dir {out} ."
    if "PyTorch" in facts.bindings:
        return plain.replace("--no-deps", "--no-deps --no-build-isolation"), _FOR_TORCH
    # nvcc's own default would be its oldest target; flags from the environment reach every build.
    if facts.systems and "CMake" not in facts.systems and not facts.targets:
        return f"sh -c 'NVCC_APPEND_FLAGS=\"$ARCHSPLIT_GENCODE\" {plain}'", _NO_TARGETS
    return plain, ("`python -m build --wheel --outdir {out}` and `uv build` do the same.",)


def _target_lines(facts: ProjectFacts) -> Iterator[str]:
    takes_variables = "PyTorch" in facts.bindings or facts.has_defaults
    if facts.targets and not takes_variables:
        names = ", ".join(map(str, facts.targets))
        yield f"# The build files name {names}, and a list of the recipe may not reach them."
        yield "# With [targets] only packs for these GPUs are written."
        yield "# [targets]"
        yield from (f"# {line}" for line in _lists(facts.targets))
        yield ""
        return
    targets = _targets(facts)
    yield f"# The command gets them as TORCH_CUDA_ARCH_LIST={torch_arch_list(targets)},"
    yield f"# CUDAARCHS={cmake_architectures(targets)},"
    yield "# and as nvcc's flags in ARCHSPLIT_GENCODE."
    yield "[targets]"
    yield from _lists(targets)
    yield ""


def _targets(facts: ProjectFacts) -> tuple[Target, ...]:
    return facts.targets or tuple(map(Target.parse, _DEFAULT_TARGETS))


def _lists(targets: Iterable[Target]) -> Iterator[str]:
    for key, kind in (("sass", CodeKind.SASS), ("ptx", CodeKind.PTX)):
        if names := [str(target) for target in sorted(targets) if target.kind is kind]:
            yield f"{key} = {json.dumps(names)}"


def _unknown_of_build(facts: ProjectFacts) -> Iterator[str]:
    yield from _needed_first(facts)
    if not facts.systems:
        yield (
            f"the compiler of {facts.sources[0]}: no build file starts nvcc, so that the wheel may"
            " have no device code"
        )
    if facts.definitions and facts.loading and not (facts.bindings or facts.interfaces):
        names = ", ".join(facts.definitions)
        yield (
            f"if a recipe of sources fits better: no header declares {names}; with one that does,"
            " `archsplit init --force` writes such a recipe"
        )
    if facts.loading and facts.interfaces and not facts.bindings and (absent := _absent(facts)):
        yield (
            f"if a recipe of sources fits better: the tree has no {' and no '.join(absent)}; with"
            " that, `archsplit init --force` writes such a recipe"
        )
    for place in facts.own_nvcc:
        yield f"{place}: the build may ignore the compiler wrapper; it works all the same, uncached"
    if facts.downloads:
        yield (
            f"the network during the build: {', '.join(facts.downloads)} fetches other sources"
            " (FetchContent, ExternalProject)"
        )
    if facts.targets and not facts.has_defaults and "PyTorch" not in facts.bindings:
        yield "if the build takes its targets from CUDAARCHS or ARCHSPLIT_GENCODE"
    if not facts.targets:
        yield "the targets that users need: the build files name none, the recipe has a usual list"
    if "make" in facts.systems:
        yield "if the Makefile takes nvcc from the variable NVCC or from PATH"
    if facts.is_hip:
        yield "which sources are for CUDA and which for HIP: only CUDA is split"


def _needed_first(facts: ProjectFacts) -> Iterator[str]:
    """Yield what a build can't start without."""
    if not facts.backend:
        yield "the command that makes a wheel: fill in source.build"
    if facts.missing:
        yield (
            f"the place of {', '.join(facts.missing[:3])}: a build file names it, and it is not"
            " here; take the source tree of the project's repository"
        )
    if "PyTorch" in facts.bindings:
        yield (
            "the release of torch: install one with CUDA in this environment first (the CPU's wheel"
            " has the headers, but no libc10_cuda.so to link)"
        )


def _of_sources(facts: ProjectFacts) -> ProposedRecipe:
    header, symbols = max(facts.interfaces.items(), key=lambda item: (len(item[1]), item[0]))
    package = _package(facts)
    reason = f"{header} has functions of C, which {', '.join(facts.loading[:3])} opens"
    license_ = facts.license or FILL_IN
    folders = facts.includes or _folders(facts, header)
    targets = _targets(facts)
    unknown = list(_unknown_of_sources(facts))
    lines = [
        f"# Host code once, a small library for each GPU: {reason}.",
        "",
        "[project]",
        f"name = {_text(facts.name)}",
        f"version = {_text(facts.version)}",
        f"summary = {_text(facts.summary or FILL_IN)}",
        *([f"# {FILL_IN}: an SPDX expression"] if not facts.license else []),
        f"license = {_text(license_)}",
        f"license-files = {json.dumps(list(facts.license_files))}",
        "",
        "[source]",
        "# The CUDA sources, and the C and C++ sources beside them.",
        f"files = {_listed((*facts.sources, *facts.host_sources))}",
        f"include = {json.dumps(list(folders))}",
        f"defines = {json.dumps(list(facts.defines))}",
        "",
        *_compile_lines(facts),
        "[link]",
        '# "cublas", "cusparse", …: libraries of CUDA that the sources use.',
        "cuda-libraries = []",
        "",
        "[targets]",
        *_lists(targets),
        "",
        "[interface]",
        f"header = {_text(header)}",
        "# All functions of the header; the library exports no others.",
        f"symbols = {_listed(symbols)}",
        "",
        "[python]",
        f"package = {_text(package[1])}",
        f"root = {_text(package[0])}",
        # Beside a package at the top are setup.py, tests and more, which are no part of it.
        *([f"files = [{_text(f'{package[1]}/**/*.py')}]"] if package[0] == "." else []),
    ]
    text = "\n".join(lines) + "\n"
    return ProposedRecipe(text=text, reason=reason, unknown=tuple(unknown), targets=targets)


def _compile_lines(facts: ProjectFacts) -> Iterator[str]:
    # Where the project chooses what it exports, its choice counts.
    if not facts.has_visibility:
        yield "[compile]"
        yield "# Host code is compiled with -fvisibility=hidden; no source exports its functions."
        yield 'host-flags = ["-fvisibility=default"]'
        yield ""


def _unknown_of_sources(facts: ProjectFacts) -> Iterator[str]:
    if not facts.summary:
        yield "project.summary: fill it in"
    if not facts.license:
        yield "project.license: fill it in"
    if not facts.configured:
        configure = "`cmake -S . -B build -DCMAKE_EXPORT_COMPILE_COMMANDS=ON`"
        known = f": {configure}, then `archsplit init --force` reads them"
        yield f"include folders and defines of the build{known if 'CMake' in facts.systems else ''}"
    yield "the libraries of CUDA that the sources use: link.cuda-libraries"
    package = _package(facts)[1]
    yield (
        f"{', '.join(facts.loading[:3])} must open the plugin: `from {package}._archsplit import"
        " load`, and `load()` in place of ctypes.CDLL(PATH), at the first call that needs a GPU;"
        " docs/reference/loader.md has all of it"
    )


def _package(facts: ProjectFacts) -> tuple[str, str]:
    """Return the root folder and the name of the import package that opens the library."""
    path = PurePosixPath(facts.loading[0])
    plain = facts.name.replace("-", "_").lower()
    for folder in path.parents:
        if folder.name.lower() == plain:
            return str(folder.parent), folder.name
    return str(path.parent.parent), path.parent.name or plain


def _folders(facts: ProjectFacts, header: str) -> tuple[str, ...]:
    parents = [PurePosixPath(name).parent for name in (header, *facts.sources)]
    return tuple(dict.fromkeys(str(parent) for parent in parents if str(parent) != "."))


def _listed(names: Iterable[str]) -> str:
    return "[\n" + "".join(f"    {_text(name)},\n" for name in names) + "]"


def _text(value: str) -> str:
    # JSON's strings are TOML's, but for characters beyond ASCII, which TOML has as they are.
    return json.dumps(value, ensure_ascii=False)
