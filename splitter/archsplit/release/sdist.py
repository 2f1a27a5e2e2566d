"""Source distribution of a recipe and its input files (PEP 625)."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

from archsplit.recipe.pyproject_table import PROJECT_FILE
from archsplit.system.fs import atomic_replace, read_file
from archsplit.wheels import metadata
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.recipe.model import Recipe
    from archsplit.wheels.metadata import CoreMetadata


def pack_source(recipe: Recipe, core: CoreMetadata, *, folder: Path, epoch: int) -> Path:
    """Write ``<name>-<version>.tar.gz`` into a folder.

    Args:
        core: the metadata for PKG-INFO.
        epoch: the modification time of all members, in seconds since 1970.

    Raises:
        InputError: a file of the recipe can't be read.
        OutputError: the folder can't be written.
    """
    stem = f"{distribution_name(core.name).replace('-', '_')}-{core.version}"
    path = folder / f"{stem}.tar.gz"
    with (
        atomic_replace(path) as temporary,
        temporary.open("wb") as file,
        # A file name or the time of today in the gzip header would change the bytes.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(_members(recipe, core)):
            archive.addfile(_header(f"{stem}/{name}", len(content), epoch), io.BytesIO(content))
    return path


def _members(recipe: Recipe, core: CoreMetadata) -> Iterator[tuple[str, bytes]]:
    yield "PKG-INFO", metadata.encode_metadata(core)
    for name in {*map(str, recipe.input_files), PROJECT_FILE}:
        yield name, read_file(recipe.root / name)


def _header(name: str, size: int, epoch: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mtime, header.mode = size, epoch, 0o644
    return header
