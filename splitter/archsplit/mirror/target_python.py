"""Python and the platform of the machines that install from a mirror; pure.

In: a version and the platform tag of a wheel. Out: the same in the words of uv, as tags (PEP 425)
and as markers (PEP 508), for a resolution on another machine than those that install.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.tags import compatible_tags, cpython_tags

from archsplit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.markers import Environment
    from packaging.tags import Tag

__pure__ = True

_VERSION = re.compile(r"3\.(\d+)(\.\d+)?")
_LINUX = re.compile(r"manylinux_2_(\d+)_(x86_64|aarch64)")
_WINDOWS = {"win_amd64": ("x86_64", "AMD64"), "win_arm64": ("aarch64", "ARM64")}
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Platform tags before PEP 600, by the minor version of glibc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPython:
    """CPython on a platform.

    Attributes:
        version: such as ``3.12`` or ``3.12.4``.
        platform: such as ``manylinux_2_28_x86_64``: Linux with at least that glibc.
    """

    version: str
    platform: str

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise UsageError(
                f"{self.version!r} is not the version of a Python 3", hint="--python-version 3.12"
            )
        if self.platform not in _WINDOWS and not _LINUX.fullmatch(self.platform):
            raise UsageError(
                f"{self.platform!r} is not a platform with CUDA wheels",
                hint=f"--platform manylinux_2_28_x86_64, …_aarch64, {' or '.join(_WINDOWS)}",
            )

    def __str__(self) -> str:
        return f"Python {self.version} on {self.platform}"

    @property
    def minor(self) -> int:
        """Minor version of Python."""
        return int(self.version.split(".")[1])

    def uv_options(self) -> tuple[str, ...]:
        """Return the options of uv for it."""
        linux = _LINUX.fullmatch(self.platform)
        if linux is None:
            name = f"{_WINDOWS[self.platform][0]}-pc-windows-msvc"
        else:
            name = f"{linux[2]}-manylinux_2_{linux[1]}"
        return ("--python-version", self.version, "--python-platform", name)

    def tags(self) -> tuple[Tag, ...]:
        """Return the tags of the wheels that it installs, the best first."""
        platforms = list(self._platforms())
        own = f"cp3{self.minor}"
        version = (3, self.minor)
        return (
            *cpython_tags(version, abis=[own], platforms=platforms),
            *compatible_tags(version, interpreter=own, platforms=platforms),
        )

    def _platforms(self) -> Iterator[str]:
        linux = _LINUX.fullmatch(self.platform)
        if linux is None:
            yield self.platform
            return
        # PEP 600: an older glibc is promised by each newer one. aarch64 begins with 2.17.
        oldest = 5 if linux[2] == "x86_64" else 17
        for glibc in range(int(linux[1]), oldest - 1, -1):
            yield f"manylinux_2_{glibc}_{linux[2]}"
            if glibc in _OLD_NAMES:
                yield f"{_OLD_NAMES[glibc]}_{linux[2]}"
        yield f"linux_{linux[2]}"

    def markers(self) -> Environment:
        """Return the values of all markers."""
        linux = _LINUX.fullmatch(self.platform)
        full = self.version if self.version.count(".") > 1 else f"{self.version}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix" if linux else "nt",
            "platform_machine": linux[2] if linux else _WINDOWS[self.platform][1],
            "platform_python_implementation": "CPython",
            # Of one machine, not of a platform.
            "platform_release": "",
            "platform_system": "Linux" if linux else "Windows",
            "platform_version": "",
            "python_full_version": full,
            "python_version": f"3.{self.minor}",
            "sys_platform": "linux" if linux else "win32",
        }
