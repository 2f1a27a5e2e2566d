"""Facts about new files of a static index: metadata of wheels and source distributions, provenance.

In: a path. Out: the metadata that an installer would read, and the provenance object (PEP 740)
beside the file. Nothing here writes.

Sources: https://packaging.python.org/en/latest/specifications/source-distribution-format/
https://packaging.python.org/en/latest/specifications/index-hosted-attestations/
"""

from __future__ import annotations

import binascii
import json
import tarfile
import zlib
from base64 import b64decode
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archsplit.errors import VerifyError, WheelError
from archsplit.index.static_model import PROVENANCE_SUFFIX, SDIST_SUFFIX, is_sdist
from archsplit.system.fs import input_errors, read_file
from archsplit.system.schema import schema_faults
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LARGEST_METADATA = 16 << 20
"""Bytes: far more than any project's page has; a damaged archive may promise anything."""


def read_distribution_metadata(path: Path) -> bytes:
    """Return METADATA of a wheel, or PKG-INFO of a source distribution.

    Raises:
        InputError: the file can't be read.
        WheelError: the file is damaged.
    """
    if is_sdist(path.name):
        return _read_package_info(path)
    # The index is no judge of other people's wheels: what installs may be served.
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.read(f"{wheel.dist_info}/METADATA")


def _read_package_info(path: Path) -> bytes:
    name = f"{path.name.removesuffix(SDIST_SUFFIX)}/PKG-INFO"
    try:
        with input_errors(path), tarfile.open(path, mode="r:gz") as archive:
            member = archive.getmember(name)
            file = archive.extractfile(member)
            if file is None or member.size > _LARGEST_METADATA:
                raise WheelError(f"{path}: {name} is not a file of a usual size")
            return file.read()
    except KeyError:
        raise WheelError(f"{path} is no source distribution: {name} is missing") from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise WheelError(f"{path} is damaged: {error}") from None


class _Publisher(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    kind: str


class _Envelope(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    statement: str
    signature: str


class _Attestation(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    version: Literal[1]
    verification_material: dict[str, Any]
    envelope: _Envelope

    def digests(self) -> Iterator[object]:
        """Yield the SHA-256 of each file that the statement is about."""
        statement = json.loads(b64decode(self.envelope.statement, validate=True))
        for subject in statement["subject"]:
            yield subject["digest"]["sha256"]


class _Bundle(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    publisher: _Publisher
    attestations: Annotated[tuple[_Attestation, ...], Field(min_length=1)]


class _Provenance(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    version: Literal[1]
    attestation_bundles: Annotated[tuple[_Bundle, ...], Field(min_length=1)]


def read_provenance(path: Path, digest: str) -> bytes:
    """Return the provenance object beside a file; b"" without one.

    The statements must be about this file. Signatures are not verified: that takes the trusted
    root of the signer, which installers have.

    Args:
        path: the wheel or source distribution.
        digest: its SHA-256.

    Raises:
        InputError: the object can't be read.
        VerifyError: it is no provenance object, or about another file.
    """
    place = path.with_name(path.name + PROVENANCE_SUFFIX)
    if not place.exists():
        return b""
    content = read_file(place)
    try:
        found = _Provenance.model_validate_json(content)
        named = {
            each
            for bundle in found.attestation_bundles
            for attestation in bundle.attestations
            for each in attestation.digests()
        }
    except ValidationError as error:
        raise VerifyError(f"{place} is no provenance object: {schema_faults(error)}") from None
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise VerifyError(f"{place}: a statement in it can't be read") from None
    if named != {digest}:
        raise VerifyError(
            f"{place} is about another file: its statements don't have the SHA-256 {digest}",
            hint="take the object of this file from the index that published it",
        )
    return content
