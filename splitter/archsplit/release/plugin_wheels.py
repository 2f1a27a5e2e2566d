"""From libraries to the plans of wheels: what each holds, what it is called, what it requires."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from archsplit.formats.elf import ELF_MAGIC
from archsplit.formats.reader import open_file
from archsplit.release.identity import (
    IDENTITY_FILE,
    LOADER_LIBRARY,
    LOADER_PACKAGE,
    hook_entry_point,
    hook_files,
)
from archsplit.system.fs import read_file
from archsplit.wheels.filename import (
    ALL_EXTRA,
    WheelName,
    distribution_name,
    extra_name,
    plugin_distribution,
    plugin_path,
)
from archsplit.wheels.member_names import WheelMember
from archsplit.wheels.metadata import CoreMetadata, MetadataAuthor
from archsplit.wheels.writer import WheelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.recipe.model import Project, Recipe
    from archsplit.release.identity import Identity

_DOCTOR = '''"""Say which plugin serves which GPU, and why: ``python -m {package}.doctor``."""

from .{face}.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


def core_metadata(recipe: Recipe) -> CoreMetadata:
    """What the core says of itself, with an extra for every plugin and one for all."""
    project = recipe.project
    pins = {target: _pinned_plugin(recipe, target) for target in recipe.targets.all}
    extras: dict[str, tuple[str, ...]] = {ALL_EXTRA: tuple(pins.values())}
    extras |= {extra_name(str(target)): (pin,) for target, pin in pins.items()}
    return _metadata(
        recipe, project.name, summary=project.summary, requires=project.dependencies, extras=extras
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A wheel to write.

    Attributes:
        role: ``core``, ``plugin`` or ``meta``.
        targets: whose device code is inside.
    """

    role: str
    targets: tuple[Target, ...]
    plan: WheelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlanner:
    """Plans the wheels of one build.

    Attributes:
        identity: who the core is.
        generator: what made the wheels, for their WHEEL file: ``archsplit 0.1.0``.
    """

    recipe: Recipe
    identity: Identity
    generator: str

    def plugin(self, target: Target, library: Path, platforms: tuple[str, ...]) -> Product:
        """The wheel with one target's library; requires exactly this build's core."""
        recipe = self.recipe
        path = plugin_path(recipe.python.package, str(target), recipe.link.library)
        metadata = _metadata(
            recipe,
            plugin_distribution(recipe.project.name, str(target)),
            summary=f"{recipe.project.summary.rstrip('.')}: device code for {target}.",
            requires=(_exactly(recipe, recipe.project.name),),
        )
        member = WheelMember(name=path, content=library, mode=0o755)
        plan = self._plan(metadata, platforms, (member,))
        return Product(role="plugin", targets=(target,), plan=plan)

    def core(self, loader: Path, platforms: tuple[str, ...]) -> Product:
        """The wheel that users import: Python files, the loader, and who it is; no device code."""
        members = tuple(self._members(loader))
        hook = hook_entry_point(self.recipe.python.package)
        plan = self._plan(core_metadata(self.recipe), platforms, members, entry_points=hook)
        return Product(role="core", targets=(), plan=plan)

    def core_libraries(self, loader: Path) -> dict[str, Path]:
        """The ELF files of the core, by their place in it: the loader, and what the recipe adds."""
        recipe = self.recipe
        python = {
            str(path): recipe.root / recipe.python.root / path for path in recipe.python.files
        }
        own = {name: path for name, path in python.items() if is_elf(path)}
        return {**own, f"{recipe.python.package}/{LOADER_PACKAGE}/{LOADER_LIBRARY}": loader}

    def meta(self) -> Product:
        """The wheel without files whose only use is to require the core and every plugin."""
        name = self.recipe.project.name
        metadata = _metadata(
            self.recipe,
            f"{name}-{ALL_EXTRA}",
            summary=f"{name} with the device code for every GPU that it supports.",
            requires=(_exactly(self.recipe, f"{name}[{ALL_EXTRA}]"),),
        )
        plan = self._plan(metadata, ("any",), (), purelib=True)
        return Product(role="meta", targets=(), plan=plan)

    def _members(self, loader: Path) -> Iterator[WheelMember]:
        recipe = self.recipe
        package = recipe.python.package
        face = f"{package}/{LOADER_PACKAGE}"
        for path in recipe.python.files:
            yield WheelMember(name=str(path), content=recipe.root / recipe.python.root / path)
        for file in resources.files("archsplit_loader").iterdir():
            if file.name.endswith(".py") or file.name == "py.typed":
                yield WheelMember(name=f"{face}/{file.name}", content=file.read_bytes())
        yield WheelMember(name=f"{face}/{LOADER_LIBRARY}", content=loader, mode=0o755)
        yield WheelMember(name=f"{face}/{IDENTITY_FILE}", content=self.identity.as_json().encode())
        doctor = _DOCTOR.format(package=package, face=LOADER_PACKAGE)
        yield WheelMember(name=f"{package}/doctor.py", content=doctor.encode())
        for name, text in hook_files(package).items():
            yield WheelMember(name=name, content=text)

    def _plan(
        self,
        metadata: CoreMetadata,
        platforms: tuple[str, ...],
        members: tuple[WheelMember, ...],
        *,
        purelib: bool = False,
        entry_points: str = "",
    ) -> WheelPlan:
        name = WheelName(
            project=distribution_name(metadata.name),
            version=metadata.version,
            platforms=platforms,
        )
        licenses = tuple(
            WheelMember(name=str(path), content=self.recipe.root / path)
            for path in self.recipe.project.license_files
        )
        return WheelPlan(
            name=name,
            metadata=metadata,
            generator=self.generator,
            members=members,
            licenses=licenses,
            purelib=purelib,
            entry_points=entry_points,
        )


def is_elf(path: Path) -> bool:
    """Whether a file begins as every ELF file does."""
    return open_file(path).data[: len(ELF_MAGIC)].tobytes() == ELF_MAGIC


def _exactly(recipe: Recipe, distribution: str) -> str:
    return f"{distribution}=={recipe.project.version}"


def _pinned_plugin(recipe: Recipe, target: Target) -> str:
    return _exactly(recipe, plugin_distribution(recipe.project.name, str(target)))


def _metadata(
    recipe: Recipe,
    name: str,
    *,
    summary: str,
    requires: tuple[str, ...],
    extras: dict[str, tuple[str, ...]] | None = None,
) -> CoreMetadata:
    return project_metadata(
        recipe.project, recipe.root, name, summary=summary, requires=requires, extras=extras
    )


def project_metadata(
    project: Project,
    root: Path,
    name: str,
    *,
    summary: str,
    requires: tuple[str, ...],
    extras: dict[str, tuple[str, ...]] | None = None,
) -> CoreMetadata:
    """What a distribution of a project says, in all that its distributions have in common.

    Args:
        root: the recipe's folder.

    Raises:
        InputError: the readme can't be read any more.
    """
    readme = project.readme
    return CoreMetadata(
        name=name,
        version=project.version,
        summary=summary,
        description=read_file(root / readme).decode() if readme else "",
        description_content_type=project.readme_type,
        license_expression=project.license,
        license_files=tuple(map(str, project.license_files)),
        authors=tuple(MetadataAuthor(name=one.name, email=one.email) for one in project.authors),
        keywords=project.keywords,
        classifiers=project.classifiers,
        urls=project.urls,
        requires_python=project.requires_python,
        requires=requires,
        extras=extras or {},
    )
