"""The metadata of a wheel before the wheel is built (PEP 517, PEP 643).

In: a `BuildRequest` and the effects. Out: the files of the wheel's ``.dist-info`` that a resolver
reads. A core's metadata comes from the recipe alone. A plugin's metadata has the licenses of the
toolkit too, so nvcc has to be there; nothing is compiled for either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.build.plan import open_site, requested_recipe, select_targets
from archsplit.build.provenance import add_licenses, read_plugin_origins
from archsplit.release.core_files import hook_entry_points
from archsplit.release.plugin_wheels import core_metadata, plugin_metadata
from archsplit.system.fs import output_errors, read_file
from archsplit.wheels.filename import WheelName, distribution_name, plugins_package
from archsplit.wheels.metadata import encode_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.build.plan import BuildRequest
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.wheels.metadata import CoreMetadata

METADATA_FILE = "METADATA"


def write_dist_info(
    order: BuildRequest, effects: Effects, *, target: Target | None, out: Path
) -> Path:
    """Write the ``.dist-info`` folder of a core or a plugin into ``out``; return its path.

    ``WHEEL`` is missing, because the platform tag is a property of the compiled library.

    Args:
        target: the target of the plugin; None for the core.

    Raises:
        ArchsplitError: the recipe, a tool or the target is not usable.
        OutputError: the folder can't be written.
    """
    metadata, files = read_metadata(order, effects, target=target)
    name = WheelName(
        project=distribution_name(metadata.name), version=metadata.version, platforms=("any",)
    )
    folder = out / name.dist_info
    for file, content in {METADATA_FILE: encode_metadata(metadata), **files}.items():
        path = folder / file
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def read_metadata(
    order: BuildRequest, effects: Effects, *, target: Target | None
) -> tuple[CoreMetadata, Mapping[str, bytes]]:
    """Return the metadata of a core or a plugin, and the files beside METADATA.

    Raises:
        ArchsplitError: see `write_dist_info`.
    """
    # No tools for a core: pip asks for its metadata on machines without nvcc.
    if target is None:
        recipe = requested_recipe(order, effects)
        points = hook_entry_points(plugins_package(recipe.python.package)) or b""
        return core_metadata(recipe), {"entry_points.txt": points, **_licenses(recipe)}
    with open_site(order, effects) as site:
        # Raises for a target that the recipe doesn't have.
        select_targets(site.recipe, (target,))
        plugin = plugin_metadata(site.recipe, target, site.plugin_requires)
        metadata, more = add_licenses(plugin, read_plugin_origins(site, target))
        texts = {f"licenses/{name}": text for name, text in more.items()}
        return metadata, {**_licenses(site.recipe), **texts}


def _licenses(recipe: Recipe) -> dict[str, bytes]:
    return {
        f"licenses/{path}": read_file(recipe.root / path) for path in recipe.project.license_files
    }
