"""Wheels from outside, as entries of an index: read, hashed, and copied beside its pages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.errors import InputError, VerifyError
from archsplit.index.entries import METADATA_SUFFIX, IndexEntry, exact_pins
from archsplit.release.reported import read_reported
from archsplit.system.fs import blocks, hash_stream, input_errors, replacing, write_file
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.index.static_folder import IndexFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWheel:
    """A wheel that shall come into the index.

    Attributes:
        path: where it is.
        expected: the SHA-256 that a build's report has, or None.
        metadata: its METADATA.
    """

    path: Path
    expected: str | None
    metadata: bytes = field(repr=False)
    entry: IndexEntry


def new_wheels(sources: Iterable[Path]) -> list[tuple[Path, str | None]]:
    """Wheels, each with the hash that a report beside it promises.

    Args:
        sources: wheels, and folders: of a build or a split (what its report names, no more), or of
            wheels.

    Raises:
        InputError: nothing is there, or a folder has no wheel, or a report can't be read.
        WheelError: a report names a file that can't be a wheel in its folder.
    """
    found: list[tuple[Path, str | None]] = []
    for source in sources:
        if not source.is_dir():
            found.append((source, None))
        elif (reported := read_reported(source)) is not None:
            found += [(source / _named(row.file), row.sha256) for row in reported.rows]
        elif paths := sorted(source.glob("[!.]*.whl")):
            found += [(path, None) for path in paths]
        else:
            raise InputError(f"no wheel in {source}")
    return found


def _named(file: str) -> str:
    """A wheel's name out of a report, which can't lead out of the report's folder."""
    WheelName.parse(file)
    return file


def read_new_wheel(path: Path, expected: str | None, *, now: int) -> NewWheel:
    """Read a wheel's metadata and hash all of it.

    Raises:
        InputError: it can't be read.
        WheelError: it is not a sound wheel.
        VerifyError: it isn't what the build's report promises.
    """
    # The index is no judge of other people's wheels: what installs may be served.
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        metadata = wheel.read(f"{wheel.dist_info}/METADATA")
    digest, size = _hashed(path)
    if expected not in {None, digest}:
        raise VerifyError(f"{path} is not the file that the report beside it names")
    raw, _ = parse_email(metadata)
    entry = IndexEntry(
        file=path.name,
        sha256=digest,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        size=size,
        uploaded=now,
        requires_python=raw.get("requires_python", ""),
        pins=exact_pins(raw.get("requires_dist", [])),
    )
    return NewWheel(path=path, expected=expected, metadata=metadata, entry=entry)


def copy_in(one: NewWheel, folder: IndexFolder) -> None:
    """Copy a wheel and its METADATA to their places; whole, or not at all.

    Raises:
        OutputError: they can't be written.
        InputError: the wheel changes meanwhile.
    """
    project, name = one.entry.release.project, one.entry.file
    folder.make_folder(project)
    metadata = f"{name}{METADATA_SUFFIX}"
    write_file(folder.place(project, metadata), one.metadata)
    folder.written.append(f"{project}/{metadata}")
    digest = hashlib.sha256()
    with replacing(folder.place(project, name)) as temporary, temporary.open("wb") as file:
        for block in _blocks(one.path):
            digest.update(block)
            file.write(block)
        if digest.hexdigest() != one.entry.sha256:
            raise InputError(f"{one.path} changed while it was copied")
    folder.written.append(f"{project}/{name}")


def _hashed(path: Path) -> tuple[str, int]:
    with input_errors(path), path.open("rb") as file:
        digest, size = hash_stream(file)
    return digest.hex(), size


def _blocks(path: Path) -> Iterator[bytes]:
    with input_errors(path), path.open("rb") as file:
        yield from blocks(file)
