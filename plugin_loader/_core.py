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
    return Core(**{name: content[name] for name in Core._fields})


def plugin_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Where plugins may lie: beside the core's package, then wherever Python imports from."""
    site = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 (pathlib is slow)
    places = [os.path.abspath(place) for place in (site, *sys.path)]  # noqa: PTH100 (the same)
    return tuple(dict.fromkeys(os.path.join(place, core.plugins_package) for place in places))  # noqa: PTH118 (the same)


def _fault(content: object) -> str | None:
    """What is not as archsplit writes it, or None."""
    if not isinstance(content, dict):
        return "is damaged (it is no JSON object)"
    if content.get("schema", SCHEMA) != SCHEMA:
        return f"has schema {content['schema']!r:.80}, expected {SCHEMA}"
    for name in ("schema", *Core._fields):
        if name not in content:
            return f"has no {name!r}"
    for name in Core._fields:
        fits, expected = _FORMS.get(name, (_is_text, "a text"))
        if not fits(content[name]):
            return f"has {content[name]!r:.80} as {name!r}, expected {expected}"
    return None


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


_HASH = (_is_hash, "64 hexadecimal digits")
_FORMS = {
    "build_id": _HASH,
    "interface_hash": _HASH,
    "targets": (_has_targets, "at least one target, each with a distribution"),
}
"""What a field must be where that is more than a text."""
