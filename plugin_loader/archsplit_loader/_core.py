"""Core's identity, and the commands that install or repair its plugins."""

from __future__ import annotations

from typing import NamedTuple

_DAMAGED = (
    "not-elf",
    "not-pack",
    "damaged",
    "wrong-machine",
    "truncated",
    "missing",
    "unreadable",
    "no-descriptor",
    "malformed",
    "wrong-package",
)
_OTHER_BUILD = ("wrong-build", "wrong-interface", "wrong-contract", "wrong-shape")


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
    """Target → the SHA-256 of its library; {} where the core was not built with all of them."""

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

    def command(self, target: str, verdict: str | None) -> str | None:
        """Return the command that makes a target's plugin usable.

        Args:
            target: one of the core's own.
            verdict: of what lies in that plugin's place now; None when nothing does.

        Returns:
            None when installing does not help, as with a driver that is too old.
        """
        plugin = f"{self.targets[target]}=={self.version}"
        if verdict in _DAMAGED:
            return f'{self._install} --force-reinstall --no-deps "{plugin}"'
        # Either of the two may be the wrong one, so both are installed again.
        if verdict in _OTHER_BUILD:
            core = f"{self.distribution}=={self.version}"
            return f'{self._install} --force-reinstall --no-deps "{core}" "{plugin}"'
        # No plugin of this release is older, so only a newer driver helps.
        if verdict == "driver-too-old":
            return None
        return f'{self._install} "{self.requirement(target)}"'

    @property
    def _install(self) -> str:
        from ._origin import install_words  # noqa: PLC0415 (few need a command)

        return install_words(self)

    @property
    def is_split(self) -> bool:
        """Return True if the plugins are device packs, which the stub puts under the libraries."""
        return bool(self.packs)

    def packs_for(self, capability: str) -> tuple[str, ...]:
        """Return the packs that a GPU needs; () where the core never had anything for it.

        GPUs that are newer than all that the core knows start with the newest PTX.
        """
        if capability in self.needs:
            return tuple(self.needs[capability])
        # Later GPUs run PTX; an older one that the core doesn't know has nothing.
        newest = max((_order(one) for one in self.needs), default=(0, 0))
        return ("ptx",) if "ptx" in self.packs and _order(capability) > newest else ()

    def pack_command(self, capability: str, verdicts: dict[str, str]) -> str | None:
        """Return the command that brings or mends the packs for a capability, or None.

        Args:
            verdicts: of the packs that are installed, by their names.
        """
        names = self.packs_for(capability)
        broken = [name for name in names if verdicts.get(name, "accepted") != "accepted"]
        # A driver that is too old refuses a new copy of the pack too.
        if not names or any(verdicts[name] == "driver-too-old" for name in broken):
            return None
        if broken:
            plugins = " ".join(
                f'"{self.packs[name]["distribution"]}=={self.version}"' for name in broken
            )
            return f"{self._install} --force-reinstall --no-deps {plugins}"
        # An extra has all packs of a GPU, also those that are not installed yet.
        extra = "ptx" if names == ("ptx",) else f"cc{capability.replace('.', '')}"
        return f'{self._install} "{self.distribution}[{extra}]=={self.version}"'


def _order(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)
