"""From libraries to the plans of wheels: what each holds, what it is called, what it requires."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from splitter.identity import FILE_NAME
from splitter.system.files import read_file
from splitter.wheels.member import Member
from splitter.wheels.metadata import Author, CoreMetadata
from splitter.wheels.names import (
    ALL_EXTRA,
    WheelName,
    extra_name,
    plugin_distribution,
    plugin_path,
)
from splitter.wheels.writer import WheelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.arch.target import Target
    from splitter.identity import Identity
    from splitter.recipe import Recipe

FACE_FOLDER = "_archsplit"
LOADER_LIBRARY = "libarchsplit_loader.so"

_DOCTOR = '''"""Say which plugin serves which GPU, and why: ``python -m {package}.doctor``."""

from .{face}.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Plans the wheels of one build.

    Attributes:
        identity: who the core is.
        generator: what made the wheels, for their WHEEL file: ``archsplit 0.1.0``.
    """

    recipe: Recipe
    identity: Identity
    generator: str

    def plugin(self, target: Target, library: Path, platforms: tuple[str, ...]) -> WheelPlan:
        """The wheel with one target's library; requires exactly this build's core."""
        recipe = self.recipe
        path = plugin_path(recipe.python.package, str(target), recipe.link.library)
        metadata = self._metadata(
            plugin_distribution(recipe.project.name, str(target)),
            summary=f"{recipe.project.summary.rstrip('.')}: device code for {target}.",
            requires=(self._exactly(recipe.project.name),),
        )
        return self._plan(metadata, platforms, (Member(path, library, mode=0o755),))

    def core(self, loader: Path, platforms: tuple[str, ...]) -> WheelPlan:
        """The wheel that users import: Python files, the loader, and who it is; no device code."""
        recipe = self.recipe
        targets = recipe.targets.all
        extras = {extra_name(str(target)): (self._pinned_plugin(target),) for target in targets}
        extras[ALL_EXTRA] = tuple(self._pinned_plugin(target) for target in targets)
        metadata = self._metadata(
            recipe.project.name,
            summary=recipe.project.summary,
            requires=recipe.project.dependencies,
            extras=extras,
        )
        return self._plan(metadata, platforms, tuple(self._core_members(loader)))

    def meta(self) -> WheelPlan:
        """The wheel without files whose only use is to require the core and every plugin."""
        name = self.recipe.project.name
        metadata = self._metadata(
            f"{name}-{ALL_EXTRA}",
            summary=f"{name} with the device code for every GPU that it supports.",
            requires=(self._exactly(f"{name}[{ALL_EXTRA}]"),),
        )
        return self._plan(metadata, ("any",), (), purelib=True)

    def _exactly(self, distribution: str) -> str:
        return f"{distribution}=={self.recipe.project.version}"

    def _pinned_plugin(self, target: Target) -> str:
        return self._exactly(plugin_distribution(self.recipe.project.name, str(target)))

    def _core_members(self, loader: Path) -> Iterator[Member]:
        recipe = self.recipe
        package = recipe.python.package
        face = f"{package}/{FACE_FOLDER}"
        for path in recipe.python.files:
            yield Member(str(path), recipe.root / recipe.python.root / path)
        for file in resources.files("plugin_loader").iterdir():
            if file.name.endswith(".py") or file.name == "py.typed":
                yield Member(f"{face}/{file.name}", file.read_bytes())
        yield Member(f"{face}/{LOADER_LIBRARY}", loader, mode=0o755)
        yield Member(f"{face}/{FILE_NAME}", self.identity.as_json().encode())
        doctor = _DOCTOR.format(package=package, face=FACE_FOLDER)
        yield Member(f"{package}/doctor.py", doctor.encode())

    def _metadata(
        self,
        name: str,
        *,
        summary: str,
        requires: tuple[str, ...],
        extras: dict[str, tuple[str, ...]] | None = None,
    ) -> CoreMetadata:
        project = self.recipe.project
        return CoreMetadata(
            name=name,
            version=project.version,
            summary=summary,
            description=self._description(),
            description_content_type=project.readme_type if project.readme else "",
            license_expression=project.license,
            license_files=tuple(map(str, project.license_files)),
            authors=tuple(Author(person.name, person.email) for person in project.authors),
            keywords=project.keywords,
            classifiers=project.classifiers,
            urls=project.urls,
            requires_python=project.requires_python,
            requires=requires,
            extras=extras or {},
        )

    def _description(self) -> str:
        project = self.recipe.project
        return read_file(self.recipe.root / project.readme).decode() if project.readme else ""

    def _plan(
        self,
        metadata: CoreMetadata,
        platforms: tuple[str, ...],
        members: tuple[Member, ...],
        *,
        purelib: bool = False,
    ) -> WheelPlan:
        licenses = tuple(
            Member(str(path), self.recipe.root / path) for path in self.recipe.project.license_files
        )
        return WheelPlan(
            name=WheelName(metadata.name, metadata.version, platforms),
            metadata=metadata,
            generator=self.generator,
            members=members,
            licenses=licenses,
            purelib=purelib,
        )
