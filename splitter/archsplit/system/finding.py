"""A difference between a release and its description, as a record.

A module of its own: every command imports the errors, and dataclasses are 9 ms of the 50 that a hit
of the compiler wrapper may take.
"""

from __future__ import annotations

from dataclasses import dataclass

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference between a checked file or release and its specification.

    Attributes:
        code: ``wrong-requirement``; see `archsplit.release.findings`.
        subject: the file, distribution or program; "" for the only one that is checked.
        found: a sentence about the subject.
        expected: the expected value; "" if the sentence has it.
        hint: what to do next.
    """

    code: str
    subject: str
    found: str
    expected: str
    hint: str

    @property
    def text(self) -> str:
        """The finding without its hint."""
        expected = f", expected {self.expected}" if self.expected else ""
        return ": ".join(filter(None, (self.subject, f"{self.found}{expected}")))

    def __str__(self) -> str:
        # A hint on the last line of a program's output would be overlooked.
        separator = "\n    " if "\n" in self.found else "; "
        return f"{self.text}{separator}{self.hint}"
