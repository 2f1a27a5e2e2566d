"""The identity of a core, ``core.json``, and the files that every core carries with it.

Every plugin is checked against the identity. Built and split cores have the same record: a built
core names one plugin library for each target; a split core names its device packs, and the packs
that each capability needs.

A core carries the loader as a package of its own (`LOADER_PACKAGE`), its identity, a module to run
as ``python -m PACKAGE.doctor``, and a hook by which PyInstaller collects installed plugins. The
project's own files come from elsewhere and are never replaced.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping  # noqa: TC003 - a field of a record
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, ClassVar

from archsplit.arch.target import Target
from archsplit.errors import WheelError
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.device_pack import (
    TABLE_FILE,
    PackContainer,
    PackImage,
    PackLibrary,
    container_key,
    encode_table,
)
from archsplit.system.fs import is_sha256
from archsplit.system.schema import schema_faults, type_adapter

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from pydantic import ConfigDict

__pure__ = True

IDENTITY_FILE = "core.json"
IDENTITY_SCHEMA = 1
LOADER_PACKAGE = "_archsplit"
"""Folder in the core's package that has the loader as a Python package."""
IDENTITY_ENDING = f"/{LOADER_PACKAGE}/{IDENTITY_FILE}"
"""End of the path of a core's identity, in a wheel or an environment."""
LOADER_LIBRARY = "libarchsplit_loader.so"

_PACK_FIELDS = ("packs", "needs", "source")
_ANY_CUDA = 1
"""CUDA version of a table of libraries: each plugin has its own."""


class ReleaseKind(enum.Enum):
    """Command that wrote a set of wheels; plugins are libraries of a build, or packs."""

    BUILT = "built"
    SPLIT = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIdentity:
    """A device pack as its core names it.

    Attributes:
        serves: the capabilities of GPUs that need no other pack.
    """

    distribution: str
    serves: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a core.

    Attributes:
        package: the normalized project name, also in every descriptor.
        version: exact.
        build_id: 64 hexadecimal digits, see `archsplit.build.context`.
        interface_hash: 64 hexadecimal digits over the public header and the exported symbols; of a
            split, over the index of its images.
        library: the file name of every plugin's library, or of every pack.
        plugins_package: the namespace folder of the plugins, beside the core.
        distribution: the core's distribution.
        targets: the distribution of each target's plugin library.
        provided: shared libraries that plugin libraries need and other wheels provide.
        digests: SHA-256 of each target's library; empty if the core was built without all of them.
        packs: the device packs by name.
        needs: the names of the packs that each capability needs.
        source: SHA-256 of the wheel or library that was split; "" for a built core.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    package: str
    version: str
    build_id: str
    interface_hash: str
    library: str
    plugins_package: str
    distribution: str
    targets: Mapping[str, str]
    provided: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    packs: Mapping[str, PackIdentity] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("build_id", "interface_hash"):
            if not is_sha256(getattr(self, name)):
                raise ValueError(f"{name} is not a SHA-256 in hexadecimal digits")
        # The loader compares digests as text, so another spelling would refuse every plugin.
        if not all(map(is_sha256, self.digests.values())):
            raise ValueError("digests are not SHA-256 in hexadecimal digits")

    @property
    def kind(self) -> ReleaseKind:
        """Command that wrote the core."""
        return ReleaseKind.SPLIT if self.source else ReleaseKind.BUILT

    @property
    def import_package(self) -> str:
        """Core's import package, beside which `plugins_package` lies."""
        return self.plugins_package.removesuffix("_plugins")

    @property
    def plugins(self) -> Mapping[str, str]:
        """Distribution of every plugin, by its target or the name of its pack."""
        packs = {name: pack.distribution for name, pack in self.packs.items()}
        return {**self.targets, **packs}

    @property
    def plugins_by_gpu(self) -> Mapping[str, tuple[str, ...]]:
        """Plugins that each target, or for packs each capability, needs."""
        # A target's plugin is complete by itself; a GPU may need several packs.
        if self.kind is ReleaseKind.SPLIT:
            return self.needs
        return {target: (target,) for target in self.targets}

    def descriptor(self, targets: Iterable[Target], *, cuda: int, shape: Shape) -> Descriptor:
        """Return the descriptor of a library, a pack or a table of this core.

        Args:
            cuda: as in a descriptor, 12040 for 12.4.
        """
        return Descriptor(
            package=self.package,
            version=self.version,
            build_id=bytes.fromhex(self.build_id),
            interface_hash=bytes.fromhex(self.interface_hash),
            cuda_version=cuda,
            shape=shape,
            targets=tuple(targets),
        )

    def as_json(self) -> str:
        """Return the content of ``core.json``."""
        content = {"schema": IDENTITY_SCHEMA, **asdict(self)}
        # Each form has only its own fields: the loaders of earlier releases read both.
        others = _PACK_FIELDS if self.kind is ReleaseKind.BUILT else ("provided",)
        for name in (*others, *(() if self.digests else ("digests",))):
            del content[name]
        return json.dumps(content, indent=2) + "\n"


def parse_identity(content: bytes, *, where: str) -> Identity:
    """Read ``core.json``.

    Args:
        where: the file, for the message.

    Raises:
        WheelError: it is not JSON, has another schema, or a field is missing or wrong.
    """
    from pydantic import ValidationError  # noqa: PLC0415 (0.1 s, not for other commands)

    try:
        fields = type_adapter(dict[str, object]).validate_json(content)
        schema = fields.pop("schema", None)
        if schema != IDENTITY_SCHEMA:
            raise WheelError(f"{where} has schema {schema}, not {IDENTITY_SCHEMA}")
        return type_adapter(Identity).validate_python(fields)
    except ValidationError as error:
        raise WheelError(f"{where} is not a core's identity: {schema_faults(error)}") from None


def library_table(identity: Identity) -> bytes:
    """Return the table of a core whose plugins are libraries (rule 20 of ``plugin.h``)."""
    digests = identity.digests
    images = tuple(
        PackImage(
            number=number, target=Target.parse(name), size=0, digest=bytes.fromhex(digests[name])
        )
        for number, name in enumerate(sorted(digests))
    )
    row = PackContainer(images=images, key=container_key(images))
    library = PackLibrary(
        name=identity.library, stub=identity.library, containers=(row,) if images else ()
    )
    targets = map(Target.parse, identity.targets)
    descriptor = identity.descriptor(targets, cuda=_ANY_CUDA, shape=Shape.LIBRARY)
    return encode_table(descriptor, (library,))


HOOK_SUFFIX = "_pyinstaller"
"""End of the name of the folder with the core's hook for PyInstaller."""
HOOK_GROUP = "pyinstaller40"
"""Group of entry points in which PyInstaller looks for hooks."""

_LOADER = resources.files("archsplit_loader")
_PLUGIN_WORDS = {ReleaseKind.BUILT: "plugin", ReleaseKind.SPLIT: "pack"}
_DOCTOR = '''"""Say which {plugin} serves which GPU, and why: ``python -m {package}.doctor``."""

from .{folder}.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFiles:
    """Files that a core gets in addition to its project's.

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
        """Loader's folder in the wheel."""
        return f"{self.identity.import_package}/{LOADER_PACKAGE}"

    @property
    def library(self) -> str:
        """Place of the compiled loader in the wheel."""
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
        # A split brings a table of its own, with the places in its libraries.
        is_built = self.identity.kind is ReleaseKind.BUILT
        table = {TABLE_FILE: library_table(self.identity)} if is_built else {}
        files |= {**table, **self.more, IDENTITY_FILE: self.identity.as_json().encode()}
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

        The hook has a folder of its own. Python finds it without importing the core, whose
        libraries may not load on a build machine. ``pip install --target --upgrade`` of a plugin
        replaces only the plugins' folder.
        """
        package = self.identity.import_package
        folder, source = f"{package}{HOOK_SUFFIX}", _LOADER / "pyinstaller"
        files = {
            f"{folder}/__init__.py": (source / "__init__.py").read_bytes(),
            f"{folder}/hook-{package}.py": (source / "hook.py").read_bytes(),
        }
        # A project's own file wins: it may call the hook itself.
        return {name: text for name, text in files.items() if name not in self.existing}


def hook_entry_points(package: str, existing: bytes = b"") -> bytes | None:
    """Return ``entry_points.txt`` of a core, with the section that announces its hook.

    Args:
        existing: the content of the file in the project's own wheel.

    Returns:
        None for a project that gives PyInstaller hooks of its own.
    """
    if f"[{HOOK_GROUP}]".encode() in existing:
        return None
    before = existing.rstrip() + b"\n\n" if existing.strip() else b""
    hooks = f"{package}{HOOK_SUFFIX}:hook_dirs"
    return before + f"[{HOOK_GROUP}]\nhook-dirs = {hooks}\n".encode()
