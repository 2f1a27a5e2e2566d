"""Report on a core whose loader can't run."""

from __future__ import annotations

import json
import os
from glob import escape, glob
from typing import TYPE_CHECKING

from ._folders import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKEN_SCHEMA = 1


class BrokenCore:
    """A damaged core: what is wrong, the files of its plugins, and the command that mends it."""

    def __init__(self, error: str, folder: str = FOLDER) -> None:
        package_folder = os.path.dirname(folder)  # noqa: PTH120 (as in _folders)
        self._site, self._package = os.path.split(package_folder)
        self.error = error
        self.files = sorted(self._plugins())
        self.command = self._command()

    def as_json(self) -> str:
        """For programs; there is no ``error`` where a core can be asked."""
        content = {
            "schema": BROKEN_SCHEMA,
            "healthy": False,
            "error": self.error,
            "command": self.command,
            "files": self.files,
        }
        return json.dumps(content, indent=2)

    def text(self) -> str:
        """For people."""
        lines = [f"core: damaged: {self.error}"]
        lines += ["plugins: not checked", *(f"  {path}" for path in self.files)]
        lines += [] if self.command is None else [f"to fix it: {self.command}"]
        return "\n".join(lines)

    def _plugins(self) -> Iterator[str]:
        """Whatever lies where plugins lie, beside the core."""
        folder = os.path.join(self._site, f"{self._package}_plugins", "cuda")  # noqa: PTH118 (as in _folders)
        # The files are only named: without a loader nothing can judge them.
        yield from glob(f"{escape(folder)}/*/*")  # noqa: PTH207 (the same)

    def _command(self) -> str | None:
        """Install the same version again, if pip's own records say which distribution it is."""
        member = f"{self._package}/_archsplit/"
        # core.json has the name too, but it may be what is damaged.
        for path in glob(f"{escape(self._site)}/*.dist-info/RECORD"):  # noqa: PTH207 (as in _folders)
            try:
                with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (the same)
                    owned = any(line.startswith(member) for line in file)
            except OSError:
                continue
            folder, _ = os.path.splitext(os.path.dirname(path))  # noqa: PTH120, PTH122 (the same)
            name, _, version = os.path.basename(folder).partition("-")  # noqa: PTH119 (the same)
            if owned:
                pin = f"{name.replace('_', '-')}=={version}"
                return f'pip install --force-reinstall --no-deps "{pin}"'
        return None
