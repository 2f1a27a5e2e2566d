"""Commands that install or repair the plugins of a core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._origin import install_words

if TYPE_CHECKING:
    from ._core import Core

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


def plugin_command(core: Core, target: str, verdict: str | None) -> str | None:
    """Return the command that makes a target's plugin usable.

    Args:
        target: one of the core's own.
        verdict: of what lies in that plugin's place now; None when nothing does.

    Returns:
        None when installing does not help, as with a driver that is too old.
    """
    plugin = f"{core.targets[target]}=={core.version}"
    if verdict in _DAMAGED:
        return f'{install_words(core)} --force-reinstall --no-deps "{plugin}"'
    # Either of the two may be the wrong one, so both are installed again.
    if verdict in _OTHER_BUILD:
        whole = f"{core.distribution}=={core.version}"
        return f'{install_words(core)} --force-reinstall --no-deps "{whole}" "{plugin}"'
    # No plugin of this release is older, so only a newer driver helps.
    if verdict == "driver-too-old":
        return None
    return f'{install_words(core)} "{core.requirement(target)}"'


def pack_command(core: Core, capability: str, verdicts: dict[str, str]) -> str | None:
    """Return the command that brings or mends the packs for a capability, or None.

    Args:
        verdicts: of the packs that are installed, by their names.
    """
    names = core.packs_for(capability)
    broken = [name for name in names if verdicts.get(name, "accepted") != "accepted"]
    # A driver that is too old refuses a new copy of the pack too.
    if not names or any(verdicts[name] == "driver-too-old" for name in broken):
        return None
    if broken:
        plugins = (f'"{core.packs[name]["distribution"]}=={core.version}"' for name in broken)
        return f"{install_words(core)} --force-reinstall --no-deps {' '.join(plugins)}"
    # An extra has all packs of a GPU, also those that are not installed yet.
    extra = f"cc{capability.replace('.', '')}" if capability in core.needs else "ptx"
    return f'{install_words(core)} "{core.distribution}[{extra}]=={core.version}"'
