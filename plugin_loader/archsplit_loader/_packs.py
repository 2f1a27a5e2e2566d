"""How device packs serve a GPU, and what to install where they don't."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._bindings import text
from ._errors import PluginNotFoundError
from ._records import Containers, LoadedLibrary, Served

if TYPE_CHECKING:
    from ._core import Core
    from ._explanation import Explanation
    from ._loader import Loader


_SERVED, _UNMATCHED = 1, 2
"""Of ``archsplit_graft_state``."""


def served_by_packs(loader: Loader, core: Core, capability: str) -> Served:
    """How a split core serves a capability."""
    found = loader.service(capability)
    counts = (found.native, found.older_minor, found.ptx)
    complete = found.missing == 0 and sum(counts) > 0
    in_use = complete and found.worse == 0
    return Served(
        capability=capability,
        target=_summary(*counts) if complete else None,
        plugin="device packs" if complete else None,
        native=complete and found.ptx == 0,
        needs=_needed(core, capability),
        command=None if in_use else _command(loader, core, capability, found),
        containers=Containers(
            native=found.native,
            older_minor=found.older_minor,
            ptx=found.ptx,
            missing=found.missing,
        ),
        restart=found.late > 0,
    )


def _command(loader: Loader, core: Core, capability: str, found: Any) -> str | None:  # noqa: ANN401 (ctypes fields have no types)
    """The command that brings what is missing, or None where only a new process helps."""
    if found.unmatched:
        return f'pip install --force-reinstall --no-deps "{core.distribution}=={core.version}"'
    return None if found.late else core.pack_command(capability, _verdicts(loader))


def loaded_libraries(loader: Loader) -> tuple[LoadedLibrary, ...]:
    """Return the libraries of a split core that this process has loaded."""
    found: dict[str, list[tuple[int, set[str]]]] = {}
    for each in loader.grafted():
        targets = {str(each.targets[n]) for n in range(each.target_count)}
        found.setdefault(text(each.library), []).append((each.state, targets))
    return tuple(
        LoadedLibrary(
            name=name,
            containers=len(rows),
            served=sum(state == _SERVED for state, _ in rows),
            unmatched=sum(state == _UNMATCHED for state, _ in rows),
            targets=tuple(sorted(set().union(*(targets for _, targets in rows)))),
        )
        for name, rows in found.items()
    )


def _verdicts(loader: Loader) -> dict[str, str]:
    """What became of each pack that is installed, by its name."""
    found = map(loader.candidate, range(loader.summary().candidate_count))
    return {_name(text(each.path)): loader.verdict(each) for each in found}


def _summary(native: int, older_minor: int, ptx: int) -> str:
    """How containers are served, in words."""
    counts = ((native, "native"), (older_minor, "of an older minor capability"), (ptx, "PTX"))
    return ", ".join(f"{count} containers {what}" for count, what in counts if count)


def check_served(explanation: Explanation) -> None:
    """Refuse to go on where a visible GPU misses something.

    Raises:
        PluginNotFoundError: says which, and the command that helps.
    """
    for device in explanation.devices:
        if device.served.target is None:
            raise PluginNotFoundError(
                f"no plugin of {explanation.package} {explanation.version} serves device "
                f"{device.number}, {device.name} (capability {device.served.capability})"
                f"\nhint: {_advice(device.served)}"
            )


def _advice(served: Served) -> str:
    if served.restart and served.command is None:
        return "start this process again: a pack was installed after it loaded its libraries"
    return served.command or "this release has nothing for it"


def _needed(core: Core, capability: str) -> str | None:
    """The names of the packs that a GPU needs, or None where there are none."""
    return " + ".join(core.packs_for(capability)) or None


def _name(path: str) -> str:
    return os.path.basename(os.path.dirname(path))  # noqa: PTH119, PTH120 (pathlib is slow)
