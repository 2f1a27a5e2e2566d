"""Slim an installed environment in place; undo that; or commit it.

In: a site-packages folder. The new libraries are written and checked in a staging folder; a
`Transaction` then puts them in place, and keeps the old ones until `undo_site` or `commit_site`.
A killed run leaves a journal, from which the same command goes on.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.file_forms import Form
from archsplit.errors import InputError, TargetError, UndoError, UsageError, VerifyError
from archsplit.release.trial import trial_results
from archsplit.slim.installed import check_digests, plan_installation
from archsplit.slim.report import (
    SLIM_NOTE_FILE,
    SlimReport,
    earlier_slim_hint,
    plan_report,
    slimmed_in_place,
)
from archsplit.slim.transaction import (
    SlimJournal,
    StagingFolder,
    TransactionState,
    open_transaction,
)
from archsplit.slim.wheel import prepare_trial
from archsplit.system.fs import input_errors, read_file, sha256, temporary_dir
from archsplit.system.installers import refuse_environment
from archsplit.system.parallel import map_on_cores
from archsplit.system.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.slim.installed import Installation, OwnedLibrary
    from archsplit.slim.request import SlimRequest
    from archsplit.slim.transaction import FileChange, Transaction

_STAT_BLOCK = 512
_MOST_TRIALS = 8
"""Processes that load a library at a time; each one may need some 100 MB."""


def slim_site(request: SlimRequest, effects: Effects) -> SlimReport:
    """Replace the libraries of a site-packages folder by smaller ones, or change nothing.

    The old libraries are kept until `commit_site`. A run that was killed while it replaced files
    is resumed.

    Raises:
        InputError: the folder or a file in it can't be read.
        UsageError: the folder is slimmed already, and neither undone nor committed.
        WheelError: a RECORD is damaged, or a library doesn't match RECORD.
        TargetError: a GPU of the choice would be left without code.
        VerifyError: a new file fails its checks; nothing was changed.
        OutputError: a file can't be written; old files are back, or --undo restores them.
    """
    site = site_folder(request.source)
    try:
        return _slim_site(site, request, effects)
    except TargetError as error:
        # The environment may have wheels that were slimmed before they were installed.
        records = sorted(site.glob(f"*.dist-info/{SLIM_NOTE_FILE}"))
        error.hint = earlier_slim_hint(map(read_file, records)) or error.hint
        raise


def _slim_site(site: Path, request: SlimRequest, effects: Effects) -> SlimReport:
    if request.dry_run:
        installation = plan_installation(site, request, effects.workers)
        check_digests(_changed_libraries(installation), ignore_record=request.ignore_record)
        return _report(request, installation)
    with open_transaction(site) as transaction:
        journal = transaction.read_journal()
        if journal is not None:
            # Something was begun, and perhaps not finished: only the journal tells.
            return _resume(transaction, journal, request)
        _check_store(transaction)
        return _slim_libraries(transaction, request, effects)


def _check_store(transaction: Transaction) -> None:
    # Each step of slim, undo and commit keeps the journal longer than the old files.
    if transaction.has_old_files():
        raise UndoError(
            f"{transaction.journal_file} is gone, and {transaction.old} has the files from before"
            " slimming",
            hint=f"restore the journal from a backup, or copy what you need and remove"
            f" {transaction.folder}",
        )


def site_folder(path: Path) -> Path:
    """Return the path of a site-packages folder, with links resolved.

    Raises:
        InputError: the path is not a folder.
    """
    with input_errors(path):
        if not path.is_dir():
            raise InputError(f"{path} is not a folder", hint="name a site-packages folder")
        refuse_environment(path)
        # The lock and the journal belong to the folder, whatever link leads to it.
        return path.resolve()


def _slim_libraries(transaction: Transaction, request: SlimRequest, effects: Effects) -> SlimReport:
    installation = plan_installation(transaction.site, request, effects.workers)
    changed = _changed_libraries(installation)
    digests = check_digests(changed, ignore_record=request.ignore_record)
    if not changed:
        return _report(request, installation)
    stage = StagingFolder(
        site=transaction.site, root=transaction.new, request=request, digests=digests
    )
    # Without a journal no file was replaced yet: new files of a killed run are worthless.
    transaction.make_folder()
    try:
        changes = stage.prepare(changed, effects.workers)
        checks = _load_staged(changed, stage, effects) if request.tries_loading else ()
        # An installer may have replaced one meanwhile: the journal has the digests of the others.
        for each in changed:
            each.check_unchanged()
    except BaseException:
        # Ctrl-C too: nothing was replaced yet, so nothing needs the folder.
        transaction.remove_folder()
        raise
    transaction.apply(
        SlimJournal(state=TransactionState.SWITCHING, choice=request.choice, changes=changes)
    )
    return _report(request, installation, is_done=True, checks=checks)


def _resume(transaction: Transaction, journal: SlimJournal, request: SlimRequest) -> SlimReport:
    """Finish a slimming that was killed while it replaced files."""
    hint = "use --undo, or --commit to remove the old files"
    if journal.state is TransactionState.SLIMMED:
        raise UsageError(f"{transaction.site} is slimmed already: {journal.choice}", hint=hint)
    if journal.state is TransactionState.UNDOING:
        raise UsageError(
            f"an undo of {transaction.site} was interrupted", hint="finish it with --undo"
        )
    if journal.state is TransactionState.COMMITTING:
        raise _interrupted_commit(transaction)
    # The waiting files were made for another choice.
    if journal.choice != request.choice:
        raise UsageError(
            f"an earlier slimming with other options was interrupted: {journal.choice}",
            hint="finish it with the same options, or use --undo",
        )
    # A machine that lost power may have written the journal and not all of the files.
    damaged = [each.path for each in journal.changes if transaction.is_damaged(each)]
    if damaged:
        raise VerifyError(f"the new files for {', '.join(damaged)} are damaged", hint="use --undo")
    transaction.apply(journal)
    note = f"an interrupted run was finished; files in place: {len(journal.changes)}"
    # The sizes are unknown: the run that computed them was killed.
    return replace(plan_report(request, {}, (note,), output=transaction.site), size_after=None)


def _interrupted_commit(transaction: Transaction) -> UsageError:
    return UsageError(
        f"a commit of {transaction.site} was interrupted", hint="finish it with --commit"
    )


def _changed_libraries(installation: Installation) -> tuple[OwnedLibrary, ...]:
    return tuple(each for each in installation.owned if each.library.plan.is_changed)


def _load_staged(
    changed: Iterable[OwnedLibrary], stage: StagingFolder, effects: Effects
) -> tuple[str, ...]:
    """Load each new library in the staging folder, before it replaces the old one."""
    with temporary_dir() as folder:
        trial = prepare_trial(stage.request, effects, folder)
        # Fatbins can't be loaded.
        libraries = [one.library for one in changed if one.library.plan.form is Form.ELF]
        results = map_on_cores(
            lambda one: trial.load(stage.root / one.name, one.path), libraries, most=_MOST_TRIALS
        )
        names = [one.name for one in libraries]
    return trial_results(dict(zip(names, results, strict=True)))


def _report(
    request: SlimRequest,
    installation: Installation,
    *,
    is_done: bool = False,
    checks: tuple[str, ...] = (),
) -> SlimReport:
    plans = {each.library.name: each.library.plan for each in installation.owned}
    output = request.source if is_done else None
    return plan_report(request, plans, installation.notes, output=output, checks=checks)


def undo_site(path: Path, *, force: bool = False) -> tuple[str, ...]:
    """Restore all files that slimming replaced: the same files, not copies.

    Distributions that were removed or installed again since are left unchanged.

    Args:
        path: the site-packages folder.
        force: restore files that were changed since, too.

    Returns:
        The result in sentences.

    Raises:
        VerifyError: a file was changed since; nothing was restored.
        UndoError: the environment is slimmed, and the old files are gone.
        UsageError: a commit was interrupted.
        InputError: the folder can't be read.
        OutputError: a file can't be restored; another call goes on from there.
    """
    with open_transaction(site_folder(path)) as transaction:
        journal = transaction.read_journal()
        if journal is None:
            _check_store(transaction)
            _check_not_slimmed(transaction.site)
            transaction.remove_folder()
            return (f"there is nothing to undo in {transaction.site}",)
        if journal.state is TransactionState.COMMITTING:
            raise _interrupted_commit(transaction)
        # pip writes a new RECORD for every installation, so this file tells about all the others.
        replaced = {
            each.distribution
            for each in journal.changes
            if _is_replaced(transaction, journal, each)
        }
        changes = tuple(each for each in journal.changes if each.distribution not in replaced)
        changed = [each.path for each in changes if not _is_unchanged(transaction, journal, each)]
        if changed and not force:
            raise VerifyError(
                f"these files of {transaction.site} have changed since: {', '.join(changed)}",
                hint="--ignore-record replaces them with the files from before slimming",
            )
        # Files of the distributions left out stay as pip wrote them.
        transaction.roll_back(replace(journal, changes=changes))
    unchanged = (f"{each} has changed since, and is left as it is" for each in sorted(replaced))
    return (f"restored {count_text(len(changes), 'file')}", *unchanged)


def _check_not_slimmed(site: Path) -> None:
    """Refuse to call an environment unslimmed whose old files are gone.

    Raises:
        UndoError: the message has the distributions, the hint how to install them again.
    """
    names = sorted(slimmed_in_place(site))
    if names:
        pins = " ".join("==".join(name.rsplit("-", 1)) for name in names)
        raise UndoError(
            f"the old files of {', '.join(names)} are gone: --commit or another program has removed"
            f" them from {site}",
            hint=f"install them again: pip install --force-reinstall --no-deps {pins}",
        )


def commit_site(path: Path) -> tuple[str, ...]:
    """Remove the files that slimming replaced, which frees their space.

    Returns:
        The result in sentences.

    Raises:
        UsageError: slimming or undoing was interrupted.
        InputError: the folder can't be read.
        OutputError: the files can't be removed.
    """
    with open_transaction(site_folder(path)) as transaction:
        journal = transaction.read_journal()
        if journal is None:
            _check_store(transaction)
            transaction.remove_folder()
            return (f"there is nothing to commit in {transaction.site}",)
        # A commit in the middle would leave new files of some libraries next to old ones of others.
        if journal.state not in {TransactionState.SLIMMED, TransactionState.COMMITTING}:
            raise UsageError(
                f"an earlier run on {transaction.site} was interrupted",
                hint="finish it with the same options, or use --undo",
            )
        # Before the commit, which removes the old files.
        old_bytes = sum(_freeable_bytes(transaction.old / each.path) for each in journal.changes)
        new_bytes = sum(_freeable_bytes(transaction.site / each.path) for each in journal.changes)
        transaction.commit(journal)
    return (_freed_text(old_bytes, new_bytes),)


def _freed_text(old_bytes: int, new_bytes: int) -> str:
    """Return the freed space, compared with the time before slimming."""
    old, new, warning = old_bytes / 1e6, new_bytes / 1e6, "this can't be undone any more"
    # uv installs hard links: the new files are then the environment's own, and cost space.
    if old_bytes < new_bytes:
        shared = "the old files are shared with a cache or other environments"
        return f"slimming takes {new - old:.1f} MB more than before: {shared}; {warning}"
    return f"freed {old - new:.1f} MB: {old:.1f} MB of old files became {new:.1f} MB; {warning}"


def _is_replaced(transaction: Transaction, journal: SlimJournal, change: FileChange) -> bool:
    """Return True if the change is of a RECORD that another installation wrote since."""
    if change.path != f"{change.distribution}/RECORD":
        return False
    return not _is_unchanged(transaction, journal, change)


def _is_unchanged(transaction: Transaction, journal: SlimJournal, change: FileChange) -> bool:
    """Return True if a file is as some step of slimming left it."""
    path = transaction.site / change.path
    digest = sha256(path) if path.is_file() else None
    if digest is None and change.old is not None:
        # On a file system without hard links, a file is missing between two renames.
        return journal.state is not TransactionState.SLIMMED and os.path.lexists(
            transaction.old / change.path
        )
    return digest in {change.old, change.new}


def _freeable_bytes(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    status = path.lstat()
    # Another link (pip's or uv's cache, a second environment) keeps the bytes on the disk.
    # Holes of a file take no space. POSIX leaves the unit open; on Linux it is 512 bytes.
    used = min(status.st_size, status.st_blocks * _STAT_BLOCK)
    return used if status.st_nlink == 1 else 0
