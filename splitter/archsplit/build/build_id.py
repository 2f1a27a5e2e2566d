"""Identity of a core that is built from a recipe.

The build id is one hash over everything that decides the wheels' bytes: the recipe's input files,
the toolkit, the versions of the host's tools and of archsplit.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from archsplit.recipe.interface import hash_interface
from archsplit.release.identity import Identity
from archsplit.system.fs import sha256
from archsplit.wheels.filename import plugin_distribution, plugins_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.build.context import BuildContext
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Recipe


def identify(site: BuildContext, *, version: str) -> Identity:
    """Return the identity that a core and the plugins of its build share.

    Args:
        version: the version of archsplit.

    Raises:
        InputError: an input file can't be read.
    """
    recipe = site.recipe
    name = recipe.project.name
    return Identity(
        package=name,
        version=recipe.project.version,
        build_id=_build_id(site, version=version),
        interface_hash=hash_interface(recipe).hex(),
        library=recipe.link.library,
        plugins_package=plugins_package(recipe.python.package),
        distribution=name,
        targets={
            str(target): plugin_distribution(name, str(target)) for target in recipe.targets.all
        },
        provided=(*recipe.link.provided, *(one.soname for one in site.cuda_libraries)),
    )


def _build_id(site: BuildContext, *, version: str) -> str:
    # In: the recipe's own files with their relative names, the toolkit's programs and headers, the
    # versions of the host's tools and of archsplit, and the time of __DATE__.
    # Out: every absolute path, the clock, the user, and which of the targets are built now, so that
    # several machines may build one release.
    digest = hashlib.sha256()
    for line in _lines(site, version):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _lines(site: BuildContext, version: str) -> Iterator[str]:
    yield f"archsplit {version}"
    yield f"SOURCE_DATE_EPOCH {site.epoch}"
    yield from site.host.versions
    for part in site.parts:
        yield from _toolkit_lines(part.toolkit)
        if site.recipe.compile.relocatable:
            yield from _device_link_lines(part.toolkit)
        # One toolkit has all targets of the recipe, whose files are hashed below.
        if site.by_toolkit:
            yield f"targets {' '.join(map(str, part.recipe.targets.all))}"
    for library in site.cuda_libraries:
        yield f"{library.soname} {library.requirement}"
    yield from _recipe_lines(site.recipe)
    # A policy changes the version, and so the pins between the wheels.
    if site.recipe.applied:
        yield f"policy {site.recipe.applied} {site.recipe.project.version}"


def _recipe_lines(recipe: Recipe) -> Iterator[str]:
    for path in recipe.input_files:
        yield f"{path} {sha256(recipe.root / path)}"


def _toolkit_lines(toolkit: Toolkit) -> Iterator[str]:
    yield f"CUDA {toolkit.release}"
    for tool in toolkit.tools:
        yield f"{tool.name} {sha256(tool)}"
    for path in _driver_files(toolkit):
        yield f"{path.name} {sha256(path)}"
    static_runtime = toolkit.library_folder / "libcudart_static.a"
    yield f"{static_runtime.name} {sha256(static_runtime)}"
    yield f"headers {_tree_digest(toolkit.root / 'include')}"


def _driver_files(toolkit: Toolkit) -> Iterator[Path]:
    """Yield nvcc's profile, and the bitcode library that cicc takes functions from."""
    profile = toolkit.root / "bin" / "nvcc.profile"
    # The wheels of some CUDA versions have no profile.
    if profile.is_file():
        yield profile
    yield from sorted((toolkit.root / "nvvm" / "libdevice").glob("*.bc"))


def _device_link_lines(toolkit: Toolkit) -> Iterator[str]:
    programs = toolkit.root / "bin"
    runtime = toolkit.library_folder / "libcudadevrt.a"
    for path in (programs / "nvlink", programs / "crt" / "link.stub", runtime):
        yield f"{path.name} {sha256(path)}"


def _tree_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    real = folder.resolve()
    # Sorted, because a folder's order differs between file systems.
    for path in sorted(path for path in real.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(real).as_posix()} {sha256(path)}\n".encode())
    return digest.hexdigest()
