"""Who the core is, where its plugins may lie, and which command installs one."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import NamedTuple

from ._errors import PluginError

SCHEMA = 1
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib is slow)

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
    """The identity of a core, as its wheel has it in ``core.json``."""

    package: str
    version: str
    build_id: str
    interface_hash: str
    library: str
    plugins_package: str
    distribution: str
    targets: dict[str, str]
    """Target → name of the distribution that has its plugin."""
    packs: dict[str, dict[str, object]] = {}  # noqa: RUF012 (never changed)
    """Of a split core: the name of a device pack → its distribution, and the GPUs it serves."""
    needs: dict[str, list[str]] = {}  # noqa: RUF012 (never changed)
    """Of a split core: capability → the packs that such a GPU needs."""

    def requirement(self, target: str) -> str:
        """What to give to pip for a target's plugin: ``vecsort[sm90]==1.2.3``."""
        name = self.targets[target]
        extra = name.removeprefix(f"{self.distribution}-")
        if extra == name:
            return f"{name}=={self.version}"
        return f"{self.distribution}[{extra}]=={self.version}"

    def command(self, target: str, verdict: str | None) -> str | None:
        """The command that makes a target's plugin usable.

        Args:
            target: one of the core's own.
            verdict: of what lies in that plugin's place now; None when nothing does.

        Returns:
            None when installing does not help, as with a driver that is too old.
        """
        plugin = f"{self.targets[target]}=={self.version}"
        if verdict in _DAMAGED:
            return f'pip install --force-reinstall --no-deps "{plugin}"'
        if verdict in _OTHER_BUILD:
            core = f"{self.distribution}=={self.version}"
            return f'pip install --force-reinstall --no-deps "{core}" "{plugin}"'
        return None if verdict == "driver-too-old" else f'pip install "{self.requirement(target)}"'

    @property
    def is_split(self) -> bool:
        """Whether its plugins are device packs, which come under its libraries by themselves."""
        return bool(self.packs)

    def packs_for(self, capability: str) -> tuple[str, ...]:
        """The packs that a GPU needs; () where the core never had anything for it.

        GPUs that are newer than all that the core knows start with the newest PTX.
        """
        if capability in self.needs:
            return tuple(self.needs[capability])
        newest = max((_order(one) for one in self.needs), default=(0, 0))
        return ("ptx",) if "ptx" in self.packs and _order(capability) > newest else ()

    def pack_command(self, capability: str, verdicts: dict[str, str]) -> str | None:
        """The command that brings or mends the packs for a capability, or None.

        Args:
            verdicts: of the packs that are installed, by their names.
        """
        names = self.packs_for(capability)
        broken = [name for name in names if verdicts.get(name, "accepted") != "accepted"]
        if not names or any(verdicts[name] == "driver-too-old" for name in broken):
            return None
        if broken:
            plugins = " ".join(
                f'"{self.packs[name]["distribution"]}=={self.version}"' for name in broken
            )
            others = any(verdicts[name] in _OTHER_BUILD for name in broken)
            core = f'"{self.distribution}=={self.version}" ' if others else ""
            return f"pip install --force-reinstall --no-deps {core}{plugins}"
        extra = "ptx" if names == ("ptx",) else f"cc{capability.replace('.', '')}"
        return f'pip install "{self.distribution}[{extra}]=={self.version}"'


def read_core(folder: str = FOLDER) -> Core:
    """Read ``core.json`` in a folder.

    Raises:
        PluginError: it is missing, or is not what archsplit writes.
    """
    path = os.path.join(folder, "core.json")  # noqa: PTH118 (pathlib is slow)
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 (pathlib is slow)
            content = json.load(file)
    except NotADirectoryError as error:
        raise PluginError(
            f"can't read {path}: a core can't run from a zip file; install it with pip"
        ) from error
    except OSError as error:
        raise PluginError(f"can't read {path}: {error.strerror}; install the core again") from error
    except ValueError as error:
        raise PluginError(f"{path} is damaged ({error}); install the core again") from error
    fault = _fault(content)
    if fault is not None:
        raise PluginError(f"{path} {fault}; install the core again")
    return Core(**{name: content[name] for name in Core._fields if name in content})


def plugin_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Where plugins may lie: beside the core's package, then wherever Python imports from."""
    site = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 (pathlib is slow)
    places = [os.path.abspath(place) for place in (site, *sys.path)]  # noqa: PTH100 (the same)
    return tuple(dict.fromkeys(os.path.join(place, core.plugins_package) for place in places))  # noqa: PTH118 (the same)


def pack_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Where device packs may lie: beside the core's package alone, as for what is in C."""
    site = os.path.dirname(os.path.dirname(os.path.realpath(folder)))  # noqa: PTH120 (pathlib is slow)
    return (os.path.join(site, core.plugins_package),)  # noqa: PTH118 (the same)


def table_path(folder: str = FOLDER) -> str:
    """The core's table."""
    return os.path.join(folder, "core.pack")  # noqa: PTH118 (pathlib is slow)


def _fault(content: object) -> str | None:
    """What is not as archsplit writes it, or None."""
    if not isinstance(content, dict):
        return "is damaged (it is no JSON object)"
    if content.get("schema", SCHEMA) != SCHEMA:
        return f"has schema {content['schema']!r:.80}, expected {SCHEMA}"
    optional = () if content.get("packs") is None else tuple(Core._field_defaults)
    names = [name for name in Core._fields if name not in Core._field_defaults]
    for name in ("schema", *names, *optional):
        if name not in content:
            return f"has no {name!r}"
    for name in (*names, *optional):
        if name == "targets" and optional:
            continue
        fits, expected = _FORMS.get(name, (_is_text, "a text"))
        if not fits(content[name]):
            return f"has {content[name]!r:.80} as {name!r}, expected {expected}"
    return None


def _order(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def _is_text(value: object) -> bool:
    """Also without NUL, which would end it in C, and without what UTF-8 can't encode."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_target(name: str) -> bool:
    return re.fullmatch("(sm|compute)_[1-9][0-9]{1,3}[af]?", name) is not None


def _has_targets(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(map(_is_target, value))
        and all(map(_is_text, value.values()))
    )


def _has_packs(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(
            isinstance(each, dict) and _is_text(each.get("distribution")) for each in value.values()
        )
    )


def _has_needs(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, list) and all(map(_is_text, each)) for each in value.values()
    )


_HASH = (_is_hash, "64 hexadecimal digits")
_FORMS = {
    "build_id": _HASH,
    "interface_hash": _HASH,
    "targets": (_has_targets, "at least one target, each with a distribution"),
    "packs": (_has_packs, "at least one pack, each with a distribution"),
    "needs": (_has_needs, "the names of packs for each capability"),
}
"""What a field must be where that is more than a text."""
