"""Compare what an environment was slimmed for with the GPUs of this machine.

In: a site-packages folder and capabilities. Out: the distributions without code for one of them.
Most libraries report a missing image as an error. Some ignore the error of a launch and give wrong
numbers: on an H100 CuPy did, slimmed for 8.0. So the environment is checked before its use.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.compat import can_run_on
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.errors import ArchsplitError, TargetError
from archsplit.slim.report import SLIM_NOTE_FILE
from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_OPTION = re.compile(r"--(device|keep) (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedDistribution:
    """A slimmed distribution, with the machine code that its libraries were to keep."""

    name: str
    choice: str
    targets: tuple[Target, ...]

    def runs_on(self, capability: Capability) -> bool:
        """Return True if the GPU may have machine code; PTX alone is not counted."""
        return any(can_run_on(target, capability) for target in self.targets)


def read_slimmed(site: Path) -> tuple[SlimmedDistribution, ...]:
    """Return the distributions that were slimmed for some GPUs; ``--drop`` names none.

    Raises:
        InputError: a removal record can't be read.
    """
    return tuple(_read_records(sorted(site.glob(f"*.dist-info/{SLIM_NOTE_FILE}"))))


def _read_records(paths: Iterable[Path]) -> Iterator[SlimmedDistribution]:
    for path in paths:
        try:
            choice = str(json.loads(read_file(path))["choice"])
            targets = tuple(_targets(choice))
        # The file may come from a wheel, which anyone may have edited.
        except (ValueError, KeyError, TypeError, ArchsplitError):
            continue
        if targets:
            name = path.parent.name.removesuffix(".dist-info")
            yield SlimmedDistribution(name=name, choice=choice, targets=targets)


def _targets(choice: str) -> Iterator[Target]:
    for option, words in _OPTION.findall(choice):
        for word in words.split(","):
            if option == "device":
                yield Target(kind=CodeKind.SASS, capability=Capability.parse(word))
            else:
                yield Target.parse(word)


def check_gpus(site: Path, capabilities: Iterable[Capability]) -> tuple[str, ...]:
    """Return a line for the slimmed distributions, or refuse GPUs that they are not for.

    Raises:
        TargetError: a GPU has no machine code in some of them; the message lists all.
        InputError: a removal record can't be read.
    """
    slimmed = read_slimmed(site)
    capabilities = sorted(capabilities)
    unfit = [
        f"{one.name} was slimmed with {one.choice}: no machine code for {capability}"
        for one in slimmed
        for capability in capabilities
        if not one.runs_on(capability)
    ]
    if unfit:
        raise TargetError(
            "\n  ".join((f"{site} is not for the GPUs here, and may give wrong numbers:", *unfit)),
            hint="install the packages again, or put them back with `archsplit slim --undo`",
        )
    text = ", ".join(map(str, capabilities))
    return (f"{len(slimmed)} slimmed distributions in {site}: all may run on {text}",)
