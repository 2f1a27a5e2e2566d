"""Every way in which archsplit can fail, by whose problem it is, one exit code each.

A message says what went wrong, where, and what was found against what was expected; the hint says
what to do next. Only the command line turns these into exit codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from archsplit.system.finding import Finding


class ArchsplitError(Exception):
    """Base of all expected failures; never raised itself.

    Attributes:
        exit_code: what the command exits with.
        message: without the hint.
        hint: what to do next, or None where the message already says it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(ArchsplitError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class RecipeError(ArchsplitError):
    """A recipe can't be read, or says something wrong; the message lists every fault."""

    exit_code = 3


class ToolNotFoundError(ArchsplitError):
    """A program that is needed (nvcc, the host compiler, objcopy, …) is not there."""

    exit_code = 4


class TargetError(ArchsplitError):
    """A capability or target can't be parsed, or the toolkit doesn't know it."""

    exit_code = 5


class StepError(ArchsplitError):
    """A compile or link step failed; the message has its command and its output."""

    exit_code = 6


class BinaryFormatError(ArchsplitError):
    """An ELF file, fatbin, cubin or note is truncated, damaged or not what it says it is."""

    exit_code = 7


class DevicePackError(BinaryFormatError):
    """A device pack is truncated, damaged, or follows another major contract."""

    exit_code = 16


class WheelError(ArchsplitError):
    """A wheel can't be read, or breaks the wheel format's rules."""

    exit_code = 8


class VerifyError(ArchsplitError):
    """Wheels are not what their plan and pins promise; the message lists every finding."""

    exit_code = 9

    def __init__(
        self, message: str, *, findings: tuple[Finding, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__("\n  ".join([message, *map(str, findings)]), hint=hint)
        self.findings = findings


class OutputError(ArchsplitError):
    """The output folder or a file in it can't be written."""

    exit_code = 10


class DiskFullError(OutputError):
    """There is no space left where a file was being written."""

    exit_code = 11


class TranscriptError(ArchsplitError):
    """``nvcc --dryrun`` printed something that archsplit doesn't know."""

    exit_code = 12


class ToolFailedError(ArchsplitError):
    """A helper program (auditwheel, zig, …) failed, or its result fails our own reading."""

    exit_code = 13


class InputError(ArchsplitError):
    """An input file or folder is missing or can't be read."""

    exit_code = 14


class BudgetError(ArchsplitError):
    """Wheels are bigger than a policy allows, and were not written; or no targets keep a budget."""

    exit_code = 15


class NothingToDoError(ArchsplitError):
    """There is no device code that can be taken out or moved; nothing was written."""

    exit_code = 17


class IndexUnreachableError(ArchsplitError):
    """The package index can't be reached, or went on failing for longer than was allowed."""

    exit_code = 20


class IndexRefusedError(ArchsplitError):
    """The package index refuses a file, a name or the credentials, or its rules would."""

    exit_code = 21


class ConflictError(ArchsplitError):
    """The package index has a file of the same name with other content, or has yanked it."""

    exit_code = 22


class TryLaterError(ArchsplitError):
    """The rest of a release has to wait: the index allows only so many new names a day."""

    exit_code = 23


class InterruptedByUserError(ArchsplitError):
    """Ctrl-C or SIGTERM; everything half-made has been removed."""

    exit_code = 130
