"""Direct mode without reading nvcc's command line: the way to a hit that imports little.

The whole way to a hit reads nvcc's command line, looks for option files and settings, and asks what
nvcc is, only to find the key of a request. All of that follows from the invocation (arguments,
folder, variables) and from a few files. So a record, by the key of the invocation, keeps what was
found: the request's row of the manifest, the key of the entry, and where each file belongs.

In: an invocation. Out: the files, what the tools said, a line in the statistics; or None, and the
whole way is taken. The row is checked by the same `FileResolver` as there, and the entry is read
from the
same store. Anything else than a plain hit (damage, a remote store, settings, doubt) is no hit here.

A hit may take 50 ms, and each import is counted: see ``tests/compiler/test_direct_record.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit import __version__
from archsplit.cache.entry import DamagedError, decode_entry, seal, unseal
from archsplit.cache.file_digests import FileDigests
from archsplit.cache.keys import KeyComponent, compute_key
from archsplit.cache.local import LocalStore, StoreKind, mark_used
from archsplit.cache.manifest import ManifestEntry, parse_manifest_entry
from archsplit.cache.stats import LOCAL_TIER, CacheStats
from archsplit.compiler.environment_key import hashed_environment
from archsplit.compiler.file_resolver import PROGRAM_GROUP, FileResolver
from archsplit.compiler.reply_cache import ReplyCache
from archsplit.system.fs import cache_folder, overwrite_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.cache.entry import CacheEntry

RECORDS_FOLDER = "direct"
REQUEST_STEP = "request"
_OURS = "ARCHSPLIT_"
_MODE = "ARCHSPLIT_CACHE"
_OPTION_FILES = ("optf", "options-file", "@")
_FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_PLACES = (
    *("PATH", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CUDA_HOME", "CUDA_PATH"),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
)
"""Variables by which programs and settings are found, or by which nothing is cached."""


class DirectRequest(NamedTuple):
    """A call of the compiler wrapper.

    Attributes:
        argv: nvcc's arguments.
        cwd: where nvcc would run, absolute.
        environment: what nvcc would see, with the wrapper's own variables.
        nvcc: the real nvcc.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    nvcc: str

    @property
    def has_options_files(self) -> bool:
        """Return True if some arguments may be in files, whose contents aren't in the key."""
        added = [self.environment.get(name, "") for name in _FLAG_VARIABLES]
        return any(word.lstrip("-").startswith(_OPTION_FILES) for word in self.argv) or any(
            name in text for text in added for name in _OPTION_FILES
        )

    @property
    def key(self) -> str:
        """The key of the invocation's record."""
        names = sorted(self.environment)
        named = [name for name in names if name in _PLACES or name.startswith(_OURS)]
        return compute_key(
            (
                KeyComponent("archsplit", __version__),
                KeyComponent("nvcc", self.nvcc),
                KeyComponent("folder", self.cwd),
                *(KeyComponent("argument", word) for word in self.argv),
                *(KeyComponent(f"variable {name}", self.environment[name]) for name in named),
                *hashed_environment(self.environment, driver=True),
            )
        )


class OutputPlace(NamedTuple):
    """A file that a hit writes.

    Attributes:
        path: absolute.
        role: its name in the entry; "" where ``text`` is its content.
        text: a rule for make.
    """

    path: str
    role: str
    text: str = ""


class DirectRecord(NamedTuple):
    """A hit, in a form that can be checked and repeated.

    Attributes:
        request: the key of the request.
        entry: the key of the entry.
        row: the files that the entry was made from.
        links: paths that lead to tools, each with where it leads.
        observed: files that the request follows from, with their digests; "" for none there.
        places: the files that are written.
    """

    request: str
    entry: str
    row: ManifestEntry
    links: tuple[tuple[str, str], ...]
    observed: tuple[tuple[str, str], ...]
    places: tuple[OutputPlace, ...]


class RestoredOutput(NamedTuple):
    """Texts that the tools said."""

    stdout: str
    stderr: str


def restore_hit(asked: DirectRequest, *, counted: bool = True) -> RestoredOutput | None:
    """Write what a known compilation made; None where the whole way must be taken.

    Args:
        counted: whether the statistics count a hit.
    """
    if asked.environment.get(_MODE, "on") != "on" or asked.has_options_files:
        return None
    folder = cache_folder(asked.environment)
    record = read_record(folder, asked.key)
    if record is None:
        return None
    digests = FileDigests(folder / "digests")
    digests.load(record.request)
    digests.load(PROGRAM_GROUP)
    entry = _checked(record, asked, digests, folder)
    if entry is None or not _write(record, entry):
        return None
    if counted:
        tally = CacheStats()
        tally.add(REQUEST_STEP, "", LOCAL_TIER, entry.cpu_seconds)
        tally.save(folder)
    digests.save()
    return RestoredOutput(entry.stdout, entry.stderr)


def save_record(folder: Path, key: str, record: DirectRecord) -> None:
    """Keep a record; where that can't be done, the next call takes the whole way."""
    described = {**record._asdict(), "row": record.row._asdict()}
    path = folder / RECORDS_FOLDER / key
    temporary = path.with_name(f".{key}.{os.urandom(6).hex()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(seal(json.dumps([key, described]).encode()))
        temporary.replace(path)


def read_record(folder: Path, key: str) -> DirectRecord | None:
    """Return a record that was saved; None where there is none that can be read."""
    path = folder / RECORDS_FOLDER / key
    try:
        asked, fields = json.loads(unseal(path.read_bytes()))
        record = DirectRecord(
            request=str(fields["request"]),
            entry=str(fields["entry"]),
            row=parse_manifest_entry(fields["row"]),
            links=tuple((str(path), str(end)) for path, end in fields["links"]),
            observed=tuple((str(path), str(digest)) for path, digest in fields["observed"]),
            places=tuple(OutputPlace(*map(str, place)) for place in fields["places"]),
        )
    except (OSError, DamagedError, ValueError, TypeError, KeyError, AttributeError):
        return None
    mark_used(path)
    return record if asked == key else None


def _checked(
    record: DirectRecord, asked: DirectRequest, digests: FileDigests, folder: Path
) -> CacheEntry | None:
    """Return the entry, if all that the record follows from is the same."""
    resolver = FileResolver(
        cwd=asked.cwd,
        environment=asked.environment,
        digests=digests,
        group=record.request,
        tools=ReplyCache(digests.folder, cwd=asked.cwd),
    )
    if any(os.path.realpath(path) != end for path, end in record.links):
        return None
    if any(
        (digests.digest(path, group=PROGRAM_GROUP) or "") != digest
        for path, digest in record.observed
    ):
        return None
    if not resolver.is_current(record.row):
        return None
    store = LocalStore(folder, warn=_ignore)
    blob = store.get(StoreKind.ACTION, record.entry)
    try:
        entry = None if blob is None else decode_entry(blob)
    except DamagedError:
        return None
    if entry is None or compute_key(entry.components) != record.entry:
        return None
    # Who takes the whole way needs the manifest as long as the entry is of use.
    mark_used(store.path(StoreKind.ACTION, record.request))
    return entry


def _write(record: DirectRecord, entry: CacheEntry) -> bool:
    contents = [(entry.files.get(place.role), place) for place in record.places]
    try:
        for content, place in contents:
            if place.role and content is None:
                return False
            text = place.text.encode(errors="surrogateescape")
            overwrite_file(Path(place.path), text if content is None else content)
    except OSError:
        # nvcc says it best.
        return False
    return True


def _ignore(text: str) -> None:
    """Leave what is wrong with the store to the whole way, which says it."""
