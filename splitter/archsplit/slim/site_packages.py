"""Slim an installed environment where it is; put it back; or keep it.

Put a slimmed environment back as it was, or remove what that takes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.effects import coverage_changes
from archsplit.devicecode.scan import Form
from archsplit.errors import InputError, TargetError, UsageError, VerifyError
from archsplit.release.trial import Trial, counted
from archsplit.slim.installed import check_digests, plan_installation
from archsplit.slim.report import SLIM_NOTE_FILE, SlimReport, describe_file, earlier_slim_hint
from archsplit.slim.staging import StagingFolder
from archsplit.slim.transaction import SlimJournal, TransactionState, open_transaction
from archsplit.system.fs import read_file, sha256, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.slim.installed import Installation, OwnedLibrary
    from archsplit.slim.request import SlimRequest
    from archsplit.slim.staging import StagedFiles
    from archsplit.slim.transaction import FileChange, Transaction


def slim_site(request: SlimRequest, workshop: Effects) -> SlimReport:
    """Put smaller libraries in the place of those in a site-packages folder, or change nothing.

    The old ones are kept beside them until `archsplit.slim.site_packages.commit_site`. A run that
    was
    killed while it put files in place is continued.

    Raises:
        InputError: the folder or something in it can't be read.
        UsageError: it is slimmed already, and neither undone nor committed.
        WheelError: a RECORD is damaged, or a library is not what it says.
        TargetError: the choice leaves a GPU without code that it is meant for.
        VerifyError: what was written fails its checks; nothing was changed.
        OutputError: something can't be written; nothing was changed.
    """
    site = site_folder(request.source)
    try:
        return _site_slimmed(site, request, workshop)
    except TargetError as error:
        hint = earlier_slim_hint(map(read_file, sorted(site.glob(f"*.dist-info/{SLIM_NOTE_FILE}"))))
        if hint is None:
            raise
        raise TargetError(error.args[0], hint=hint) from error


def _site_slimmed(site: Path, request: SlimRequest, workshop: Effects) -> SlimReport:
    if request.dry_run:
        installation = plan_installation(site, request)
        check_digests(_changed(installation), believe_record=request.believe_record)
        return _report(request, installation)
    with open_transaction(site) as exchange:
        journal = exchange.journal()
        if journal is not None:
            return _continued(exchange, journal, request)
        exchange.sweep()
        return _slimmed(exchange, request, workshop)


def site_folder(path: Path) -> Path:
    """A site-packages folder, without links in its path.

    Raises:
        InputError: it is none.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder", hint="name a site-packages folder")
    return path.resolve()


def _slimmed(exchange: Transaction, request: SlimRequest, workshop: Effects) -> SlimReport:
    installation = plan_installation(exchange.site, request)
    changed = _changed(installation)
    digests = check_digests(changed, believe_record=request.believe_record)
    if not changed:
        return _report(request, installation)
    stage = StagingFolder(site=exchange.site, root=exchange.new, request=request, digests=digests)
    try:
        staged = stage.prepare(changed)
        checks = _loads(changed, stage, workshop)
    except BaseException:
        exchange.sweep()
        raise
    exchange.switch(
        SlimJournal(state=TransactionState.SWITCHING, choice=request.choice, changes=staged.changes)
    )
    return _report(request, installation, staged=staged, checks=checks)


def _continued(exchange: Transaction, journal: SlimJournal, request: SlimRequest) -> SlimReport:
    """Finish what a killed run began."""
    hint = "run it with --undo, or with --commit, which removes the old files"
    if journal.state is TransactionState.SLIMMED:
        raise UsageError(f"{exchange.site} is slimmed already: {journal.choice}", hint=hint)
    if journal.state is TransactionState.UNDOING:
        raise UsageError(
            f"{exchange.site} is being put back as it was", hint="finish that with --undo"
        )
    if journal.choice != request.choice:
        raise UsageError(
            f"{exchange.site} was being slimmed by another choice: {journal.choice}",
            hint="finish that with the same options, or run it with --undo",
        )
    damaged = [each.path for each in journal.changes if exchange.is_damaged(each)]
    if damaged:
        raise VerifyError(
            f"what was written for {', '.join(damaged)} is damaged", hint="run it with --undo"
        )
    exchange.switch(journal)
    note = f"an earlier run was interrupted: its {len(journal.changes)} files are in place now"
    return SlimReport(
        source=str(request.source),
        output=str(exchange.site),
        size_before=0,
        size_after=None,
        sha256=None,
        choice=request.choice,
        files=(),
        effects=(),
        notes=(note,),
    )


def _changed(installation: Installation) -> tuple[OwnedLibrary, ...]:
    return tuple(each for each in installation.owned if each.library.plan.is_changed)


def _loads(
    changed: Iterable[OwnedLibrary], stage: StagingFolder, workshop: Effects
) -> tuple[str, ...]:
    """Load each new library among its neighbours, before it takes the old one's place."""
    with temporary_dir() as folder:
        environment = dict(workshop.environment)
        trial = Trial(runner=workshop.runner, folder=folder, environment=environment)
        results = {
            each.library.name: trial.load(stage.root / each.library.name, each.library.path)
            for each in changed
            if each.library.plan.form is Form.ELF
        }
    return counted(results)


def _report(
    request: SlimRequest,
    installation: Installation,
    *,
    staged: StagedFiles | None = None,
    checks: tuple[str, ...] = (),
) -> SlimReport:
    libraries = [each.library for each in installation.owned]
    kept = {} if staged is None else staged.kept
    return SlimReport(
        source=str(request.source),
        output=None if staged is None else str(request.source),
        size_before=sum(len(each.plan.window) for each in libraries),
        size_after=sum(each.plan.size for each in libraries),
        sha256=None,
        choice=request.choice,
        files=tuple(
            describe_file(each.name, each.plan, request.mode.value, kept.get(each.name, ()))
            for each in libraries
        ),
        effects=coverage_changes(one for each in libraries for one in each.plan.containers),
        checks=checks,
        notes=installation.notes,
    )


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
        if journal.state is not TransactionState.SLIMMED:
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
        return journal.state is not TransactionState.SLIMMED and os.path.lexists(
            exchange.old / change.path
        )
    return found in {change.old, change.new}


def _digest(path: Path) -> str | None:
    return sha256(path) if path.is_file() else None


def _own_bytes(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    status = path.lstat()
    return status.st_size if status.st_nlink == 1 else 0
