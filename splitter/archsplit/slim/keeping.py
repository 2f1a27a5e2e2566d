"""Put a slimmed environment back as it was, or remove what that takes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.errors import UsageError, VerifyError
from archsplit.slim.journal import State
from archsplit.slim.site_packages import site_folder
from archsplit.slim.transaction import open_transaction
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.slim.journal import FileChange, SlimJournal
    from archsplit.slim.transaction import Transaction


def undo_site(path: Path, *, anyway: bool = False) -> tuple[str, ...]:
    """Put all files back that slimming replaced, as the very same ones.

    Distributions that were removed or installed anew since are left as they are.

    Args:
        path: the site-packages folder.
        anyway: put files back that somebody else has changed since, too.

    Returns:
        What was done, in sentences.

    Raises:
        VerifyError: somebody has changed a file since; nothing was put back.
        InputError: the folder can't be read.
        OutputError: a file can't be put back; calling it again goes on from there.
    """
    with open_transaction(site_folder(path)) as exchange:
        journal = exchange.journal()
        if journal is None:
            exchange.sweep()
            return (f"there is nothing to undo in {exchange.site}",)
        others = {
            each.distribution for each in journal.changes if _is_gone(exchange, journal, each)
        }
        mine = tuple(each for each in journal.changes if each.distribution not in others)
        strange = [each.path for each in mine if not _is_known(exchange, journal, each)]
        if strange and not anyway:
            raise VerifyError(
                f"these files of {exchange.site} were changed since: {', '.join(strange)}",
                hint="with --ignore-record they are replaced by what was there before slimming",
            )
        exchange.put_back(replace(journal, changes=mine))
    left = (f"{each} was changed since, and is left as it is" for each in sorted(others))
    return (f"{len(mine)} files are as they were before", *left)


def commit_site(path: Path) -> tuple[str, ...]:
    """Remove the files that slimming replaced, which frees their space.

    Returns:
        What was done, in sentences.

    Raises:
        UsageError: slimming or undoing it was interrupted.
        InputError: the folder can't be read.
        OutputError: the files can't be removed.
    """
    with open_transaction(site_folder(path)) as exchange:
        journal = exchange.journal()
        if journal is None:
            exchange.sweep()
            return (f"there is nothing to commit in {exchange.site}",)
        if journal.state is not State.SLIMMED:
            raise UsageError(
                f"{exchange.site} is neither slimmed nor as it was: a run was interrupted",
                hint="finish it with the same options, or run it with --undo",
            )
        removed = sum(_own_bytes(exchange.old / each.path) for each in journal.changes)
        taken = sum(_own_bytes(exchange.site / each.path) for each in journal.changes)
        exchange.forget()
    return (_freed(removed, taken),)


def _freed(removed: int, taken: int) -> str:
    """Compare with the time before slimming: the new files have taken space since."""
    old, new, final = removed / 1e6, taken / 1e6, "this can't be undone any more"
    if removed < taken:
        shared = "others share the old ones, as with a cache"
        return f"{new - old:.1f} MB more are used than before slimming: {shared}; {final}"
    return f"{old - new:.1f} MB are free: {old:.1f} MB of old files became {new:.1f} MB; {final}"


def _is_gone(exchange: Transaction, journal: SlimJournal, change: FileChange) -> bool:
    """Whether RECORD says that its distribution is another one now."""
    if change.path != f"{change.distribution}/RECORD":
        return False
    return not _is_known(exchange, journal, change)


def _is_known(exchange: Transaction, journal: SlimJournal, change: FileChange) -> bool:
    """Whether a file is what slimming left there, on its whole way."""
    found = _digest(exchange.site / change.path)
    if found is None and change.old is not None:
        # Where files can't be linked, one is missing between two moves.
        return journal.state is not State.SLIMMED and os.path.lexists(exchange.old / change.path)
    return found in {change.old, change.new}


def _digest(path: Path) -> str | None:
    return sha256(path) if path.is_file() else None


def _own_bytes(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    status = path.lstat()
    return status.st_size if status.st_nlink == 1 else 0
