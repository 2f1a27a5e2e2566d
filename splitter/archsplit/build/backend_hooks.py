"""Wheels for two hooks of a build backend: metadata ahead of the build, and editable cores.

In: a `BuildRequest` and the effects. For PEP 517 and PEP 643 the output is the files of the wheel's
``.dist-info`` that a resolver reads. A core's metadata comes only from the recipe. A plugin's
metadata has the licenses of the toolkit too, so nvcc has to be there; nothing is compiled for
either.

For PEP 660 the output is a core whose Python files stay in the source tree: a wheel with everything
that a core gets from archsplit (the loader, its identity, the doctor), an import hook that joins
these files with the package in the source tree, and the plugins of the requested targets. They are
in the same wheel, because they have the build id of this core. A plugin from an index has another
one, so the loader of an editable core refuses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.build.pipeline import compile_plan, open_session
from archsplit.build.plan import open_context, plan_build, requested_recipe, select_targets
from archsplit.build.provenance import add_licenses, read_origins
from archsplit.errors import OutputError
from archsplit.release.identity import hook_entry_points
from archsplit.release.loader import copy_loader
from archsplit.release.wheel_plans import WheelPlanner, core_metadata, plugin_metadata, wheel_name
from archsplit.system.fs import output_dir, output_errors, read_file
from archsplit.wheels.filename import plugin_path
from archsplit.wheels.metadata import encode_metadata
from archsplit.wheels.writer import WheelMember, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.build.plan import BuildPlan, BuildRequest
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.wheels.metadata import CoreMetadata
    from archsplit.wheels.writer import WheelDraft

METADATA_FILE = "METADATA"


def write_dist_info(
    request: BuildRequest, effects: Effects, *, target: Target | None, out: Path
) -> Path:
    """Write the ``.dist-info`` folder of a core or a plugin into ``out``; return its path.

    ``WHEEL`` is missing, because the platform tag is a property of the compiled library.

    Args:
        target: the target of the plugin; None for the core.

    Raises:
        ArchsplitError: the recipe, a tool or the target is not usable.
        OutputError: the folder can't be written.
    """
    metadata, files = read_metadata(request, effects, target=target)
    folder = out / wheel_name(metadata, ("any",)).dist_info
    for file, content in {METADATA_FILE: encode_metadata(metadata), **files}.items():
        path = folder / file
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def read_metadata(
    request: BuildRequest, effects: Effects, *, target: Target | None
) -> tuple[CoreMetadata, Mapping[str, bytes]]:
    """Return the metadata of a core or a plugin, and the files beside METADATA.

    Raises:
        ArchsplitError: see `write_dist_info`.
    """
    # No tools for a core: pip asks for its metadata on machines without nvcc.
    if target is None:
        recipe = requested_recipe(request, effects)
        points = hook_entry_points(recipe.python.package) or b""
        return core_metadata(recipe), {"entry_points.txt": points, **_licenses(recipe)}
    with open_context(request, effects) as context:
        # Raises for a target that the recipe doesn't have.
        select_targets(context.recipe, (target,))
        plugin = plugin_metadata(context.recipe, target, context.plugin_requires)
        metadata, more = add_licenses(plugin, read_origins(context))
        texts = {f"licenses/{name}": text for name, text in more.items()}
        return metadata, {**_licenses(context.recipe), **texts}


def _licenses(recipe: Recipe) -> dict[str, bytes]:
    return {
        f"licenses/{path}": read_file(recipe.root / path) for path in recipe.project.license_files
    }


_HOOK = '''"""Import {package} from its source tree, with the files that archsplit has made for it.

An editable installation has written this file; `pip install -e` writes it again.
"""

import os
import sys
from importlib.util import spec_from_file_location

SOURCE = {source}
GENERATED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{package}")


class SourceTreeFinder:
    """Finder of one package, whose modules are in two folders."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Return the spec of the package; all others are left to the next finder."""
        if name != "{package}":
            return None
        file = os.path.join(SOURCE, "__init__.py")
        if not os.path.exists(file):
            raise ModuleNotFoundError(
                "{package} is an editable installation, and its source tree is not there: "
                + SOURCE
                + "\\nhint: pip install -e FOLDER, with the folder's new place",
                name=name,
            )
        return spec_from_file_location(name, file, submodule_search_locations=[SOURCE, GENERATED])


sys.meta_path.insert(0, SourceTreeFinder)
'''


def build_editable_core(request: BuildRequest, effects: Effects, *, out: Path) -> Path:
    """Write the wheel of an editable installation into ``out``; return its path.

    The wheel has the plugins of the requested targets.

    Raises:
        OutputError: the path of the source tree can't be written into a ``.pth`` file.
        ArchsplitError: a stage of the build failed; ``out`` is unchanged.
    """
    with (
        open_session(effects) as session,
        plan_build(request, effects, session=session) as plan,
        output_dir(out) as folder,
    ):
        compile_plan(plan, effects, session)
        return write_wheel(folder, _editable(plan, effects), epoch=plan.context.epoch)


def _editable(plan: BuildPlan, effects: Effects) -> WheelDraft:
    recipe, identity = plan.context.recipe, plan.identity
    loader = copy_loader(folder=plan.context.folder, machine=effects.elf_machine)
    planner = WheelPlanner(recipe=recipe, identity=identity)
    # Only this machine installs the wheel. An index refuses the tag, as it should.
    core = planner.core(loader, (f"linux_{effects.elf_machine}",))
    # The package's own files are imported from the source tree.
    sources = {str(path) for path in recipe.python.files}
    made = [member for member in core.members if member.name not in sources]
    members = (*made, *_hook_members(recipe), *_plugin_members(plan))
    return replace(core, members=members)


def _plugin_members(plan: BuildPlan) -> Iterator[WheelMember]:
    recipe = plan.context.recipe
    for target, library in plan.libraries.items():
        name = plugin_path(recipe.python.package, str(target), recipe.link.library)
        yield WheelMember(name=name, content=library, mode=0o755)


def _hook_members(recipe: Recipe) -> Iterator[WheelMember]:
    package = recipe.python.package
    root = (recipe.root / recipe.python.root).resolve()
    if not str(root).isprintable():
        raise OutputError(
            f"can't import from {str(root)!r}: the path has characters that can't be printed",
            hint="rename the folder",
        )
    hook = f"_{package}_editable"
    text = _HOOK.format(package=package, source=ascii(str(root / package)))
    yield WheelMember(name=f"{hook}.py", content=text.encode())
    # Type checkers and editors read no import hooks, but follow a folder. Before Python 3.13 the
    # file is read in the locale's encoding, so only ASCII is safe.
    lines = [str(root)] if str(root).isascii() else []
    content = "".join(f"{line}\n" for line in [*lines, f"import {hook}"])
    yield WheelMember(name=f"{hook}.pth", content=content.encode())
