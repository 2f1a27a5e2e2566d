"""Who a core is: what every plugin is held against, as ``core.json`` in the core's wheel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass
from importlib import resources
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from archsplit.errors import WheelError

__pure__ = True

IDENTITY_FILE = "core.json"
IDENTITY_SCHEMA = 1
LOADER_PACKAGE = "_archsplit"
"""The folder in the core's package that the loader and its Python face lie in."""
LOADER_LIBRARY = "libarchsplit_loader.so"
HOOK_FOLDER = "pyinstaller"
"""The folder beside plugins that has the core's hook for PyInstaller."""
HOOK_GROUP = "pyinstaller40"
"""The entry points by which PyInstaller finds hooks."""

_HOOK = resources.files("archsplit_loader") / HOOK_FOLDER
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A core, as its plugins must know it.

    Attributes:
        package: the normalized project name, also in every descriptor.
        version: exact.
        build_id: 64 hexadecimal digits, see `archsplit.build.build_id`.
        interface_hash: 64 hexadecimal digits over the public header and the exported symbols.
        library: the file name of every plugin's library.
        plugins_package: the namespace folder of the plugins, beside the core.
        distribution: the name that pip knows the core by.
        targets: for each target the distribution of its plugin.
        provided: shared libraries that plugins need, and that something else brings.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    package: str
    version: str
    build_id: str
    interface_hash: str
    library: str
    plugins_package: str
    distribution: str
    targets: Mapping[str, str]
    provided: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("build_id", "interface_hash"):
            if not _SHA256.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} is not a SHA-256 in hexadecimal digits")

    @property
    def import_package(self) -> str:
        """The core's import package, beside which `plugins_package` lies."""
        return self.plugins_package.removesuffix("_plugins")

    def as_json(self) -> str:
        """The content of ``core.json``."""
        return json.dumps({"schema": IDENTITY_SCHEMA, **asdict(self)}, indent=2) + "\n"


def parse_identity(content: bytes, *, where: str) -> Identity:
    """Read ``core.json``.

    Args:
        where: the file, for the message.

    Raises:
        WheelError: it is not JSON, of another schema, or a field is missing or wrong.
    """
    try:
        fields = _OBJECT.validate_json(content)
        schema = fields.pop("schema", None)
        if schema != IDENTITY_SCHEMA:
            raise WheelError(f"{where} has schema {schema}, not {IDENTITY_SCHEMA}")
        return _IDENTITY.validate_python(fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        raise WheelError(f"{where} is not a core's identity: {faults}") from None


_OBJECT = TypeAdapter(dict[str, object])
_IDENTITY = TypeAdapter(Identity)


def hook_files(package: str) -> dict[str, bytes]:
    """Return PyInstaller's hook for a core's import package, by the names in its wheel.

    It lies beside the plugins, where Python finds it without importing the core.
    """
    folder = f"{package}_plugins/{HOOK_FOLDER}"
    return {
        f"{folder}/__init__.py": (_HOOK / "__init__.py").read_bytes(),
        f"{folder}/hook-{package}.py": (_HOOK / "hook.py").read_bytes(),
    }


def hook_entry_point(package: str) -> str:
    """Return the section of ``entry_points.txt`` that announces the hook."""
    return f"[{HOOK_GROUP}]\nhook-dirs = {package}_plugins.{HOOK_FOLDER}:hook_dirs\n"
