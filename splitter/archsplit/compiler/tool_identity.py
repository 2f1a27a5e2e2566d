"""The identities of compilers and tools, as components of keys (ccache's compiler check).

A step's result depends on its program, on the programs and libraries that this one starts or
loads, and on the configuration that a host compiler reports. In: a command and its environment.
Out: digests of all of these.

Replies of compilers to questions about themselves are remembered from process to process, see
`archsplit.compiler.machine_facts`. A GNU compiler's reply to ``-###`` follows from its own bytes,
from the folders in which it looks for its parts and their ``specs``, from those parts, and from a
few variables. A reply is remembered with the stats of all these files, and used while each stat is
the same.

What else may reply is asked each time: a script may look at anything, and clang reads
configuration files in places of its own. So is a compiler that looks at the machine (``native``).

While that reply is the same, so are those to ``-print-prog-name`` and, with the same folders in the
same places, to ``-E -v``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.entry import KeyComponent
from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.machine_facts import PROGRAM_GROUP, ReplyCache
from archsplit.errors import ArchsplitError
from archsplit.nvcc.dryrun import is_host_compiler, option_values
from archsplit.nvcc.preprocessed_text import text_digest
from archsplit.nvcc.variables import query_environment
from archsplit.system.env import find_program
from archsplit.system.patterns import lazy_pattern
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.signals import restore_child_signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.compiler.machine_facts import Record
    from archsplit.system.process import Runner


_GNU = "COLLECT_GCC="
"""A line of the reply that only GNU compilers give."""
_NATIVE = "=native"
_SPECS = "specs"
_LIBRARY = "NVVMIR_LIBRARY_DIR"
_COMPILERS = ("cc1plus", "as")
_WITHOUT_PARTS = {"ptxas", "cudafe++", "fatbinary"}
_QUERY_ARGS = ("-pipe", "-c", "-x", "c++", "/dev/null", "-o", "/dev/null")
_UNUSED = lazy_pattern(
    r'^ignoring (?:nonexistent|duplicate) directory "(.*)"$|^\S+: \w+: (.*): not a directory$',
    re.MULTILINE,
)
_SEARCH = lazy_pattern(
    r'^#include "\.\.\." search starts here:\n(.*?)^End of search', re.DOTALL | re.MULTILINE
)
_INCLUDE_SEARCH = (
    *("-I", "-isystem", "-iquote", "-idirafter", "-isystem-after", "-B", "--sysroot", "-isysroot"),
    *("-iprefix", "-iwithprefix", "-iwithprefixbefore", "-imultilib"),
)
_SEARCH_FLAG = lazy_pattern(r"-nostdinc\S*|-mx?\d+|-stdlib=\S*|--(?:gcc-toolchain|include-\w+)\S*")
_PROGRAM_SEARCH = ("-B", "--sysroot")
_NATIVE_FLAG = lazy_pattern(r"-m\w+=native")
_DRYRUN_VARIABLE = lazy_pattern(r"^#\$ (?!PATH=|LD_LIBRARY_PATH=)\w+=.*$", re.MULTILINE)
_GNU_COMPILER = lazy_pattern(r"(?:.*-)?(?:gcc|g\+\+|c\+\+|cc)(?:-[\d.]+)?")
_EXECUTABLE = b"\x7fELF"
_FORWARDING = lazy_pattern(rb'#! ?/bin/sh\n(?:#[^\n]*\n|\n)*exec (/[\w./+-]+) "\$@"\s*')
"""A script that only starts another program, as packages put it on the PATH."""
_MOST_SCRIPT = 4096


def may_be_gnu(program: str, environment: Mapping[str, str]) -> bool:
    """Return True if a program may be a GNU compiler: an ELF executable."""
    return _is_executable(find_program(program, environment.get("PATH", "")) or "")


def compiler_files(
    query: str, environment: Mapping[str, str], reply: str, *, search: str, cwd: Path
) -> tuple[str, ...]:
    """Return the files that a GNU compiler's reply follows from; () for others.

    Args:
        search: the reply to ``-print-search-dirs``.
        cwd: where the compiler was asked.
    """
    # What another compiler looks at is not known, and the machine has no stat.
    if _GNU not in reply or _NATIVE in query:
        return ()
    searched = _candidates(shlex.split(query)[0], environment)
    return (*searched, *_search_files(reply, search, str(cwd)))


def _candidates(program: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the candidates of a program on the PATH, up to the existing one."""
    if "/" in program:
        yield program
        return
    found = find_program(program, environment.get("PATH", ""))
    for folder in environment.get("PATH", "").split(os.pathsep):
        place = os.path.join(folder, program)  # noqa: PTH118 - no pathlib in a hit
        yield place
        if place == found:
            return


def _search_files(reply: str, search: str, cwd: str) -> Iterable[str]:
    """Return the folders and files that a GNU compiler looks at before it replies."""
    folders: list[str] = []
    for line in search.splitlines():
        kind, _, names = line.partition(": ")
        listed = names.removeprefix("=").split(os.pathsep) if kind else []
        folders += [os.path.join(cwd, os.path.normpath(name)) for name in listed if name]  # noqa: PTH118
    # A file of that name, once it exists, changes what the driver does.
    specs = [os.path.join(folder, _SPECS) for folder in folders]  # noqa: PTH118
    parts = [word.strip('"') for word in reply.split() if word.strip('"').startswith("/")]
    return dict.fromkeys([*folders, *specs, *filter(os.path.isfile, parts)])


class ToolIdentities:
    """Identities of programs, each determined once in a process.

    Args:
        runner: starts programs.
        digests: of files.
        cwd: where compilers are asked.

    Attributes:
        cwd: where compilers are asked.
        replies: what compilers replied to earlier processes.
    """

    def __init__(self, *, runner: Runner, digests: FileDigests, cwd: Path) -> None:
        self.replies = ReplyCache(digests.folder, cwd=cwd)
        self._runner = runner
        self._digests = digests
        self.cwd = cwd
        self._replies: dict[tuple[str, ...], str] = {}
        self._lock = threading.Lock()

    def parts(
        self, argv: tuple[str, ...], environment: Mapping[str, str]
    ) -> tuple[KeyComponent, ...] | None:
        """Return the program, and the files it uses that no argument names; None if one is gone."""
        found = []
        for path in self.files(argv, environment):
            digest = None if path is None else self._digests.digest(str(path), group=PROGRAM_GROUP)
            # A key without one of its programs would be the key of another tool.
            if path is None or digest is None:
                return None
            found.append(KeyComponent(f"program {path.name}", digest))
        query = identity_query(argv)
        if query is not None:
            reply = self.reply_digest(query, environment)
            if reply is None:
                return None
            found.append(KeyComponent(f"reply to {query}", reply))
        return tuple(found)

    def files(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[Path | None]:
        """Yield the same as paths; None for what isn't there.

        As they were found, and not what links lead to: a link may be turned to another tool.
        """
        program = argv[0]
        yield self._find_program(program, environment)
        yield from map(Path, filter(os.path.isabs, _preloaded(environment)))
        name = Path(program).name
        # cicc links the device library into each result.
        if name == "cicc":
            yield from sorted(Path(environment.get(_LIBRARY, "/")).glob("*.bc"))
        elif name == "tileiras":
            yield from _tile_parts(self._find_program(program, environment))
        elif name == "nvlink":
            yield from _code_generators(argv)
        # A host compiler's driver starts the programs that make the result.
        elif name not in _WITHOUT_PARTS:
            search = tuple(_search_flags(argv, _PROGRAM_SEARCH))
            for part in (*_COMPILERS, *(["cc1"] if _language(argv) == "c" else [])):
                query = (program, *search, f"-print-prog-name={part}")
                reply = self._cached_query(argv, query, environment)
                yield self._find_program(reply.strip() or part, environment)

    def reply_digest(self, query: str, environment: Mapping[str, str]) -> str | None:
        """Return the digest of a compiler's reply to `identity_query`; None without a reply."""
        if (stored := self.replies.find(query, environment)) is not None:
            return stored.reply
        words, since = shlex.split(query), time.time_ns()
        reply = self._query((*words, *_QUERY_ARGS), environment)
        if not reply:
            return None
        # clang says where it is asked.
        digest = text_digest(reply.replace(str(self.cwd), "").encode())
        # Others may read files that no stat covers: their replies are asked each time.
        if may_be_gnu(words[0], environment):
            places = [words[0], *_search_flags(tuple(words), _PROGRAM_SEARCH), "-print-search-dirs"]
            search = self._query(tuple(places), environment)
            files = compiler_files(query, environment, reply, search=search, cwd=self.cwd)
            if files:
                self.replies.store(query, environment, digest, files=files, since=since)
        return digest

    def driver(self, nvcc: str, environment: Mapping[str, str]) -> tuple[KeyComponent, ...]:
        """Return the identity of nvcc: its bytes, its profile, and the target of a script."""
        target = script_target(nvcc)
        program = KeyComponent(
            "program nvcc", self._digests.digest(nvcc, group=PROGRAM_GROUP) or ""
        )
        if target is not None:
            # What such a script starts says all that there is to know.
            place = KeyComponent("path of nvcc", target)
            return (program, place, *self.driver(target, environment))
        # The profile has include folders and flags, and belongs to one nvcc.
        profile = self._digests.digest(profile_path(nvcc), group=PROGRAM_GROUP)
        reply = ""
        # A script may set anything: its dry run shows the variables that it leads to.
        if not _is_executable(nvcc):
            query = (nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null")
            reply = "\n".join(_DRYRUN_VARIABLE.findall(self._query(query, environment)))
        return (
            program,
            *([KeyComponent("program nvcc.profile", profile)] if profile is not None else []),
            *([KeyComponent("reply of nvcc", text_digest(reply.encode()))] if reply else []),
        )

    def includes(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
        """All folders that a host compiler looks for includes in, also those that aren't there.

        And those that are left out for being another one a second time, or a file: links may be
        turned to elsewhere.
        """
        words = (*_search_flags(argv, _INCLUDE_SEARCH), *filter(_SEARCH_FLAG.fullmatch, argv[1:]))
        query = (argv[0], *words, "-x", _language(argv), "-E", "-v", "/dev/null")
        return _listed_folders(self._cached_query(argv, query, environment))

    def _find_program(self, program: str, environment: Mapping[str, str]) -> Path | None:
        path = find_program(program, environment.get("PATH", ""))
        return None if path is None else Path(path).absolute()

    def _cached_query(
        self, argv: tuple[str, ...], query: tuple[str, ...], environment: Mapping[str, str]
    ) -> str:
        """Return the reply to a query, which an earlier process may have had."""
        identity, query_text = identity_query(argv), shlex.join(query)
        if identity is None or query in self._replies:
            return self._query(query, environment)
        if (stored := self.replies.find(query_text, environment)) is not None:
            return self._replies.setdefault(query, stored.reply)
        since = time.time_ns()
        reply = self._query(query, environment)
        # While the compiler is the same, so are its other replies.
        if reply and (stored := self.replies.find(identity, environment)) is not None:
            files, folders = stored.file_stats, _listed_folders(reply)
            self.replies.store(
                query_text, environment, reply, files=files, folders=folders, since=since
            )
        return reply

    def _query(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
        # Threads that plan several sources may begin the same query.
        with self._lock:
            if argv not in self._replies:
                query_env = query_environment(environment)
                done = self._runner.run(Command(argv=argv, cwd=self.cwd, env=query_env))
                self._replies[argv] = "" if done.returncode else done.stdout + done.stderr
            return self._replies[argv]


def driver_files(nvcc: str) -> tuple[str, ...] | None:
    """Return the files that `ToolIdentities.driver` looks at; None if it also asks a script."""
    target = script_target(nvcc)
    if target is not None:
        more = driver_files(target)
        return None if more is None else (nvcc, *more)
    return (nvcc, profile_path(nvcc)) if _is_executable(nvcc) else None


def profile_path(nvcc: str) -> str:
    """Return the path of the profile that an nvcc reads."""
    return str(Path(nvcc).with_name("nvcc.profile"))


def script_target(program: str) -> str | None:
    """Return where a script leads that does nothing but start another program."""
    try:
        with Path(program).open("rb") as file:
            text = file.read(_MOST_SCRIPT)
    except OSError:
        return None
    found = _FORWARDING.fullmatch(text) if len(text) < _MOST_SCRIPT else None
    target = None if found is None else os.path.realpath(os.fsdecode(found[1]))
    # Such scripts could lead to each other without end.
    return target if target is not None and _is_executable(target) else None


def is_gnu_compiler(program: str, environment: Mapping[str, str]) -> bool:
    """Return True if a host compiler is GCC, by the name of its executable."""
    found = find_program(program, environment.get("PATH", ""))
    real = os.path.realpath(found or program)
    return _GNU_COMPILER.fullmatch(Path(real).name) is not None and _is_executable(real)


def identity_query(argv: tuple[str, ...]) -> str | None:
    """Return the query for a host compiler's commands; None for other programs.

    That depends on more than its bytes: it may be a script; there are files of its own that say
    more, folders in which it looks for its parts, and ``native`` is what the machine is.
    """
    if not is_host_compiler(argv[0]):
        return None
    words = [word for word in argv[1:] if _NATIVE_FLAG.fullmatch(word)]
    return shlex.join([argv[0], "-###", *_search_flags(argv, _PROGRAM_SEARCH), *words])


def _listed_folders(reply: str) -> tuple[str, ...]:
    """Return the folders in a reply to ``-E -v``: those for includes, and those left out."""
    search = _SEARCH.search(reply)
    listed = [] if search is None else [*map(str.strip, search[1].splitlines())]
    there = [line for line in listed if not line.startswith("#include")]
    unused = ("".join(names) for names in _UNUSED.findall(reply) if there)
    return tuple(dict.fromkeys([*there, *unused]))


def _language(argv: tuple[str, ...]) -> str:
    return "c" if "c" in argv or any(word.endswith(".c") for word in argv[1:]) else "c++"


def _preloaded(environment: Mapping[str, str]) -> list[str]:
    """Return the libraries that the loader puts into every program."""
    words = " ".join(environment.get(name, "") for name in ("LD_PRELOAD", "LD_AUDIT"))
    return words.replace(":", " ").split()


def ask_compilers(record: Record, store: str, environment: Mapping[str, str]) -> None:
    """Ask compilers what a record has replies to; see `machine_facts.adapt_record`."""
    restore_child_signal()
    digests, cwd = FileDigests(Path(store) / "digests"), Path(record["machine"][1])
    tools = ToolIdentities(runner=SubprocessRunner(), digests=digests, cwd=cwd)
    with contextlib.suppress(ArchsplitError):
        for query in record["replies"][::2]:
            tools.reply_digest(query, environment)


def _is_executable(program: str) -> bool:
    try:
        with open(program, "rb", buffering=0) as file:  # noqa: PTH123 - no pathlib in a hit
            return file.read(len(_EXECUTABLE)) == _EXECUTABLE
    except OSError:
        return False


def _search_flags(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    words = iter(argv[1:])
    for word in words:
        if word in flags:
            yield from (word, next(words, ""))
        elif word.startswith(flags):
            yield word


def _code_generators(argv: tuple[str, ...]) -> Iterator[Path]:
    """Yield the libraries with which nvlink compiles intermediate code."""
    for folder in option_values(argv, ("-nvvmpath", "--nvvmpath")):
        yield from sorted(Path(folder).glob("lib*/lib*.so*"))
        yield from sorted(Path(folder).glob("libdevice/*.bc"))


def _tile_parts(program: Path | None) -> Iterator[Path]:
    """Yield the programs and libraries that tileiras starts or loads: it compiles to PTX itself."""
    if program is not None:
        root = program.resolve().parent.parent
        yield root / "bin" / "ptxas"
        yield from sorted([*root.glob("lib*/libnvvm.so*"), *root.glob("nvvm/lib*/libnvvm.so*")])
