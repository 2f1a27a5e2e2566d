"""Files that every core gets, whether it was built or split.

A core carries the loader as a package of its own (`LOADER_PACKAGE`), its identity, a module to run
as ``python -m PACKAGE.doctor``, and a hook by which PyInstaller collects installed plugins. The
project's own files come from elsewhere and are never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field of a record
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from archsplit.release.identity import (
    IDENTITY_FILE,
    LOADER_LIBRARY,
    LOADER_PACKAGE,
    PluginKind,
)

if TYPE_CHECKING:
    from collections.abc import Container

    from archsplit.release.identity import Identity

__pure__ = True

HOOK_FOLDER = "pyinstaller"
"""The folder beside the plugins with the core's hook for PyInstaller."""
HOOK_GROUP = "pyinstaller40"
"""The group of entry points in which PyInstaller looks for hooks."""

_LOADER = resources.files("archsplit_loader")
_PLUGIN_WORDS = {PluginKind.LIBRARY: "plugin", PluginKind.PACK: "pack"}
_DOCTOR = '''"""Say which {plugin} serves which GPU, and why: ``python -m {package}.doctor``."""

from .{folder}.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFiles:
    """The files that a core gets beside those of its project.

    Attributes:
        identity: of the core.
        more: further files for the loader's folder, by name: a split's stubs and table.
        existing: names that the project's own wheel has already.
    """

    identity: Identity
    more: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    existing: Container[str] = ()

    @property
    def folder(self) -> str:
        """The loader's folder in the wheel."""
        return f"{self.identity.import_package}/{LOADER_PACKAGE}"

    @property
    def library(self) -> str:
        """The place of the compiled loader in the wheel."""
        return f"{self.folder}/{LOADER_LIBRARY}"

    def members(self) -> dict[str, bytes]:
        """Return the loader package, the identity and the doctor, by their names in the wheel."""
        # Sorted: the order of a folder's files is not the same on every file system.
        sources = sorted(_LOADER.iterdir(), key=lambda file: file.name)
        files = {
            file.name: file.read_bytes()
            for file in sources
            if file.name.endswith(".py") or file.name == "py.typed"
        }
        files |= {**self.more, IDENTITY_FILE: self.identity.as_json().encode()}
        members = {f"{self.folder}/{name}": content for name, content in files.items()}
        package = self.identity.import_package
        doctor = f"{package}/doctor.py"
        # A project may have a module of that name, which users know.
        if doctor not in self.existing:
            words = _PLUGIN_WORDS[self.identity.kind]
            text = _DOCTOR.format(plugin=words, package=package, folder=LOADER_PACKAGE)
            members[doctor] = text.encode()
        return members

    def hook_members(self) -> dict[str, bytes]:
        """Return PyInstaller's hook by its names in the wheel.

        The hook lies beside the plugins, where Python finds it without importing the core.
        """
        package = self.identity.import_package
        folder, source = f"{self.identity.plugins_package}/{HOOK_FOLDER}", _LOADER / HOOK_FOLDER
        files = {
            f"{folder}/__init__.py": (source / "__init__.py").read_bytes(),
            f"{folder}/hook-{package}.py": (source / "hook.py").read_bytes(),
        }
        # A project's own file wins: it may call the hook itself.
        return {name: text for name, text in files.items() if name not in self.existing}

    def entry_points(self, existing: bytes = b"") -> bytes | None:
        """Return ``entry_points.txt`` with the section that announces the hook.

        Args:
            existing: the content of the file in the project's own wheel.

        Returns:
            None for a project that gives PyInstaller hooks of its own.
        """
        return hook_entry_points(self.identity.plugins_package, existing)


def hook_entry_points(plugins_package: str, existing: bytes = b"") -> bytes | None:
    """Return ``entry_points.txt`` of a core; see `CoreFiles.entry_points`."""
    if f"[{HOOK_GROUP}]".encode() in existing:
        return None
    before = existing.rstrip() + b"\n\n" if existing.strip() else b""
    hooks = f"{plugins_package}.{HOOK_FOLDER}:hook_dirs"
    return before + f"[{HOOK_GROUP}]\nhook-dirs = {hooks}\n".encode()
