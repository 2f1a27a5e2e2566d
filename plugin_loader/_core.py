"""Who the core is, where its plugins may lie, and which command installs one."""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

from ._errors import PluginError

SCHEMA = 1
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib is slow)

_DAMAGED = ("not-elf", "truncated", "missing", "unreadable", "no-descriptor", "malformed")
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
        if content["schema"] != SCHEMA:
            raise PluginError(
                f"{path} has schema {content['schema']}, expected {SCHEMA}; install the core again"
            )
        return Core(**{name: content[name] for name in Core._fields})
    except OSError as error:
        raise PluginError(f"can't read {path}: {error.strerror}; install the core again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PluginError(f"{path} is damaged ({error}); install the core again") from error


def plugin_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Where plugins may lie: beside the core's package, then wherever Python imports from."""
    site = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 (pathlib is slow)
    places = [os.path.abspath(place) for place in (site, *sys.path)]  # noqa: PTH100 (the same)
    return tuple(dict.fromkeys(os.path.join(place, core.plugins_package) for place in places))  # noqa: PTH118 (the same)
