"""nvcc's options as words, and the command lines that are nvcc's own.

Most calls of the compiler wrapper that aren't hits for the cache end here: nvcc prints something,
refuses, or links. Source: "NVCC Command Options" in NVIDIA's nvcc documentation. Long options may
begin with one dash or two; a value stands behind an equals sign or is the next word. This module
imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__pure__ = True

FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables whose flags nvcc adds to its command line."""
OPTIONS_FILES = {"optf", "options-file"}
KEEPING = {"keep", "save-temps"}
KEEP_FOLDER = "keep-dir"

_QUERIES = frozenset(
    {
        *("h", "help", "V", "version", "v", "verbose", "dryrun"),
        *("arch-ls", "list-gpu-arch", "code-ls", "list-gpu-code", "clean", "clean-targets"),
    }
)
"""Options by which nvcc prints something instead of compiling."""
_UNSUPPORTED = {
    "run": "it starts the program that it made",
    "time": "it writes a table of its own commands",
    "fdevice-time-trace": "it writes a trace of its own",
    "fdts": "it writes a trace of its own",
    "input-drive-prefix": "it rewrites paths",
    "dependency-drive-prefix": "it rewrites paths",
}
_BESIDE = {"objtemp", "objdir-as-tempdir"}
_COUNT_DIGITS = 9
_THREADS = {"threads", "t"}
_DROPPED = {*_BESIDE, *KEEPING, KEEP_FOLDER, "jobserver"}
"""Options about temporary files and jobs, which are the scheduler's part."""
_VALUED = (
    "D I L MF MT O U Werror arbin arch archiver-binary brief-diag brief-diagnostics ccbin code "
    "compiler-bindir compress-mode cudadevrt cudart ddp default-stream define-macro "
    "dependency-drive-prefix dependency-output dependency-target-name "
    "device-entity-has-hidden-visibility device-stack-protector diag-error diag-suppress diag-warn "
    "dopt dp drive-prefix e entries fdevice-time-trace fmad frandom-seed ftemplate-backtrace-limit "
    "ftemplate-depth ftz gencode generate-code gpu-architecture gpu-code idp include include-path "
    "input-drive-prefix isystem jtd jump-table-density l ldir libdevice-directory library "
    "library-path m machine maxrregcount o odir opt-info optimization-info optimize "
    "output-directory output-file pre-include prec-div prec-sqrt qpp-config rdc "
    "relocatable-device-code run-args sanitize split-compile split-compile-extended "
    "static-global-template-stub std system-include t target-dir target-directory threads time "
    "undefine-macro x"
)
_WITH_VALUE = {KEEP_FOLDER, *OPTIONS_FILES, *_VALUED.split()}
"""Options whose value may be the next word, also if that begins with a dash; CUDA 13.0's."""
_SOURCES = (".cu", ".c", ".cc", ".cxx", ".cpp", ".ptx", ".gpu", ".ii", ".i", ".cubin", ".fatbin")
"""Suffixes of files that nvcc compiles or converts; all others are left to the linker."""
_PREPROCESSING = {"E", "preprocess"}
_DEVICE_LINKING = {"dlink", "device-link"}
_LANGUAGE = {"x", "x-lang"}
_LINK_TIME = "lto"
"""A part of the options and targets that leave code generation to the link."""
_TOOL_PREFIX, _TOOL_SUFFIX = "X", "-options"
"""Of options for other tools; their value, the next word, may look like an option of nvcc."""


def split_options(argv: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the name, the value and the words of each option; "" as the name of other words."""
    words = iter(argv)
    for word in words:
        dashless = word.lstrip("-") if word.startswith("-") else ""
        name, equals, value = dashless.partition("=")
        parts: tuple[str, ...] = (word,)
        # An equals sign ends the option: the next word is another one.
        if not equals and _wants_value(name):
            following = next(words, None)
            if following is not None:
                value, parts = following, (word, following)
        yield name, value, parts


def lacks_value(argv: Sequence[str]) -> bool:
    """Return True if the last word is an option without its value."""
    return any(
        len(words) == 1 and "=" not in words[0] and _wants_value(name)
        for name, _, words in split_options(argv)
    )


def is_nvcc_query(argv: Sequence[str]) -> bool:
    """Return True if nvcc only prints something, so that there is nothing to plan."""
    return not argv or any(name in _QUERIES for name, _, _ in split_options(argv))


def unsupported_reason(argv: Sequence[str]) -> str | None:
    """Return the reason why only nvcc can run the command line, or None."""
    names = {name for name, _, _ in split_options(argv)}
    if "-" in argv:
        # The input can be read only once, and nvcc needs it for each pass.
        is_input = any(not name and words[0] == "-" for name, _, words in split_options(argv))
        return "it reads standard input" if is_input else "an option has the value -"
    if names & KEEPING and names & _BESIDE:
        return "it keeps intermediate files beside its output"
    return next((reason for name, reason in _UNSUPPORTED.items() if name in names), None)


def dryrun_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a dry run: all but those about intermediate files and jobs."""
    return tuple(
        word
        for name, value, words in split_options(argv)
        if name not in _DROPPED and not _is_thread_count(name, value)
        for word in words
    )


def source_names(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the files on the command line that nvcc would compile."""
    return tuple(
        words[0]
        for name, _, words in split_options(argv)
        if not name and words[0].endswith(_SOURCES)
    )


def has_options_files(argv: Sequence[str]) -> bool:
    """Return True if some options are in files."""
    return any(name in OPTIONS_FILES for name, _, _ in split_options(argv))


def compiles_nothing(argv: Sequence[str]) -> bool:
    """Return True if a plan is no gain: nvcc preprocesses to standard output, or only links.

    A device link is planned, since link-time optimization compiles.
    """
    names = {name for name, _, _ in split_options(argv)}
    if names & _PREPROCESSING:
        return True
    # A value in an unknown option may be a source, too.
    has_source = any(word.endswith(_SOURCES) or _LINK_TIME in word for word in argv)
    return not has_source and names.isdisjoint({*_DEVICE_LINKING, *_LANGUAGE, *OPTIONS_FILES})


def _is_thread_count(name: str, value: str) -> bool:
    # nvcc refuses what is no number, and its dry run has to see that.
    count = value if name in _THREADS else name.removeprefix("t")
    return name.startswith("t") and count.isdecimal() and len(count) <= _COUNT_DIGITS


def _wants_value(name: str) -> bool:
    return name in _WITH_VALUE or _is_for_tool(name)


def _is_for_tool(name: str) -> bool:
    tool = name.removeprefix(_TOOL_PREFIX)
    if tool == name:
        tool = name.removesuffix(_TOOL_SUFFIX)
    return tool not in {"", name} and tool.replace("_", "a").isalnum()
