"""Find the libraries with device code in a site-packages folder, and whose they are.

Hold installed libraries against what RECORD says of them.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import plan_file
from archsplit.devicecode.effects import check_code_stays, check_coverage_stays, has_code_for
from archsplit.devicecode.scan import HEAD_SIZE, detect_form
from archsplit.errors import BinaryFormatError, WheelError
from archsplit.slim.wheel import SLIMMABLE_FORMS, SlimmedLibrary
from archsplit.system.fs import blocks, input_errors, read_file
from archsplit.wheels.installed import read_distributions
from archsplit.wheels.record import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.installed import InstalledDistribution, InstalledFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordClaim:
    """A row of a RECORD that stands for a library.

    Attributes:
        place: the row's path; a link may be there that leads to the library.
    """

    distribution: InstalledDistribution
    row: InstalledFile
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedLibrary:
    """A library and all rows that stand for it; there are several where distributions overlap."""

    library: SlimmedLibrary
    claims: tuple[RecordClaim, ...]

    @property
    def owner(self) -> InstalledDistribution:
        """The first that claims it."""
        return self.claims[0].distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What there is to slim, and what has to be said about the rest."""

    owned: tuple[OwnedLibrary, ...]
    notes: tuple[str, ...] = field(default=())


def plan_installation(site: Path, request: SlimRequest) -> Installation:
    """Plan every library with device code that a RECORD in ``site`` has.

    Raises:
        InputError: something can't be read.
        WheelError: a RECORD is damaged.
        TargetError: the choice leaves a GPU without code that it is meant for.
    """
    notes: list[str] = []
    claims: dict[str, list[RecordClaim]] = {}
    for distribution in read_distributions(site):
        if _is_editable(site / distribution.folder):
            notes.append(f"{distribution.name} is installed editable: its source was not looked at")
        if (site / distribution.folder).is_symlink():
            notes.append(f"{distribution.folder} is a link: what it lists was not looked at")
            continue
        for row in distribution.rows:
            place = _library_place(site, row, notes)
            if place is not None:
                claim = RecordClaim(
                    distribution=distribution, row=row, place=row.normalized_path or ""
                )
                claims.setdefault(place, []).append(claim)
    owned = [
        OwnedLibrary(library=library, claims=tuple(claims[library.name]))
        for library in _planned(site, sorted(claims), request, notes)
    ]
    return _for_selection(site, owned, request, notes)


def _is_editable(folder: Path) -> bool:
    """Whether the distribution's own files are in a source tree; see PEP 610."""
    origin = folder / "direct_url.json"
    return origin.is_file() and b'"editable": true' in read_file(origin)


def _library_place(site: Path, row: InstalledFile, notes: list[str]) -> str | None:
    """Where the file of a row is, if it can have device code; a note, if it is out of reach."""
    path = site / row.path
    if not _can_have_code(path):
        return None
    if row.normalized_path is None:
        notes.append(f"{row.path} is out of {site}, and was not looked at")
        return None
    link = _linked_folder(site, row.normalized_path)
    if link is not None:
        notes.append(f"{row.normalized_path} is behind the link {link}: it was not looked at")
        return None
    return _without_link(site, row.normalized_path)


def _can_have_code(path: Path) -> bool:
    with input_errors(path):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return detect_form(file.read(HEAD_SIZE)) in SLIMMABLE_FORMS


def _linked_folder(site: Path, place: str) -> str | None:
    """The folder of ``place`` that is a link, whose files may be anybody's."""
    folders = [str(folder) for folder in Path(place).parents][:-1]
    return next((folder for folder in reversed(folders) if (site / folder).is_symlink()), None)


def _without_link(site: Path, place: str) -> str:
    """Where a link within the same folder leads; one that leads out of it is a file of its own."""
    real = Path(os.path.realpath(site / place))
    return real.relative_to(site).as_posix() if real.is_relative_to(site) else place


def _planned(
    site: Path, places: Iterable[str], request: SlimRequest, notes: list[str]
) -> Iterator[SlimmedLibrary]:
    for place in places:
        try:
            plan = plan_file(site / place, request.order)
        except BinaryFormatError as error:
            notes.append(f"{place} is left as it is: {error}")
            continue
        if plan.containers:
            yield SlimmedLibrary(name=place, path=site / place, plan=plan)


def _for_selection(
    site: Path, owned: list[OwnedLibrary], request: SlimRequest, notes: list[str]
) -> Installation:
    """Leave the distributions for which a choice has nothing at all, unless that leaves none."""
    check_code_stays(request.selection, _containers(owned), of=str(site))
    groups: dict[str, list[OwnedLibrary]] = {}
    for each in owned:
        groups.setdefault(each.owner.name, []).append(each)
    stays: list[OwnedLibrary] = []
    for name, group in groups.items():
        if not has_code_for(request.selection, _containers(group)):
            notes.append(f"{name} is left as it is: nothing in it is for {request.choice}")
            continue
        for each in group:
            check_coverage_stays(
                request.selection, each.library.plan.containers, of=each.library.name
            )
        stays += group
    notes += _shared(stays)
    return Installation(owned=tuple(stays), notes=tuple(dict.fromkeys(notes)))


def _containers(owned: Iterable[OwnedLibrary]) -> list[FilteredContainer]:
    return [one for each in owned for one in each.library.plan.containers]


def _shared(owned: Iterable[OwnedLibrary]) -> Iterator[str]:
    """A word on files that others have too: their space is not this environment's."""
    paths = [each.library.path for each in owned if each.library.plan.is_changed]
    count = sum(path.is_symlink() or path.lstat().st_nlink > 1 for path in paths)
    if count:
        yield f"{count} libraries are shared, as with a cache; the others' stay as they are"


def check_digests(owned: Iterable[OwnedLibrary], *, believe_record: bool) -> dict[str, str]:
    """Give the SHA-256 of each library, by its path, if RECORD has the same.

    Args:
        owned: the libraries.
        believe_record: False takes those that aren't what RECORD has the hash of, too.

    Raises:
        WheelError: some are not what RECORD says; the message lists all.
        InputError: one can't be read.
    """
    digests: dict[str, str] = {}
    findings: list[str] = []
    for each in owned:
        algorithms = {claim.row.hash_text.partition("=")[0] for claim in each.claims}
        known = (algorithms & ALGORITHMS.keys()) | {"sha256"}
        found = _hashes(each.library.path, sorted(known))
        digests[each.library.name] = found["sha256"].hex()
        if believe_record:
            findings += _disagreements(each, found)
    if findings:
        raise WheelError(
            "\n".join(findings),
            hint="install it anew, or slim it as it is with --ignore-record",
        )
    return digests


def _disagreements(owned: OwnedLibrary, found: dict[str, bytes]) -> Iterator[str]:
    size = len(owned.library.plan.window)
    for claim in owned.claims:
        algorithm, _, text = claim.row.hash_text.partition("=")
        digest = base64.urlsafe_b64encode(found.get(algorithm, b"")).decode().rstrip("=")
        if not text or text != digest or claim.row.size not in {"", str(size)}:
            record = claim.distribution.record
            yield f"{owned.library.name} doesn't match its hash in {record}"


def _hashes(path: Path, algorithms: Iterable[str]) -> dict[str, bytes]:
    digests = {name: hashlib.new(name) for name in algorithms}
    with input_errors(path), path.open("rb") as file:
        for block in blocks(file):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.digest() for name, digest in digests.items()}
