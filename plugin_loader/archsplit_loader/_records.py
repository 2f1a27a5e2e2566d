"""The records that an explanation is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """What asking NVML came to.

    Attributes:
        state: ``ready``, ``missing``, ``no-gpu``, ``all-hidden`` or ``failed``.
        reason: why it is not ready, or empty.
        version: of the driver, or empty.
        cuda: the newest CUDA that the driver supports, as ``13.0``, or None when it is not known.
    """

    state: str
    reason: str
    version: str
    cuda: str | None


@dataclass(frozen=True)
class Candidate:
    """A file that may be a plugin, and what became of it.

    Attributes:
        verdict: ``accepted``, ``shadowed``, or a refusal such as ``wrong-version``.
        reason: found against expected, and what to do; empty when accepted.
        package, version, targets, cuda: as the file says; empty or None where it can't be read.
    """

    path: str
    verdict: str
    reason: str
    package: str
    version: str
    targets: tuple[str, ...]
    cuda: str | None


@dataclass(frozen=True)
class Containers:
    """How many containers find machine code, that of an older minor capability, PTX, nothing."""

    native: int
    older_minor: int
    ptx: int
    missing: int


@dataclass(frozen=True)
class Served:
    """What serves one capability.

    Attributes:
        target: of the installed plugin that serves it, or None.
        plugin: that plugin's file, or None.
        native: whether the target is SASS for it; PTX is compiled when it is first used.
        needs: the core's target that would serve it best, or None where the core has none.
        command: what installs or mends that one, or None when it is in use or can't be helped.
        containers: of a split core: how its containers of kernels are served; ``target`` says it
            in words then, and ``needs`` has the names of packs.
        restart: packs came after this process loaded a library of the core, so that only a new
            process has them.
    """

    capability: str
    target: str | None
    plugin: str | None
    native: bool
    needs: str | None
    command: str | None
    containers: Containers | None = None
    restart: bool = False


@dataclass(frozen=True)
class LoadedLibrary:
    """A library of a split core in this process, and what was put under it when it was loaded.

    Attributes:
        name: its place in the core's wheel.
        containers: how many it has.
        served: how many of them found device code.
        unmatched: how many are not where the core's table has them.
        targets: of the device code.
    """

    name: str
    containers: int
    served: int
    unmatched: int
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """A GPU (or MIG instance) that CUDA shows to this process, under CUDA's number."""

    number: int
    name: str
    uuid: str
    pci_bus_id: str
    nvml_index: int
    served: Served


@dataclass(frozen=True)
class Known:
    """A published capability, with examples of GPUs."""

    gpus: str
    served: Served
