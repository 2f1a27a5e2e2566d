"""The identity of a core: ``core.json``, against which every plugin is checked.

Built and split cores have the same record. A built core names one plugin library for each target;
a split core names its device packs, and the packs that each capability needs.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar

from archsplit.errors import WheelError
from archsplit.system.fs import is_sha256
from archsplit.system.schema import type_adapter

if TYPE_CHECKING:
    from pydantic import ConfigDict

__pure__ = True

IDENTITY_FILE = "core.json"
IDENTITY_SCHEMA = 1
LOADER_PACKAGE = "_archsplit"
"""The folder in the core's package that has the loader as a Python package."""
IDENTITY_ENDING = f"/{LOADER_PACKAGE}/{IDENTITY_FILE}"
"""The end of the path of a core's identity, in a wheel or an environment."""
LOADER_LIBRARY = "libarchsplit_loader.so"

_PACK_FIELDS = ("packs", "needs", "source")


class PluginKind(enum.Enum):
    """The form of a release's plugins."""

    LIBRARY = "library"
    PACK = "pack"


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
    """The identity of a core.

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
    def kind(self) -> PluginKind:
        """The form of the core's plugins."""
        return PluginKind.PACK if self.source else PluginKind.LIBRARY

    @property
    def import_package(self) -> str:
        """The core's import package, beside which `plugins_package` lies."""
        return self.plugins_package.removesuffix("_plugins")

    @property
    def plugins(self) -> Mapping[str, str]:
        """The distribution of every plugin, by its target or the name of its pack."""
        packs = {name: pack.distribution for name, pack in self.packs.items()}
        return {**self.targets, **packs}

    @property
    def plugins_by_gpu(self) -> Mapping[str, tuple[str, ...]]:
        """The plugins that each target, or for packs each capability, needs."""
        # A target's plugin is complete by itself; a GPU may need several packs.
        if self.kind is PluginKind.PACK:
            return self.needs
        return {target: (target,) for target in self.targets}

    def as_json(self) -> str:
        """Return the content of ``core.json``."""
        content = {"schema": IDENTITY_SCHEMA, **asdict(self)}
        # Each form has its own fields alone: the loaders of earlier releases read both.
        others = _PACK_FIELDS if self.kind is PluginKind.LIBRARY else ("provided",)
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
    from pydantic import ValidationError  # noqa: PLC0415 (0.1 s for whoever reads none)

    try:
        fields = type_adapter(dict[str, object]).validate_json(content)
        schema = fields.pop("schema", None)
        if schema != IDENTITY_SCHEMA:
            raise WheelError(f"{where} has schema {schema}, not {IDENTITY_SCHEMA}")
        return type_adapter(Identity).validate_python(fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        raise WheelError(f"{where} is not a core's identity: {faults}") from None
