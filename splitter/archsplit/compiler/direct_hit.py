"""Direct hits: hits of direct mode without parsing nvcc's command line, with few imports.

A full lookup (`archsplit.compiler.direct_cache`) parses nvcc's command line, looks for option files
and settings, and identifies nvcc, only to find the key of a request. All of that follows from the
invocation (arguments, folder, variables) and from a few files. So a direct record, found by the key
of the invocation, has each condition of the hit in a form that system calls can check, and the
outputs. Its sections, each a list:

    hit         keys of the request and the entry, the entry's digest, CPU seconds, stdout, stderr
    bases       the value of base-dir, and the folders that it stands for
    links       a path, and its real path              the toolkit around nvcc
    variables   a name, and its value                  what sources ask for
    programs    a name, and its path                   the search on the PATH
    compiler_files  a path, and its times          files that a compiler's reply depends on
    files       a path, its digest, and its times      sources, headers, tools, option files
    folders     a path                                 no new file may shadow one that was read
    names       a relative path                        such a file's, in one of the folders
    shadowing   a path                                 such files that existed before
    watched     a path, and its times                  the folders where such a file could appear
    outputs     a path, its place in the entry, or else its text

A second record, the shared one, has placeholders for the folders of ``base-dir``, and its key
depends neither on them nor on the machine. Another checkout, or the same folder on another machine,
finds it, compares all contents, and gets a local record. Another machine needs two more sections:

    machine     its name, and the working folder
    replies     a query, and the digest of the reply    in place of ``compiler_files``

In: an invocation. Out: the outputs, the tools' messages, a line in the statistics; or None, after
which the full lookup is done: a record is damaged, or a condition doesn't hold. A file with other
times and the same content is the same file. `archsplit.compiler.wrapper_cache` writes the records.

A hit may take 50 ms, and each import counts: see ``tests/compiler/test_direct_record.py``.
"""

from __future__ import annotations

import os
import time

from archsplit.cache.sealed_blob import DamagedError, seal, sealed_digest, sha256_digest, unseal
from archsplit.cache.usage import (
    MODE,
    append_counts,
    current_files,
    mark_used,
    reliable_stat,
    stat_text,
)
from archsplit.nvcc.variables import DEPENDENCY_VARIABLES, debug_folder, hashed_variables
from archsplit.system.env import cache_dir, config_dir, find_program
from archsplit.system.outputs import overwrite_file, read_stored_file, store_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


AUTO = "auto"
_CMAKE_CACHE = "CMakeCache.txt"
_CMAKE_SOURCE = "CMAKE_HOME_DIRECTORY:INTERNAL="


def find_base_dirs(setting: str, folders: tuple[str, ...]) -> list[str]:
    """Return the base folders, each with links and without; [] for none.

    Args:
        setting: the value of ``base-dir``.
        folders: the working folder, with links and without.
    """
    if not setting:
        return []
    found = [top for each in folders for top in _roots(each)] if setting == AUTO else [setting]
    real = map(os.path.realpath, found)
    # GCC takes what is before the first equals sign for the folder.
    return [path for path in dict.fromkeys([*found, *real]) if path != "/" and "=" not in path]


def _roots(folder: str) -> Iterator[str]:
    """Yield the top of the source tree, and of a build tree outside of it."""
    build = _find_above(folder, _CMAKE_CACHE)
    source = None if build is None else _cmake_source(build)
    top = _find_above(source or folder, ".git") or source
    if top is not None:
        yield top
    if build is not None and source is not None and not f"{build}/".startswith(f"{top}/"):
        yield build


def _find_above(folder: str, name: str) -> str | None:
    while not os.path.exists(f"{folder}/{name}"):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def _cmake_source(build: str) -> str | None:
    try:
        with open(f"{build}/{_CMAKE_CACHE}", errors="surrogateescape") as file:
            for line in file:
                if line.startswith(_CMAKE_SOURCE):
                    return os.path.normpath(line.removeprefix(_CMAKE_SOURCE).strip())
    except OSError:
        return None
    return None


RECORDS_FOLDER = "direct"
REQUEST_STEP = "request"
"""Whole compilations in the statistics: `archsplit.cache.stats.WHOLE_STEP`, without its import."""
SECTIONS = (
    *("hit", "machine", "bases", "links", "variables", "programs", "compiler_files", "replies"),
    *("files", "folders", "watched", "names", "shadowing", "outputs"),
)
"""The parts of a record, in their order; each is a list of texts."""
PRECOMPILED_SUFFIX = ".gch"
"""Suffix of precompiled headers, which are read in place of the header."""

_FORMAT = "archsplit direct record 6"
_SEPARATOR = "\0"
_WRAPPER_PREFIX = "ARCHSPLIT_"
_MODES = {"on", "read-only"}
_SEARCH_NAMES = ("PATH", "PWD", "CUDA_HOME", "CUDA_PATH", *DEPENDENCY_VARIABLES)
"""Variables by which programs and folders are found, or with which nothing is cached."""
_CONFIG_NAMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
"""Variables by which the store and the file of settings are found."""
_BASE_DIR = "ARCHSPLIT_CACHE_BASE_DIR"
_SETTINGS_FILE = "ARCHSPLIT_CACHE_CONFIG"
_BASE = "<base %d>"
_PAIR, _TRIPLE, _QUAD = 2, 3, 4


def invocation_keys(
    argv: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    nvcc: str,
    version: str,
    bases: Sequence[str] | None = None,
) -> tuple[str, str]:
    """Return the keys of an invocation's local record and of the shared one.

    The second is the key of the record for all machines and checkouts; "" for none.

    Args:
        argv: nvcc's arguments.
        cwd: where nvcc would run, absolute.
        environment: what nvcc would see, with the wrapper's own variables.
        nvcc: the real nvcc.
        version: archsplit's own.
        bases: see `record_bases`.
    """
    texts = [_FORMAT, version, nvcc, cwd, str(len(argv)), *argv]
    # Read-only mode has the same hits, so that the mode is not in the key.
    named = sorted(
        name
        for name in environment
        if name in _SEARCH_NAMES or (name.startswith(_WRAPPER_PREFIX) and name != MODE)
    )
    for name in (*named, *hashed_variables(environment, driver=True)):
        texts += (name, environment[name])
    config = [text for name in _CONFIG_NAMES for text in (name, environment.get(name, ""))]
    # File times and inode numbers belong to one machine.
    local = _texts_key([os.uname().nodename, *texts, *config])
    # A word with a placeholder of its own would be taken for another.
    if bases is None or any("<base " in text for text in texts):
        return local, ""
    mapped = (_with_placeholders(text, bases) for text in texts)
    return local, _texts_key([str(len(bases)), *mapped])


def _texts_key(texts: Iterable[str]) -> str:
    # No argument, path or variable has a NUL.
    return sha256_digest(_SEPARATOR.join(texts).encode(errors="surrogateescape")).hex()


def record_bases(cwd: str, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the folders of ``base-dir`` that a record for all checkouts doesn't name.

    Such records are written and found only if the settings are in variables; None for others.
    """
    setting = environment.get(_BASE_DIR, "")
    settings = os.path.join(config_dir(environment), "cache.toml")
    if _SETTINGS_FILE in environment or os.path.lexists(settings):
        return None
    return tuple(find_base_dirs(setting, (cwd, debug_folder(cwd, environment))))


def _with_placeholders(text: str, bases: Sequence[str]) -> str:
    """Return a text with placeholders for bases that are, or begin, a path."""
    for number, base in sorted(enumerate(bases, 1), key=lambda each: -len(each[1])):
        pieces = text.split(base)
        for at in range(1, len(pieces)):
            before, after = pieces[at - 1], pieces[at]
            # The base may be in the middle of another path.
            is_option = before.startswith("-") and "/" not in before
            begins = is_option or not (_is_in_name(before[-1:]) or before.endswith(("/", ">")))
            is_base = begins and not _is_in_name(after[:1])
            pieces[at] = (_BASE % number if is_base else base) + after
        text = "".join(pieces)
    return text


def _is_in_name(character: str) -> bool:
    return character.isalnum() or character in {"_", ".", "-"}


def restore_hit(
    key: str,
    environment: Mapping[str, str],
    *,
    shared_key: str = "",
    bases: Sequence[str] | None = None,
) -> tuple[str, str, str] | None:
    """Write the outputs of a hit; return None if a full lookup is needed.

    Args:
        key: see `invocation_keys`.
        shared_key: of the record for all machines and checkouts; "" for none.
        bases: see `record_bases`.
        environment: the invocation's.

    Returns:
        The tools' standard output and standard error, and a message of archsplit itself, or "".
    """
    mode = environment.get(MODE, "on")
    if mode not in _MODES:
        return None
    folder = cache_dir(environment)
    local, since = os.path.join(folder, RECORDS_FOLDER, key), time.time_ns()
    path, record = find_record(folder, key, environment, shared_key=shared_key, bases=bases or ())
    if record is None:
        return None
    # The times of folders in another checkout or on another machine say nothing about these.
    is_adapted = path != local and record["machine"][0] != os.uname().nodename
    is_foreign = is_adapted or (path != local and bool(bases))
    # Files first: the source is what changes most.
    digests = record["files"] if is_adapted else current_files(record["files"])
    if digests is None or not _is_current(record, environment, is_foreign=is_foreign):
        return None
    request, entry, digest, cpu_seconds, stdout, stderr, note = record["hit"]
    content = _entry_content(_store_path(folder, entry), digest)
    if content is None or not _write_outputs(record["outputs"], content):
        return None
    if mode == "on":
        append_counts(folder, f'[["{REQUEST_STEP}", "", "local", 1, {cpu_seconds}]]')
        # Eviction must not remove a manifest before its entry: a full lookup needs both.
        for used in (path, _store_path(folder, entry), _store_path(folder, request)):
            mark_used(used)
        if is_foreign:
            record["watched"] = watched_texts(record["folders"], record["names"], since=since)
        # The next hit needn't read these files again.
        if digests != record["files"] or is_foreign:
            write_record(local if is_foreign else path, {**record, "files": digests})
    return stdout, stderr, note


def find_record(
    folder: str,
    key: str,
    environment: Mapping[str, str],
    *,
    shared_key: str = "",
    bases: Sequence[str] = (),
) -> tuple[str, dict[str, list[str]] | None]:
    """Return path and sections of the local record, or else of the shared one.

    Args:
        folder: of the store.
        key: see `restore_hit`.
        environment: see `restore_hit`.
        shared_key: see `restore_hit`.
        bases: see `restore_hit`.
    """
    path = os.path.join(folder, RECORDS_FOLDER, key)
    record = read_record(path)
    if record is None and shared_key:
        path = os.path.join(folder, RECORDS_FOLDER, shared_key)
        record = read_record(path, bases)
        if record is not None and record["machine"][0] != os.uname().nodename:
            from archsplit.compiler.machine_facts import adapt_record  # 10 ms of a hit

            record = adapt_record(record, folder, environment, bases=bases, ask=_ask)
    return path, record


def _ask(record: Mapping[str, list[str]], store: str, environment: Mapping[str, str]) -> None:
    from archsplit.compiler.tool_identity import ask_compilers  # one process of a machine asks

    ask_compilers(record, store, environment)


def read_record(path: str, bases: Sequence[str] = ()) -> dict[str, list[str]] | None:
    """Return the sections of a record; None if it is missing or damaged.

    Args:
        bases: the folders that placeholders stand for.
    """
    try:
        content = unseal(read_stored_file(path)[0])
    except (OSError, DamagedError):
        return None
    text = content.decode(errors="surrogateescape")
    for number, base in enumerate(bases, 1):
        text = text.replace(_BASE % number, base)
    texts = text.split(_SEPARATOR)
    # The checksum matches, so a record of this format has all sections.
    if texts[:2] != [_FORMAT, os.path.basename(path)]:
        return None
    sections, at = {}, 2
    for name in SECTIONS:
        size = int(texts[at])
        sections[name] = texts[at + 1 : at + 1 + size]
        at += 1 + size
    return sections


def write_record(
    path: str, sections: Mapping[str, Sequence[str]], bases: Sequence[str] = ()
) -> None:
    """Write a record; after a failed write, the next call does a full lookup.

    Args:
        bases: folders that get placeholders; a record with another mention of one isn't written.
    """
    texts = [_FORMAT, os.path.basename(path)]
    for name in SECTIONS:
        texts += (str(len(sections[name])), *sections[name])
    mapped = [_with_placeholders(text, bases) for text in texts] if bases else texts
    content = _SEPARATOR.join(mapped)
    # A tool may print a NUL. Such a result has only the full lookup.
    if content.count(_SEPARATOR) != len(texts) - 1:
        return
    # A base that is left must be the beginning of a longer name, as /src of /src2.
    tails = (tail for base in bases for tail in content.split(base)[1:])
    if (bases and any("<base " in text for text in texts)) or not all(
        _is_in_name(tail[:1]) for tail in tails
    ):
        return
    try:
        store_file(path, seal(content.encode(errors="surrogateescape")))
    except OSError:
        return


def shadow_changes(
    folders: Iterable[str], names: Iterable[str], read: Iterable[str], shadowing: Iterable[str]
) -> set[str]:
    """Return the files that now shadow others, and those that no longer do.

    A file that was read shadows nothing: its digest is compared.

    Args:
        folders: absolute paths of the folders that were searched.
        names: possible names of files in them, relative to the folders, or absolute.
        read: absolute paths of the files that were read.
        shadowing: absolute paths of the files that could shadow others before.
    """
    before = {*shadowing}
    found = {*shadow_candidates(folders, names), *before}.difference(read)
    return {path for path in found if is_readable_header(path) is not (path in before)}


def shadow_candidates(folders: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """Yield paths, existing and missing, that may be read in place of other files.

    Args:
        folders: see `shadow_changes`.
        names: see `shadow_changes`.
    """
    by_first: dict[str, list[str]] = {}
    for name in names:
        # `__has_include` may name a file by its absolute path.
        if name.startswith("/"):
            yield name
        else:
            by_first.setdefault(name.partition("/")[0], []).append(name)
    for folder in folders:
        try:
            listed = {os.curdir, os.pardir, *os.listdir(folder)}
        except OSError:
            continue
        # One listing for all names: a stat for each would be thousands.
        start = os.path.join(folder, "")
        for first in by_first.keys() & listed:
            yield from (start + name for name in by_first[first])
        for name in listed:
            if name.endswith(PRECOMPILED_SUFFIX):
                yield start + name


def is_readable_header(path: str) -> bool:
    """Return True if a path can be included: a file, or a folder of precompiled headers."""
    exists = os.path.exists if path.endswith(PRECOMPILED_SUFFIX) else os.path.isfile
    return exists(path)


def _groups(texts: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(iter(texts),) * size, strict=True)


def _is_current(
    record: Mapping[str, list[str]], environment: Mapping[str, str], *, is_foreign: bool
) -> bool:
    search = environment.get("PATH", "")
    return (
        all(os.path.realpath(path) == target for path, target in _groups(record["links"], _PAIR))
        and all(
            environment.get(name) == value for name, value in _groups(record["variables"], _PAIR)
        )
        and all(
            find_program(name, search) == path for name, path in _groups(record["programs"], _PAIR)
        )
        and all(stat_text(path) == was for path, was in _groups(record["compiler_files"], _PAIR))
        and _has_same_bases(record["bases"])
        and not _is_shadowed(record, is_foreign=is_foreign)
    )


def _has_same_bases(bases: Sequence[str]) -> bool:
    if not bases:
        return True
    setting, cwd, logical, *found = bases
    return find_base_dirs(setting, (cwd, logical)) == found


def _is_shadowed(record: Mapping[str, list[str]], *, is_foreign: bool) -> bool:
    """Return True if a new file may shadow another, or a shadowing one is gone.

    Args:
        is_foreign: the record is another checkout's or machine's: list all folders.
    """
    # A folder with the same times has the same names: no listing, and no stat for each.
    watched = _groups(record["watched"], _PAIR)
    # No stat: the folder was too new to trust, and may have changed since.
    changed = [path for path, file_stat in watched if not file_stat or stat_text(path) != file_stat]
    folders, shadowing = record["folders"], record["shadowing"]
    # Most often only the folder of the output has changed.
    if not is_foreign and {*folders}.issuperset(changed):
        starts = tuple(os.path.join(folder, "") for folder in changed)
        folders, shadowing = changed, [path for path in shadowing if path.startswith(starts)]
    return bool(shadow_changes(folders, record["names"], record["files"][::_TRIPLE], shadowing))


def watched_texts(folders: Sequence[str], names: Sequence[str], *, since: int) -> list[str]:
    """Return `watched_paths` as a section of a record."""
    watched = watched_paths(folders, shadow_candidates(folders, names), since=since)
    return [text for pair in watched.items() for text in pair]


def watched_paths(
    folders: Iterable[str], candidates: Iterable[str], *, since: int
) -> dict[str, str]:
    """Return the stats of paths that change if another file can shadow others.

    Args:
        folders: folders that were searched.
        candidates: see `shadow_candidates`.
        since: nanoseconds since 1970; the search began then, or later.
    """
    watched = {folder: reliable_stat(folder, since=since) for folder in folders}
    links: dict[str, set[str]] = {}
    for path in candidates:
        folder, _, name = path.rpartition("/")
        if folder not in links:
            above, links[folder] = folder or "/", set()
            # One listing for all candidates: there are thousands, in some hundred folders.
            try:
                links[folder] = {entry.name for entry in os.scandir(above) if entry.is_symlink()}
            except PermissionError:
                # Without its names, it is looked at each time.
                watched[above] = ""
            except OSError:
                while above not in watched and not os.path.lexists(above):
                    above = os.path.dirname(above)
            if above not in watched:
                watched[above] = reliable_stat(above, since=since)
        # The target of a link may change without the link's folder.
        if name in links[folder]:
            watched[path] = stat_text(path)
    return watched


def _entry_content(path: str, digest: str) -> bytes | None:
    """Return the content of an entry; None if it isn't the recorded one any more."""
    try:
        blob, _ = read_stored_file(path)
        return unseal(blob) if sealed_digest(blob) == digest else None
    except (OSError, DamagedError):
        return None


def _write_outputs(places: Sequence[str], content: bytes) -> bool:
    view = memoryview(content)
    try:
        for path, start, end, text in _groups(places, _QUAD):
            # Depfiles name the output, so that their text is in the record, not in the entry.
            made = view[int(start) : int(end)] if end else text.encode(errors="surrogateescape")
            overwrite_file(path, made)
    except OSError:
        # nvcc runs next, and reports the error.
        return False
    return True


def _store_path(folder: str, key: str) -> str:
    # As `RESULTS_FOLDER` of `archsplit.cache.local`: "ac" is the action cache of remote caches.
    return os.path.join(folder, "ac", key[:2], key)
