"""Expected failures of archsplit: one class and exit code for each kind of problem.

A message has the fault, its place, and the value found against the value expected; the hint has the
next thing to do. Only the command line turns these exceptions into exit codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from archsplit.system.finding import Finding


# Exit codes are documented, and scripts depend on them: a number is never given to another kind of
# problem.
class ArchsplitError(Exception):
    """Base of all expected failures; never raised itself.

    Attributes:
        exit_code: exit status of the command.
        message: the text without the hint.
        hint: what to do next, or None if the message has it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(ArchsplitError):
    """An option or argument, or a combination of them, is invalid."""

    exit_code = 2


class RecipeError(ArchsplitError):
    """A recipe can't be read, or is invalid; the message lists every fault."""

    exit_code = 3


class ToolNotFoundError(ArchsplitError):
    """A required program (nvcc, the host compiler, objcopy, …) is missing."""

    exit_code = 4


class TargetError(ArchsplitError):
    """A capability or target can't be parsed, or the toolkit doesn't support it."""

    exit_code = 5


class StepError(ArchsplitError):
    """A compile or link step failed; the message has its command and its output."""

    exit_code = 6


class BinaryFormatError(ArchsplitError):
    """An ELF file, fatbin, cubin or note is truncated, damaged or of another format."""

    exit_code = 7


# Not the base's code: a damaged pack is mended by installing it again.
class DevicePackError(BinaryFormatError):
    """A device pack is truncated, damaged, or follows another major contract."""

    exit_code = 16


class WheelError(ArchsplitError):
    """A wheel can't be read, or breaks the wheel format's rules."""

    exit_code = 8


class VerifyError(ArchsplitError):
    """Wheels differ from their plan and pins; the message lists every finding."""

    exit_code = 9

    def __init__(
        self, message: str, *, findings: tuple[Finding, ...] = (), hint: str | None = None
    ) -> None:
        # Records too, so that no caller parses the text: CI systems group findings by their code.
        super().__init__("\n  ".join([message, *map(str, findings)]), hint=hint)
        self.findings = findings


class OutputError(ArchsplitError):
    """An output folder or a file in it can't be written."""

    exit_code = 10


class DiskFullError(OutputError):
    """No space was left for an output."""

    exit_code = 11


class TranscriptError(ArchsplitError):
    """``nvcc --dryrun`` printed a line that archsplit doesn't recognize."""

    exit_code = 12


class ToolFailedError(ArchsplitError):
    """A helper program (auditwheel, ziglang, …) failed, or its result is unusable."""

    exit_code = 13


class InputError(ArchsplitError):
    """An input file or folder is missing or can't be read."""

    exit_code = 14


class BudgetError(ArchsplitError):
    """Wheels would be bigger than their limit and were not written, or no targets fit."""

    exit_code = 15


class NothingToDoError(ArchsplitError):
    """No device code can be removed or moved; nothing was written."""

    exit_code = 17


class UndoError(ArchsplitError):
    """Files from before slimming are gone, so nothing can be restored."""

    exit_code = 18


class IndexUnreachableError(ArchsplitError):
    """A package index can't be reached, or failed until the time limit."""

    exit_code = 20


class IndexRefusedError(ArchsplitError):
    """A package index refuses a file, a name or the credentials, or will do so."""

    exit_code = 21


class ConflictError(ArchsplitError):
    """A package index has another file of the same name, or a yanked one."""

    exit_code = 22


# Not `IndexRefusedError`: the same command succeeds a day later.
class TryLaterError(ArchsplitError):
    """A daily limit of new project names on the index is used up; upload the rest later."""

    exit_code = 23


class EngineUnavailableError(ArchsplitError):
    """A build farm can't be reached, or has no worker that takes a step."""

    exit_code = 24


class EngineRefusedError(ArchsplitError):
    """A build farm refuses the build: credentials, missing features, or another toolkit."""

    exit_code = 25


class WorkerLostError(ArchsplitError):
    """A step was lost with its worker at each attempt."""

    exit_code = 26


class OutOfMemoryError(ArchsplitError):
    """Memory is used up, or limited too much for the command."""

    exit_code = 27


# 128 + 2 (SIGINT), as a shell reports it.
class InterruptedByUserError(ArchsplitError):
    """Ctrl-C or SIGTERM ended the command; incomplete outputs were removed."""

    exit_code = 130
