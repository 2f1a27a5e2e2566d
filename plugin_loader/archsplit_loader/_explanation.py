"""What the loader found and decided, as records, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._bindings import best_target, known_capabilities, text
from ._loader import DRIVER_STATES, Loader
from ._opening import remedy, start_loader
from ._packs import loaded_libraries, served_by_packs
from ._reading import read_core
from ._records import Candidate, Device, Driver, Known, LoadedLibrary, Served
from ._report import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._core import Core

SCHEMA = 1

_HARMLESS = ("accepted", "shadowed")
_NO_GPU = ("missing", "no-gpu", "all-hidden")


@dataclass(frozen=True)
class Explanation:
    """Everything that `load` bases its decision on, and the decision."""

    package: str
    version: str
    build_id: str
    driver: Driver
    devices: tuple[Device, ...]
    candidates: tuple[Candidate, ...]
    known: tuple[Known, ...]
    notes: tuple[str, ...]
    libraries: tuple[LoadedLibrary, ...] = ()

    @property
    def chosen(self) -> str | None:
        """The plugin that ``load()`` opens, or None."""
        return self.devices[0].served.plugin if self.devices else None

    @property
    def healthy(self) -> bool:
        """Every visible device is served; without a GPU, nothing that is installed is refused."""
        if self.devices:
            return all(device.served.target for device in self.devices)
        refused = any(each.verdict not in _HARMLESS for each in self.candidates)
        return self.driver.state in _NO_GPU and not refused

    def as_json(self) -> str:
        """All of it for programs; ``schema`` changes when a field is renamed or removed."""
        content = {"schema": SCHEMA, "healthy": self.healthy, "chosen": self.chosen}
        return json.dumps({**content, **dataclasses.asdict(self)}, indent=2)

    def text(self) -> str:
        """All of it for people."""
        return render(self)


def explain_core(files: Sequence[str] | None = None, *, full: bool = False) -> Explanation:
    """Look at the core that this folder is in.

    Args:
        files: plugins to choose from, instead of the installed ones.
        full: read all of every plugin, and hold it against what is on record.

    Raises:
        PluginError: the core is damaged, or nothing is on record for ``full``.
    """
    core = read_core()
    with start_loader(core, files, full=full) as loader:
        summary = loader.summary()
        return Explanation(
            package=core.package,
            version=core.version,
            build_id=core.build_id,
            driver=Driver(
                state=DRIVER_STATES[summary.driver_state],
                reason=text(summary.driver_reason),
                version=text(summary.driver_version),
                cuda=_cuda(summary.cuda_version),
            ),
            devices=tuple(_device(loader, core, n) for n in range(summary.device_count)),
            candidates=tuple(
                _candidate(loader, n, full=full) for n in range(summary.candidate_count)
            ),
            known=tuple(
                Known(gpus=gpus, served=_served(loader, core, capability))
                for capability, gpus in known_capabilities(loader.library)
            ),
            notes=tuple(loader.note(n) for n in range(summary.note_count)),
            libraries=loaded_libraries(loader) if core.is_split else (),
        )


def _cuda(version: int) -> str | None:
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def _candidate(loader: Loader, index: int, *, full: bool) -> Candidate:
    struct = loader.candidate(index)
    verdict, reason = loader.verdict(struct), text(struct.reason)
    if full and verdict == "accepted" and (damage := loader.damage(index)):
        verdict, reason = "damaged", damage
    return Candidate(
        path=text(struct.path),
        verdict=verdict,
        reason=reason,
        package=text(struct.package),
        version=text(struct.version),
        targets=tuple(str(struct.targets[n]) for n in range(struct.target_count)),
        cuda=_cuda(struct.cuda_version),
    )


def _device(loader: Loader, core: Core, number: int) -> Device:
    struct = loader.device(number)
    return Device(
        number=number,
        name=text(struct.name),
        uuid=text(struct.uuid),
        pci_bus_id=text(struct.pci_bus_id),
        nvml_index=struct.nvml_index,
        served=_served(loader, core, f"{struct.major}.{struct.minor}"),
    )


def _served(loader: Loader, core: Core, capability: str) -> Served:
    if core.is_split:
        return served_by_packs(loader, core, capability)
    needs, command = remedy(loader, core, capability)
    chosen = loader.choose(capability)
    target = None if chosen is None else chosen[1]
    both = [each for each in (target, needs) if each is not None]
    in_use = target is not None and best_target(loader.library, capability, both) == target
    return Served(
        capability=capability,
        target=target,
        plugin=None if chosen is None else text(loader.candidate(chosen[0]).path),
        native=target is not None and target.startswith("sm_"),
        needs=needs,
        command=None if in_use else command,
    )
