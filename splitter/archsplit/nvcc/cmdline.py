"""nvcc's command line, parsed once for the whole compiler wrapper.

In: nvcc's arguments. Out: a `CommandLine` with what archsplit must know of them: command lines that
only nvcc can carry out, the arguments of a dry run, and the options (``--keep``, ``-MD``,
``--threads``) that the program which runs the steps carries out itself. Source: "NVCC Command
Options" in NVIDIA's nvcc documentation. Long options may begin with one dash or two; a value stands
behind an equals sign or is the next word.

Most calls of the wrapper that aren't hits of the cache end with this module: nvcc prints something,
refuses, or links. So it imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__pure__ = True

FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables whose flags nvcc adds to its command line."""
OPTIONS_FILES = {"optf", "options-file"}
KEEP_FOLDER = "keep-dir"
OUTPUT_NAMES = ("o", "output-file")
TARGET_NAMES = ("MT", "dependency-target-name")

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
_KEEP_OPTIONS = {"keep", "save-temps"}
_KEEP_PLACE_OPTIONS = {"objtemp", "objdir-as-tempdir"}
_COUNT_DIGITS = 9
_THREAD_OPTIONS = {"threads", "t"}
_SCHEDULER_OPTIONS = {*_KEEP_PLACE_OPTIONS, *_KEEP_OPTIONS, KEEP_FOLDER, "jobserver"}
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
_OUTPUT_FOLDER = ("odir", "output-directory")
_PHONY_OPTIONS = {"MP", "generate-dependency-targets"}
_USER_HEADER_OPTIONS = {
    *("MM", "generate-nonsystem-dependencies"),
    *("MMD", "generate-nonsystem-dependencies-with-compile"),
}
_PREPROCESS_OPTIONS = {"E", "preprocess"}
_DEVICE_LINK_OPTIONS = {"dlink", "device-link"}
_LANGUAGE_OPTIONS = {"x", "x-lang"}
_LINK_TIME = "lto"
"""A part of the options and targets that leave code generation to the link."""
_TOOL_PREFIX, _TOOL_SUFFIX = "X", "-options"
"""Begin and end of options for other tools; their value, the next word, may look like an option."""


Option = tuple[str, str, tuple[str, ...]]
"""The name, the value and the words of an option; "" as the name of other words."""


class FallBackToNvccError(Exception):
    """Only nvcc itself can carry out the command line; the message is the reason, or "".

    Without a reason, nvcc prints its own error, or does what needs no word of archsplit's.
    """


class CommandLine:
    """A parsed command line of nvcc.

    Args:
        argv: nvcc's arguments.

    Attributes:
        argv: the arguments.
        options: all words; see `Option`.
        names: the names of the options.
    """

    __slots__ = ("argv", "names", "options")

    def __init__(self, argv: Iterable[str]) -> None:
        self.argv = tuple(argv)
        self.options = tuple(_split_options(self.argv))
        self.names = frozenset(name for name, _, _ in self.options)

    def value(self, names: Sequence[str]) -> str | None:
        """Return the value of an option by its names, or None; as for nvcc, the last one counts."""
        return next((value for name, value, _ in reversed(self.options) if name in names), None)

    def check_supported(self) -> None:
        """Refuse a command line that only nvcc can carry out.

        Raises:
            FallBackToNvccError: nvcc only prints something, so that there is nothing to plan, or
                there is an `unsupported_reason`.
        """
        if not self.argv or not self.names.isdisjoint(_QUERIES):
            raise FallBackToNvccError("")
        if reason := self.unsupported_reason:
            raise FallBackToNvccError(reason)

    @property
    def unsupported_reason(self) -> str | None:
        """Return the reason why only nvcc can carry out a compilation, or None."""
        if "-" in self.argv:
            # The input can be read only once, and nvcc needs it for each pass.
            is_input = any(not name and words[0] == "-" for name, _, words in self.options)
            return "it reads standard input" if is_input else "an option has the value -"
        if self.names & _KEEP_OPTIONS and self.names & _KEEP_PLACE_OPTIONS:
            return "it keeps intermediate files beside its output"
        return next((text for name, text in _UNSUPPORTED.items() if name in self.names), None)

    @property
    def dryrun_options(self) -> tuple[Option, ...]:
        """Return the options of a dry run: all but those about intermediate files and jobs."""
        return tuple(
            (name, value, words)
            for name, value, words in self.options
            if name not in _SCHEDULER_OPTIONS and _thread_count(name, value) is None
        )

    @property
    def dryrun_argv(self) -> tuple[str, ...]:
        """Return the words of `dryrun_options`."""
        return tuple(word for _, _, words in self.dryrun_options for word in words)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the files on the command line that nvcc would compile."""
        return tuple(
            words[0] for name, _, words in self.options if not name and words[0].endswith(_SOURCES)
        )

    @property
    def compiles_nothing(self) -> bool:
        """Return True if a plan gains nothing: nvcc preprocesses to stdout, or only links.

        A device link is planned, since link-time optimization compiles.
        """
        if self.names & _PREPROCESS_OPTIONS:
            return True
        # A value in an unknown option may be a source, too.
        has_source = any(word.endswith(_SOURCES) or _LINK_TIME in word for word in self.argv)
        return not has_source and self.names.isdisjoint(
            {*_DEVICE_LINK_OPTIONS, *_LANGUAGE_OPTIONS, *OPTIONS_FILES}
        )

    @property
    def has_options_files(self) -> bool:
        """Return True if some options are in files."""
        return not self.names.isdisjoint(OPTIONS_FILES)

    @property
    def is_threaded(self) -> bool:
        """Return True if nvcc would run its steps in threads."""
        last = {name: value for name, value, _ in self.options}
        return any(_thread_count(name, value) not in {None, 1} for name, value in last.items())

    @property
    def keep_folder(self) -> str | None:
        """Return the folder of kept intermediate files, as spelled, or None."""
        if self.names.isdisjoint(_KEEP_OPTIONS):
            return None
        return self.value((KEEP_FOLDER,)) or "."

    @property
    def kept_prefix(self) -> str:
        """Return the prefix of kept files' names in the texts that nvcc writes."""
        return "" if self.keep_folder in {None, "."} else f"{self.keep_folder}/"

    @property
    def output(self) -> str | None:
        """Return the value of ``-o``, or None."""
        return self.value(OUTPUT_NAMES)

    @property
    def output_folder(self) -> str | None:
        """Return the value of ``-odir``, or None."""
        return self.value(_OUTPUT_FOLDER)

    @property
    def rule_target(self) -> str | None:
        """Return the target of the rule for make by ``-MT``, or None."""
        return self.value(TARGET_NAMES)

    @property
    def has_phony_rules(self) -> bool:
        """Return True if each header gets a rule without commands (``-MP``)."""
        return not self.names.isdisjoint(_PHONY_OPTIONS)

    @property
    def omits_system_headers(self) -> bool:
        """Return True if rules for make have no system headers (``-MM``)."""
        return not self.names.isdisjoint(_USER_HEADER_OPTIONS)

    def with_variables(
        self, environment: Mapping[str, str]
    ) -> tuple[CommandLine, Mapping[str, str]]:
        """Move the flags of `FLAG_VARIABLES` from the environment into the command line.

        Nothing changes if a variable has quotes or backslashes.

        Returns:
            The command line, and the environment without the variables.
        """
        before, after = (environment.get(name, "") for name in FLAG_VARIABLES)
        # nvcc's rules for quotes are its own.
        if any(character in before + after for character in "\"\\'"):
            return self, environment
        others = {name: text for name, text in environment.items() if name not in FLAG_VARIABLES}
        return CommandLine((*before.split(), *self.argv, *after.split())), others

    def with_options_files(self, read: Callable[[str], str]) -> CommandLine:
        """Return the command line with the words of options files (``-optf``) in their places.

        Args:
            read: returns a file's text by its name.

        Raises:
            ValueError: a file has a quote without its end, or an option without its value.
        """
        return CommandLine(_expanded_words(self, read)) if self.has_options_files else self

    @property
    def lacks_value(self) -> bool:
        """Return True if the last word is an option without its value."""
        return any(
            len(words) == 1 and "=" not in words[0] and _wants_value(name)
            for name, _, words in self.options
        )


def _expanded_words(command: CommandLine, read: Callable[[str], str]) -> Iterator[str]:
    for option, value, words in command.options:
        if option not in OPTIONS_FILES:
            yield from words
            continue
        for name in value.split(","):
            inside = CommandLine(_split_file(read(name)))
            # nvcc wants the value of the last option in the same file.
            if inside.lacks_value:
                raise ValueError("an option without its value")
            yield from _expanded_words(inside, read)


def _split_file(text: str) -> Iterator[str]:
    """Split the text of an options file as nvcc does.

    Measured with CUDA 13.0: double quotes and backslashes quote, single quotes don't. A quote
    behind a backslash is removed, too, if no other backslash is left before it.
    """
    word, quoted = None, False
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            word = word or ""
            word += "" if following == '"' and not word.endswith("\\") else following
        elif character == '"':
            word, quoted = word or "", not quoted
        elif quoted or not character.isspace():
            word = (word or "") + character
        elif word is not None:
            yield word
            word = None
    if quoted:
        raise ValueError("a quote without its end")
    if word is not None:
        yield word


def _split_options(argv: Sequence[str]) -> Iterator[Option]:
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


def _thread_count(name: str, value: str) -> int | None:
    """Return the value of ``--threads``, or None; nvcc refuses what is not a number."""
    count = value if name in _THREAD_OPTIONS else name.removeprefix("t")
    is_count = name.startswith("t") and count.isdecimal() and len(count) <= _COUNT_DIGITS
    return int(count) if is_count else None


def _wants_value(name: str) -> bool:
    return name in _WITH_VALUE or _is_for_tool(name)


def _is_for_tool(name: str) -> bool:
    tool = name.removeprefix(_TOOL_PREFIX)
    if tool == name:
        tool = name.removesuffix(_TOOL_SUFFIX)
    return tool not in {"", name} and tool.replace("_", "a").isalnum()
