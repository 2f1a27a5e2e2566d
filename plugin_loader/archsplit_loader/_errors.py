"""Errors of the loader: a plugin that can't be opened, and a missing device."""

from __future__ import annotations

from ._safe_text import printable


class PluginError(RuntimeError):
    """Base of all; raised itself when the core's own files are damaged or an argument is wrong."""

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingError(PluginError):
    """An environment variable has no valid value."""


class DeviceError(PluginError):
    """No driver, no GPU, or no device of the requested number."""


class PluginNotFoundError(PluginError):
    """No installed plugin serves the device; the message has the command that helps."""


class PluginOpenError(PluginError):
    """Right plugin was found, but the system's loader can't open it."""
