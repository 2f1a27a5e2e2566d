"""Identity of a core: its plugins, and the device packs that a GPU needs."""

from __future__ import annotations

from typing import NamedTuple

_PTX_PACKS = ("ptx", "common_ptx", "shared_ptx")


class Core(NamedTuple):
    """Identity of a core, as its wheel has it in ``core.json``."""

    package: str
    version: str
    build_id: str
    interface_hash: str
    library: str
    plugins_package: str
    distribution: str
    targets: dict[str, str] = {}  # noqa: RUF012 (never changed)
    """Target → name of the distribution that has its plugin."""
    packs: dict[str, dict[str, object]] = {}  # noqa: RUF012 (never changed)
    """Of a split core: the name of a device pack → its distribution, and the GPUs it serves."""
    needs: dict[str, list[str]] = {}  # noqa: RUF012 (never changed)
    """Of a split core: capability → the packs that such a GPU needs."""
    digests: dict[str, str] = {}  # noqa: RUF012 (never changed)
    """Target → the SHA-256 of its plugin library; {} if not all were known to the build."""

    def plugins(self) -> tuple[tuple[str, str], ...]:
        """Return the folder of each plugin, and the distribution that has it."""
        packs = ((name, str(pack["distribution"])) for name, pack in self.packs.items())
        return (*self.targets.items(), *packs)

    def requirement(self, target: str) -> str:
        """Return pip's requirement for a target's plugin: ``vecsort[sm90]==1.2.3``."""
        name = self.targets[target]
        core, dash, extra = name.partition(f"{self.distribution}-")
        # A project may name its plugin distributions freely; then they have no extra.
        if core or not dash:
            return f"{name}=={self.version}"
        return f"{self.distribution}[{extra}]=={self.version}"

    @property
    def is_split(self) -> bool:
        """Return True if the plugins are device packs, whose images the loader grafts."""
        return bool(self.packs)

    def packs_for(self, capability: str) -> tuple[str, ...]:
        """Return the packs that a GPU needs; () if the core had no code for it.

        For GPUs that are newer than all that the core knows, these are the packs with PTX.
        """
        if capability in self.needs:
            return tuple(self.needs[capability])
        # Later GPUs run PTX; an older one that the core doesn't know has nothing.
        later = _version_key(capability) > max(map(_version_key, self.needs), default=(0,))
        # With packs that others require (common, shared), PTX is in up to three packs.
        return tuple(name for name in self.packs if later and name.startswith(_PTX_PACKS))


def _version_key(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))
