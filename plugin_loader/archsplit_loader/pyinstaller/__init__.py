"""Core's hook for PyInstaller, which finds its folder through an entry point.

This folder is copied into every core wheel as ``<package>_pyinstaller``: there it can be imported
without the core.
"""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the folders that have hooks."""
    return [os.path.dirname(os.path.abspath(__file__))]
