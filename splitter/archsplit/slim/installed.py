"""Find libraries with device code in a site-packages folder, and their RECORD rows.

In: a folder and a request. Out: `Installation`: a plan for each library that a RECORD lists, and
notes about files that are not touched. `check_digests` compares the libraries with RECORD before
anything is changed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.devicecode.apply import check_code_stays, check_coverage_stays, has_code_for
from archsplit.devicecode.code_files import cubin_folder, unused_bitcode
from archsplit.devicecode.file_forms import file_form
from archsplit.devicecode.plan_transfer import decode_plan, encode_plan
from archsplit.errors import BinaryFormatError, InputError, WheelError
from archsplit.formats.reader import open_file
from archsplit.slim.wheel import SLIMMABLE_FORMS, SlimmedLibrary, plan_member
from archsplit.system.fs import blocks, input_errors, read_file
from archsplit.system.parallel import map_on_cores
from archsplit.system.units import count_text
from archsplit.system.worker_processes import Codec, map_in_processes
from archsplit.wheels.record import ALGORITHMS, read_distributions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.slim.request import SlimRequest
    from archsplit.system.worker_processes import WorkerProcesses
    from archsplit.wheels.record import InstalledDistribution, InstalledFile


_MANY_THREADS = 16
_ERROR = b"!"
"""The first byte in place of a plan's: pickled data begins with another."""
_IDENTITY = struct.Struct("<QQqq")

FileIdentity = tuple[int, int, int, int]
"""Device, inode, size and time of change of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordClaim:
    """A row of a RECORD for a library.

    Attributes:
        path: the path of the row; maybe a symbolic link to the library.
    """

    distribution: InstalledDistribution
    row: InstalledFile
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedLibrary:
    """A library and its RECORD rows: several, if distributions share the file.

    Attributes:
        identity: of the file before it was planned.
    """

    library: SlimmedLibrary
    claims: tuple[RecordClaim, ...]
    identity: FileIdentity = field(repr=False)

    @property
    def owner(self) -> InstalledDistribution:
        """First distribution that claims the library."""
        return self.claims[0].distribution

    def check_unchanged(self) -> None:
        """Refuse a library that another program has replaced since it was planned.

        Raises:
            InputError: the file is another one, or has another size or time.
        """
        _check_identity(self.library.path, self.identity)


def _read_identity(path: Path) -> FileIdentity:
    with input_errors(path):
        status = path.stat()
    # Without the time of the inode, which a new link in another environment changes.
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _check_identity(path: Path, identity: FileIdentity) -> None:
    if _read_identity(path) != identity:
        raise InputError(
            f"{path} changed while it was slimmed",
            hint="wait for the installer that writes there, and run it again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The libraries to slim, and notes about other files."""

    owned: tuple[OwnedLibrary, ...]
    notes: tuple[str, ...] = field(default=())


def plan_installation(
    site: Path, request: SlimRequest, workers: WorkerProcesses | None = None
) -> Installation:
    """Plan every library with device code that a RECORD in ``site`` lists.

    Raises:
        InputError: a file can't be read, or is replaced while it is planned.
        WheelError: a RECORD is damaged.
        TargetError: a GPU of the choice would be left without code.
    """
    notes: list[str] = []
    claims: dict[str, list[RecordClaim]] = {}
    for distribution in read_distributions(site):
        # The source tree belongs to its developer, and its next build would undo the change.
        if _is_editable(site / distribution.folder):
            notes.append(
                f"{distribution.name} is installed editable: its source folder was skipped"
            )
        # Another environment may own the files.
        if (site / distribution.folder).is_symlink():
            notes.append(f"{distribution.folder} is a symbolic link: its files were skipped")
            continue
        bitcode = unused_bitcode(
            (row.normalized_path or "" for row in distribution.rows), request.selection
        )
        for row in distribution.rows:
            library_path = _library_path(
                site, row, notes, is_bitcode=row.normalized_path in bitcode
            )
            if library_path is not None:
                claim = RecordClaim(
                    distribution=distribution, row=row, path=row.normalized_path or ""
                )
                # Keyed by the library, because several rows may lead to it.
                claims.setdefault(library_path, []).append(claim)
    owned = [
        OwnedLibrary(library=library, claims=tuple(claims[library.name]), identity=identity)
        for library, identity in _plan_libraries(site, sorted(claims), request, notes, workers)
    ]
    return _select_libraries(site, owned, request, notes)


def _is_editable(folder: Path) -> bool:
    """Return True if the distribution is installed from a source tree (PEP 610)."""
    origin = folder / "direct_url.json"
    return origin.is_file() and b'"editable": true' in read_file(origin)


def _library_path(
    site: Path, row: InstalledFile, notes: list[str], *, is_bitcode: bool
) -> str | None:
    """Return the path of a file that can have device code and be replaced."""
    # A text: an environment has a hundred thousand rows.
    path = os.path.join(site, row.path)  # noqa: PTH118
    # First, because most rows are Python files: they need no remark.
    if not is_bitcode and not _can_have_code(path) and not _is_cubin_file(path, row):
        return None
    # `../../bin/tool`: scripts, or the data files of another prefix.
    if row.normalized_path is None:
        notes.append(f"{row.path} is outside of {site}, and was skipped")
        return None
    link = _symlinked_folder(site, row.normalized_path)
    if link is not None:
        notes.append(f"{row.normalized_path} is below the symbolic link {link}, and was skipped")
        return None
    return _resolve_link(site, row.normalized_path)


def _can_have_code(path: str) -> bool:
    try:
        # Not `is_file`, which since Python 3.14 takes an unreadable folder for no file.
        is_file = stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 (see above)
        return is_file and file_form(path) in SLIMMABLE_FORMS
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Once more, for the message.
        with input_errors(Path(path)):
            raise


def _is_cubin_file(path: str, row: InstalledFile) -> bool:
    # By its name in RECORD: another distribution's cubins have another loader.
    return cubin_folder(row.normalized_path or "") is not None and Path(path).is_file()


def _symlinked_folder(site: Path, path: str) -> str | None:
    """Return the folder of a path that is a symbolic link: its files may belong to others."""
    # The last parent is site-packages itself.
    folders = [str(folder) for folder in Path(path).parents][:-1]
    return next((folder for folder in reversed(folders) if (site / folder).is_symlink()), None)


def _resolve_link(site: Path, path: str) -> str:
    """Resolve a link within ``site``; a link that leads out is a file of its own."""
    # Wheels have no links, but other tools make them (conda, a distribution's packages).
    real = Path(os.path.realpath(site / path))
    return real.relative_to(site).as_posix() if real.is_relative_to(site) else path


def _plan_libraries(
    site: Path,
    paths: Iterable[str],
    request: SlimRequest,
    notes: list[str],
    workers: WorkerProcesses | None,
) -> Iterator[tuple[SlimmedLibrary, FileIdentity]]:
    def plan_or_error(path: str) -> _Planned:
        # First: a change during the plan shows, too.
        identity = _read_identity(site / path)
        try:
            return _Planned(identity, plan_member(path, site / path, request.file_edit))
        except BinaryFormatError as error:
            return _Planned(identity, error)

    paths = list(paths)
    plans = map_in_processes(
        plan_or_error,
        paths,
        lambda path: (site / path).stat().st_size,
        workers,
        Codec(encode=_encode, decode=lambda path, content: _decode(site / path, content)),
    )
    for path, (identity, plan) in zip(paths, plans, strict=True):
        # Because of one damaged library, the others need not stay large.
        if isinstance(plan, BinaryFormatError):
            notes.append(f"{path} is left unchanged: {plan}")
        elif plan.containers or plan.unregistered:
            yield SlimmedLibrary(name=path, path=site / path, plan=plan), identity


class _Planned(NamedTuple):
    identity: FileIdentity
    plan: FilePlan | BinaryFormatError


def _encode(planned: _Planned) -> bytes:
    identity, plan = planned
    head = _IDENTITY.pack(*identity)
    if isinstance(plan, BinaryFormatError):
        return head + _ERROR + pickle.dumps(plan)
    return head + encode_plan(plan)


def _decode(path: Path, content: memoryview) -> _Planned:
    identity, content = _IDENTITY.unpack_from(content), content[_IDENTITY.size :]
    if content[0] == _ERROR[0]:
        return _Planned(identity, pickle.loads(content[1:]))  # noqa: S301 - from `_encode`
    window = open_file(path)
    # The plan is of the file that the worker has opened.
    _check_identity(path, identity)
    return _Planned(identity, decode_plan(content, window))


def _select_libraries(
    site: Path, owned: list[OwnedLibrary], request: SlimRequest, notes: list[str]
) -> Installation:
    """Skip the distributions without any code for the choice, unless all are such."""
    # One check over all first: a GPU without any code is a mistake in the choice.
    check_code_stays(request.selection, _containers(owned), subject=str(site))
    groups: dict[str, list[OwnedLibrary]] = {}
    for each in owned:
        groups.setdefault(each.owner.name, []).append(each)
    # If only one of many distributions has no code for the GPU, the choice isn't wrong.
    selected: list[OwnedLibrary] = []
    for name, group in groups.items():
        # Code as files is in no container: all of it may be for other GPUs.
        has_files = any(each.library.plan.is_emptied for each in group)
        if not has_files and not has_code_for(request.selection, _containers(group)):
            notes.append(f"{name} is left unchanged: it registers no code for {request.choice}")
            continue
        for each in group:
            check_coverage_stays(
                request.selection, each.library.plan.containers, subject=each.library.name
            )
        selected += group
    notes += _sharing_notes(selected)
    return Installation(owned=tuple(selected), notes=tuple(dict.fromkeys(notes)))


def _containers(owned: Iterable[OwnedLibrary]) -> list[FilteredContainer]:
    return [one for each in owned for one in each.library.plan.containers]


def _sharing_notes(owned: Iterable[OwnedLibrary]) -> Iterator[str]:
    """Yield a note on files with other links: replacing them frees no space."""
    paths = [each.library.path for each in owned if each.library.plan.is_changed]
    # An installer may make hard or symbolic links to its cache in place of copies.
    count = sum(path.is_symlink() or path.lstat().st_nlink > 1 for path in paths)
    if count:
        shared = count_text(count, "library", "libraries")
        yield f"{shared} shared with a cache or other environments, which keep theirs"


def check_digests(owned: Iterable[OwnedLibrary], *, ignore_record: bool) -> dict[str, str]:
    """Return the SHA-256 of each library by its path, after comparing it with RECORD.

    Args:
        owned: the libraries.
        ignore_record: skip the comparison.

    Raises:
        WheelError: libraries don't match RECORD; the message lists all.
        InputError: a library can't be read.
    """
    digests: dict[str, str] = {}
    findings: list[str] = []
    owned = list(owned)
    hashed = map_on_cores(
        _hash_library,
        owned,
        weight=lambda one: len(one.library.plan.window),
        most=_MANY_THREADS,
    )
    for each, library_digests in zip(owned, hashed, strict=True):
        digests[each.library.name] = library_digests["sha256"].hex()
        if not ignore_record:
            findings += _record_findings(each, library_digests)
    if findings:
        raise WheelError(
            "\n".join(findings),
            hint="install the package again, or use --ignore-record",
        )
    return digests


def _hash_library(owned: OwnedLibrary) -> dict[str, bytes]:
    algorithms = {claim.row.hash_text.partition("=")[0] for claim in owned.claims}
    digest = owned.library.plan.digest
    if digest is not None and algorithms <= {"sha256"}:
        return {"sha256": bytes.fromhex(digest)}
    # The file is read once for all; the journal needs SHA-256 in any case.
    return _hash_file(owned.library.path, sorted((algorithms & ALGORITHMS.keys()) | {"sha256"}))


def _record_findings(owned: OwnedLibrary, digests: dict[str, bytes]) -> Iterator[str]:
    size = len(owned.library.plan.window)
    for claim in owned.claims:
        algorithm, _, text = claim.row.hash_text.partition("=")
        digest = base64.urlsafe_b64encode(digests.get(algorithm, b"")).decode().rstrip("=")
        # RECORD may lack the size, but a library without a digest can't be checked.
        if not text or text != digest or claim.row.size not in {"", str(size)}:
            record = claim.distribution.record
            yield f"{owned.library.name} doesn't match its hash in {record}"


def _hash_file(path: Path, algorithms: Iterable[str]) -> dict[str, bytes]:
    digests = {name: hashlib.new(name) for name in algorithms}
    with input_errors(path), path.open("rb") as file:
        for block in blocks(file):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.digest() for name, digest in digests.items()}
