"""Temporary files that a later process recognizes and removes, if theirs was killed.

In: the folder of an output. Out: a file, ``.archsplit-`` and 16 digits, locked by its process. The
one idea: half of the digits are the checksum of the others, so no other program makes such a name,
and nothing else is ever removed. A file whose lock is free was left by a killed process. A
temporary folder has the name of such a file, its marker, and a suffix; it is removed first.

Each hit of the compiler wrapper writes its outputs here, so this module imports little.
"""

from __future__ import annotations

import os
import stat
import zlib

from archsplit.system.file_lock import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

DIR_SUFFIX = ".d"
_PREFIX = ".archsplit-"

_cleaned: set[str] = set()


class TemporaryFile:
    """A new locked file, which is removed at the exit unless it was renamed.

    Args:
        parent: its folder.
        mode: its permissions.

    Attributes:
        path: valid after the entry.
        descriptor: open for reading and writing.
    """

    def __init__(self, parent: str, mode: int = 0o600) -> None:
        self.path = self._parent = parent
        self.descriptor = -1
        self._mode = mode

    def __enter__(self) -> Self:
        """Make the file, and remove what killed processes have left in its folder.

        Raises:
            OSError: the file can't be made.
        """
        # Once: a folder with thousands of outputs is too long to be listed for each.
        if self._parent not in _cleaned:
            _cleaned.add(self._parent)
            remove_abandoned(self._parent)
        # Named before it is made: a signal in between would leave a file without an owner.
        try:
            while self.descriptor < 0:
                self.path = os.path.join(self._parent, marked_name(os.urandom(4)))
                self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._mode)
                if not self._lock():
                    os.close(self.descriptor)
                    self.descriptor = -1
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lock(self) -> bool:
        try:
            # Until it is locked, another process may take it for abandoned.
            return try_lock(self.descriptor) and is_open_file(self.descriptor, self.path)
        except OSError:
            # Some network file systems have no locks.
            return True

    def __exit__(self, *error: object) -> None:
        try:
            # A folder that can't be removed keeps its marker, and the next process removes both.
            if not os.path.lexists(self.path + DIR_SUFFIX):
                os.unlink(self.path)
        except OSError:
            # It was renamed or never made, or the file system has become read-only.
            pass
        if self.descriptor >= 0:
            os.close(self.descriptor)


def marked_name(digits: bytes) -> str:
    """Return the name of a temporary file: four bytes and their checksum."""
    return f"{_PREFIX}{digits.hex()}{zlib.crc32(digits):08x}"


def is_marked_name(name: str) -> bool:
    """Return True for the name of a temporary file, or of a temporary folder."""
    name = name.removesuffix(DIR_SUFFIX)
    try:
        return name == marked_name(bytes.fromhex(name.removeprefix(_PREFIX)[:8]))
    except ValueError:
        return False


def is_own_file(descriptor: int) -> bool:
    """Return True for a regular file of this user."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def is_open_file(descriptor: int, path: str) -> bool:
    """Return True if the open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(parent: str) -> None:
    """Remove what killed processes have left in a folder."""
    # A killed process can't remove its files, and /tmp is often cleaned only at a restart.
    try:
        names = [name for name in os.listdir(parent or ".") if name.startswith(_PREFIX)]
    except OSError:
        return
    for name in names:
        if is_marked_name(name) and not name.endswith(DIR_SUFFIX):
            try:
                remove_if_abandoned(os.path.join(parent, name))
            except OSError:
                # It was removed meanwhile, or is another user's.
                continue


def remove_if_abandoned(path: str) -> None:
    """Remove a file with a marked name, and its folder, if their process was killed.

    Raises:
        OSError: it was removed meanwhile, or is another user's.
    """
    # For writing: a network file system locks no other file.
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Another user's files stay.
        if is_own_file(descriptor) and try_lock(descriptor) and is_open_file(descriptor, path):
            remove_dir(path + DIR_SUFFIX)
            # Last: what could not be removed keeps its marker.
            if not os.path.lexists(path + DIR_SUFFIX):
                os.unlink(path)
    finally:
        os.close(descriptor)


def remove_dir(folder: str) -> None:
    """Remove a folder with all that is in it, as far as possible."""
    try:
        # Never through a link, which another user may have put here.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in os.listdir(opened):
                os.unlink(name, dir_fd=opened)
        finally:
            os.close(opened)
        os.rmdir(folder)
    except OSError:
        if os.path.lexists(folder):
            # Late, because most have no folder in them: `shutil` takes 2 ms to import.
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
