"""The results of whole command lines, found without asking nvcc or preprocessing anything."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.cache.entry import Entry
from splitter.nvcc.included import listed_files
from splitter.reuse.changes import explained
from splitter.reuse.includes import Reading, describe
from splitter.reuse.sight import Sight
from splitter.reuse.texts import entered, names_in, reads_more
from splitter.reuse.tools import GROUP, Tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from splitter.cache.cache import Cache
    from splitter.cache.manifest import Row
    from splitter.cache.parts import Part
    from splitter.reuse.requests import Request

_STEP = "request"
_RULE = "rule "
_ASSEMBLER = "as"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A compilation whose results are known.

    Attributes:
        outputs: what is to be written where.
        rules: for rules for make, the markers that say what was included.
        stdout: what would be printed.
        stderr: the warnings.
        tier: where they were found.
    """

    outputs: Mapping[Path, bytes]
    rules: Mapping[Path, bytes]
    stdout: str
    stderr: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A compilation that was carried out.

    Attributes:
        outputs: the files that it made.
        texts: preprocessed texts, all of them.
        listings: rules for make by which the host's compiler says what else it has read.
        rules: rules for make that were wanted, with the texts that each is made of.
        commands: each program with the arguments of one of its steps.
        environment: what the steps saw.
        private: the folder of intermediate files.
        began: nanoseconds since 1970.
    """

    outputs: tuple[Path, ...]
    texts: tuple[Path, ...]
    listings: tuple[Path, ...]
    rules: Mapping[Path, tuple[Path, ...]]
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    private: Path
    began: int
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float
    memory: int


class Compilations:
    """What is known of one request.

    Args:
        cache: where results are.
        request: what is asked of nvcc.
        search: what PATH says.
    """

    def __init__(self, cache: Cache, request: Request, *, search: str) -> None:
        self._cache = cache
        self._request = request
        self._search = search
        self._sight = self._looking(())
        self._rows: list[Row] = []

    def recall(self) -> Recalled | None:
        """Look for the results, by what the files are now."""
        key = self._request.key
        self._cache.digests.load(key)
        self._cache.digests.load(GROUP)
        for row in self._cache.rows(key):
            self._rows.append(row)
            found = self._cache.find(row.parts(key)) if self._sight.is_same(row) else None
            if found is not None:
                break
        else:
            return None
        self._cache.count(_STEP, "", found.tier, found.entry.cpu_seconds)
        return self._recalled(found.entry, found.tier)

    def explain(self) -> tuple[str, ...]:
        """Why nothing was found: what is different from the nearest earlier compilation."""
        return explained(self._cache, self._request, self._rows, self._sight)

    def remember(self, done: Done, tools: Tools) -> None:
        """Store the results, if they depend on nothing but what can be seen again."""
        self._cache.count(_STEP, "", None, done.cpu_seconds)
        texts = {path: path.read_bytes() for path in done.texts}
        if any(map(reads_more, texts.values())) or not texts:
            return
        self._cache.digests.forget_answers()
        reading = self._reading(done, texts, tools)
        includes = tools.includes(done.commands[0], done.environment)
        read = None if reading is None else describe(reading, self._looking(includes))
        if read is None:
            return
        key = self._request.key
        entry = self._entry(done, texts, read.row.parts(key))
        if self._cache.store(entry):
            self._cache.add_row(key, read.row)
            self._cache.notebook.add(self._request.subject, self._request.parts)
            for digest, text in read.texts.items():
                self._cache.store_content(digest, text)

    def _looking(self, includes: tuple[str, ...]) -> Sight:
        return Sight(
            cwd=self._request.cwd,
            search=self._search,
            includes=includes,
            digests=self._cache.digests,
            group=self._request.key,
        )

    def _recalled(self, entry: Entry, tier: str) -> Recalled:
        place = self._request.path
        return Recalled(
            outputs={
                place(role): content
                for role, content in entry.files.items()
                if not role.startswith(_RULE)
            },
            rules={
                place(role.removeprefix(_RULE)): content
                for role, content in entry.files.items()
                if role.startswith(_RULE)
            },
            stdout=entry.stdout,
            stderr=entry.stderr,
            tier=tier,
        )

    def _reading(self, done: Done, texts: Mapping[Path, bytes], tools: Tools) -> Reading | None:
        names = dict.fromkeys(name for text in texts.values() for name in names_in(entered(text)))
        for listing in done.listings:
            names |= dict.fromkeys(_listed(listing, done.private))
        files = [str(path) for root in _toolkits(done.commands) for path in _drivers(root)]
        programs = []
        for argv in {argv[0]: argv for argv in done.commands}.values():
            found = list(tools.files(argv[0], done.environment))
            if None in found:
                return None
            if "/" not in argv[0] and shutil.which(argv[0], path=self._search):
                programs.append(argv[0])
            files += map(str, found)
        if shutil.which(_ASSEMBLER, path=self._search):
            programs.append(_ASSEMBLER)
        return Reading(
            names=tuple(names),
            tools=tuple(dict.fromkeys(files)),
            programs=tuple(programs),
            foreign=("/usr/", *_toolkits(done.commands)),
            since=done.began,
            dated="SOURCE_DATE_EPOCH" in done.environment,
        )

    def _entry(self, done: Done, texts: Mapping[Path, bytes], parts: tuple[Part, ...]) -> Entry:
        role = self._request.role
        files = {role(path): path.read_bytes() for path in done.outputs}
        for path, sources in done.rules.items():
            files[_RULE + role(path)] = b"".join(entered(texts[source]) for source in sources)
        return Entry(
            parts=parts,
            files=files,
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=done.seconds,
            cpu_seconds=done.cpu_seconds,
            memory=done.memory,
        )


def _listed(listing: Path, private: Path) -> Iterator[str]:
    rule = listing.read_text(errors="surrogateescape")
    for name in listed_files(rule.partition(":")[2]):
        if not Path(name).is_relative_to(private):
            yield name


def _drivers(root: str) -> Iterator[Path]:
    """What a toolkit's nvcc itself is, and is told by."""
    for name in ("nvcc", "nvcc.profile"):
        path = Path(root) / "bin" / name
        if path.is_file():
            yield path


def _toolkits(commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """The toolkit's folder, which is where cicc lies in ``nvvm/bin``."""
    for argv in commands:
        if Path(argv[0]).name == "cicc":
            yield str(Path(argv[0]).resolve().parent.parent.parent)
            yield os.path.normpath(Path(argv[0]).parent.parent.parent)
