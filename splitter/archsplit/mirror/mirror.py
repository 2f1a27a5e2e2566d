"""A mirror: the wheels of a resolution in a static index, slimmed or split.

    inputs ─► resolve ─► download ─► edit ─► index ─► state ─► locks
                          (ahead)    one by one, each complete before the next

Every wheel is in the index and in the state before the next one begins, so a kill loses at most one
edit. Locks come last: they never name a wheel that is not in the index. Wheels that no lock names
any more leave the index after that.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archsplit.errors import ConflictError, InputError, TargetError
from archsplit.index.retry import Clock, RetryPolicy
from archsplit.index.static_folder import lock_folder
from archsplit.index.static_update import IndexChange, update_index
from archsplit.mirror.documents import is_own_lock, lock_devices, lock_texts
from archsplit.mirror.download import Downloader
from archsplit.mirror.edit import NO_CODE_FOR_GPU, EditedWheel, describe_original, edit_wheel
from archsplit.mirror.model import (
    KEEP,
    STATE_FILE,
    MirroredWheel,
    MirrorLock,
    MirrorState,
    ResolvedWheel,
    read_state,
)
from archsplit.mirror.resolve import resolve_inputs
from archsplit.system.fs import output_errors, read_file, sha256, temporary_dir, write_file
from archsplit.system.installers import check_extra
from archsplit.system.parallel import ThreadPool
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.index.static_folder import IndexFolder
    from archsplit.mirror.model import MirrorEdit, MirrorRequest, OriginalWheel
    from archsplit.release.context import Effects

DOWNLOADS = ".downloads"
"""Folder of originals that are not complete or not edited yet."""

_GRACE = 3600
"""Seconds for which a wheel stays after it left all pages; the default of `archsplit index`."""
_RETRY_SECONDS = 300.0
"""Time limit for the retries of one download."""
_AHEAD = 3
"""Downloads at a time; more would only fill the disk while a wheel is edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """Result of a run.

    Attributes:
        wheels: of this resolution, sorted by name.
        new: file names of the originals that were edited in this run.
        locks: the names of the written lock files.
        removed: wheels that left the index, because no lock needs them.
        removed_locks: lock files of an earlier run that split for other GPUs, or did not.
        devices: the GPUs.
    """

    out: Path
    wheels: tuple[MirroredWheel, ...]
    new: tuple[str, ...]
    locks: tuple[str, ...]
    removed: tuple[str, ...]
    removed_locks: tuple[str, ...]
    devices: tuple[str, ...]


def update_mirror(request: MirrorRequest, effects: Effects) -> MirrorReport:
    """Make or update a mirror for the resolution of the inputs.

    Raises:
        InputError: an input can't be read or resolved, a project has no wheel, or a file with the
            name of a lock is not a mirror's.
        VerifyError: a download has another digest than the resolution.
        TargetError: no wheel has code for the GPUs.
        ConflictError: the index has other bytes under the name of a new wheel.
        IndexUnreachableError: a wheel can't be downloaded.
        OutputError: the folder can't be written; a second run goes on.
        ToolNotFoundError: the extra `mirror` is not installed.
    """
    check_extra("mirror", "requests")
    _refuse_other_files(request)
    effects.progress.begin_stage("resolving", 0, "Resolved the inputs")
    resolved = resolve_inputs(request, effects.runner, effects.environment)
    with lock_folder(request.out, effects.progress.note) as folder:
        state = read_state(folder.root)
        run = _MirrorRun(request=request, effects=effects, folder=folder)
        wheels, new, state = run.mirror(resolved, state)
        _check_code(request, wheels)
        locks = lock_texts(request, wheels)
        lock = MirrorLock(
            name=request.lock_name,
            inputs=tuple(path.name for path in request.inputs),
            edit=request.edit,
            files=tuple(sorted(each.original.file for each in wheels)),
            locks=tuple(locks),
        )
        final = state.with_lock(lock, wheels)
        removed = _files(state) - _files(final)
        stale = {name for one in state.locks for name in one.locks if one.name == lock.name}
        stale -= set(locks)
        # The locks before the pages lose wheels: a reader of an old lock has the grace time.
        for name, text in locks.items():
            write_file(folder.root / name, text)
        write_file(folder.root / STATE_FILE, final.as_json())
        for name in sorted(stale):
            with output_errors(folder.root / name):
                (folder.root / name).unlink(missing_ok=True)
        # Last: pages lose wheels only after the locks that name the new ones are written.
        if removed:
            change = IndexChange(yank={}, remove=removed, grace=_GRACE, now=request.now)
            update_index(folder, change)
    return MirrorReport(
        out=request.out,
        wheels=wheels,
        new=new,
        locks=tuple(locks),
        removed=tuple(sorted(removed)),
        removed_locks=tuple(sorted(stale)),
        devices=request.edit.devices,
    )


def _refuse_other_files(request: MirrorRequest) -> None:
    """Refuse a folder whose requirements or ``pylock.toml`` somebody wrote, maybe the input."""
    for name in lock_devices(request):
        path = request.out / name
        if path.exists() and not is_own_lock(read_file(path)):
            raise InputError(
                f"{path} is not from a mirror, and would be overwritten",
                hint="keep the mirror in its own folder, or choose a --lock-name",
            )


def _files(state: MirrorState) -> frozenset[str]:
    return frozenset(file.file for wheel in state.wheels for file in wheel.files)


def _check_code(request: MirrorRequest, wheels: Sequence[MirroredWheel]) -> None:
    """Refuse a choice of GPUs for which no wheel has code: it is a mistake."""
    without = [each for each in wheels if each.unchanged.startswith(NO_CODE_FOR_GPU)]
    if without and all(each.unchanged for each in wheels):
        names = ", ".join(each.name for each in without)
        raise TargetError(
            f"no wheel has code for {', '.join(request.edit.devices)}: {names}",
            hint="`archsplit inspect NAME==VERSION` shows the GPUs of a wheel",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MirrorRun:
    """A run of a mirror, with its folder locked."""

    request: MirrorRequest
    effects: Effects
    folder: IndexFolder = field(repr=False)

    def mirror(
        self, resolved: Sequence[ResolvedWheel], state: MirrorState
    ) -> tuple[tuple[MirroredWheel, ...], tuple[str, ...], MirrorState]:
        """Bring every wheel into the index; return the wheels, the new ones, and the state."""
        wheels: dict[str, MirroredWheel] = {}
        for each in resolved:
            earlier = self._earlier(each, state)
            if earlier is not None:
                wheels[each.name] = earlier
        missing = [each for each in resolved if each.name not in wheels]
        self.effects.progress.begin_stage("mirroring", len(missing), "Mirrored {} wheels")
        clock = Clock()
        with self._downloads(resolved) as downloader, ThreadPool(_AHEAD) as pool:
            pending: list[Future[Path]] = []
            try:
                for index, each in enumerate(missing):
                    # A few wheels ahead: the network works while the processor does.
                    while len(pending) < len(missing) and len(pending) <= index + _AHEAD:
                        pending.append(pool.submit(downloader.fetch, missing[len(pending)]))
                    began = clock.monotonic()
                    self.effects.progress.start_step(each.file)
                    path = pending[index].result()
                    edited, state = self._add(path, each, state)
                    wheels[each.name] = edited
                    self.effects.progress.finish_step(each.file, clock.monotonic() - began)
                    if self.request.downloads is None:
                        with output_errors(path):
                            path.unlink(missing_ok=True)
            finally:
                for future in pending:
                    future.cancel()
        ordered = tuple(wheels[each.name] for each in resolved)
        return ordered, tuple(each.file for each in missing), state

    def _earlier(self, resolved: ResolvedWheel, state: MirrorState) -> MirroredWheel | None:
        """Return an earlier result, if its files are still in the index."""
        found = state.find(resolved, (self.request.edit, KEEP))
        if found is None:
            return None
        is_complete = found.edit == self._edit(found.original) and all(
            (path := self.folder.place(canonicalize_name(file.name), file.file)).is_file()
            # Two seconds for 3 GB: damage by the disk would be served to all machines.
            and sha256(path) == file.sha256
            for file in found.files
        )
        return found if is_complete else None

    def _edit(self, original: OriginalWheel) -> MirrorEdit:
        """Return the edit of a wheel: none if its licence forbids changes and is respected."""
        return KEEP if self.request.keeps_proprietary and original.license else self.request.edit

    def _add(
        self, path: Path, resolved: ResolvedWheel, state: MirrorState
    ) -> tuple[MirroredWheel, MirrorState]:
        original = describe_original(path, resolved)
        edit = self._edit(original)
        # The stages of one edit would hide the mirror's.
        quiet = replace(self.effects, progress=SilentProgress())
        with temporary_dir(self.folder.root) as scratch:
            edited = edit_wheel(path, original, edit, scratch, quiet)
            _check_names(self.folder, edited, state)
            state = state.with_wheel(edited.wheel)
            change = IndexChange(add=edited.paths, yank={}, grace=_GRACE, now=self.request.now)
            update_index(self.folder, change)
            # After the wheel: the state names only what the index has.
            write_file(self.folder.root / STATE_FILE, state.as_json())
        return edited.wheel, state

    @contextmanager
    def _downloads(self, resolved: Sequence[ResolvedWheel]) -> Iterator[Downloader]:
        folder = self.request.downloads or self.folder.root / DOWNLOADS
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        note = self.effects.progress.note
        retry = RetryPolicy(seconds=_RETRY_SECONDS, clock=Clock(), note=note)
        yield Downloader(folder=folder, retry=retry)
        # Not after an error: what has come is resumed.
        if self.request.downloads is None:
            # Each wheel was removed after its edit, unless a run was killed. Other files are
            # somebody's.
            with suppress(OSError):
                for name in (f"{each.file}{end}" for each in resolved for end in ("", ".part")):
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()


def _check_names(folder: IndexFolder, edited: EditedWheel, state: MirrorState) -> None:
    """Refuse other bytes under a name that installers may have seen."""
    digests = {file.file: file.sha256 for wheel in state.wheels for file in wheel.files}
    changed = [
        file.file
        for file in edited.wheel.files
        if digests.get(file.file, file.sha256) != file.sha256
    ]
    if changed:
        raise ConflictError(
            f"{folder.root} has different {', '.join(changed)}, made with other options or by"
            " another version of archsplit",
            hint="make the new mirror in another folder",
        )
