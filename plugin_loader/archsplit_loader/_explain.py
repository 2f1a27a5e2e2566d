"""An explanation of the loader's decisions, as records, as text and as JSON.

In: a core and a loader that has searched its folders. Out: an `Explanation`: the driver, the GPUs,
each plugin with its verdict, and what each published capability would get. The doctor and
``explain()`` print it; ``require()`` judges it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._bindings import best_target, known_capabilities, text
from ._errors import PluginNotFoundError
from ._loader import DRIVER_STATES, Loader
from ._opening import remedy, start_loader
from ._reading import read_core
from ._safe_text import wrap_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._core import Core


@dataclass(frozen=True)
class Driver:
    """Driver as NVML or the kernel reports it.

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
    """Numbers of containers by the code that they find."""

    native: int
    older_minor: int
    ptx: int
    missing: int


@dataclass(frozen=True)
class ServedCapability:
    """Code that serves one capability.

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
    """A loaded library of a split core, with the images that the loader gave it.

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
    served: ServedCapability


@dataclass(frozen=True)
class PublishedCapability:
    """A published capability, with examples of GPUs."""

    gpus: str
    served: ServedCapability


EXPLANATION_SCHEMA = 1

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
    known: tuple[PublishedCapability, ...]
    notes: tuple[str, ...]
    libraries: tuple[LoadedLibrary, ...] = ()
    warnings: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def chosen(self) -> str | None:
        """Plugin that ``load()`` opens, or None."""
        return self.devices[0].served.plugin if self.devices else None

    @property
    def damaged(self) -> int:
        """Number of plugins with other bytes than the recorded ones."""
        return sum(each.verdict == "damaged" for each in self.candidates)

    @property
    def healthy(self) -> bool:
        """Every visible device is served; without a GPU, nothing that is installed is refused."""
        if self.damaged:
            return False
        if self.devices:
            return all(device.served.target for device in self.devices)
        refused = any(each.verdict not in _HARMLESS for each in self.candidates)
        return self.driver.state in _NO_GPU and not refused

    def as_json(self) -> str:
        """All of it for programs; ``schema`` changes when a field is renamed or removed."""
        content = {"schema": EXPLANATION_SCHEMA, "healthy": self.healthy, "chosen": self.chosen}
        return json.dumps({**content, **dataclasses.asdict(self)}, indent=2)

    def text(self) -> str:
        """All of it for people."""
        return render(self)


def explain_core(files: Sequence[str] | None = None, *, full: bool = False) -> Explanation:
    """Look at the core that this folder is in.

    Args:
        files: plugins to choose from, instead of the installed ones.
        full: read all of every plugin, and compare it with the recorded digests.

    Raises:
        PluginError: the core is damaged, or there are no digests for ``full``.
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
            candidates=tuple(_candidate(loader, n) for n in range(summary.candidate_count)),
            known=tuple(
                PublishedCapability(gpus=gpus, served=_served(loader, core, capability))
                for capability, gpus in known_capabilities(loader.library)
            ),
            notes=tuple(loader.note(n) for n in range(summary.note_count)),
            libraries=loaded_libraries(loader) if core.is_split else (),
        )


def _cuda(version: int) -> str | None:
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def _candidate(loader: Loader, index: int) -> Candidate:
    struct = loader.candidate(index)
    return Candidate(
        path=text(struct.path),
        verdict=loader.verdict(struct),
        reason=text(struct.reason),
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


def _served(loader: Loader, core: Core, capability: str) -> ServedCapability:
    if core.is_split:
        return served_by_packs(loader, core, capability)
    needs, command = remedy(loader, core, capability)
    chosen = loader.choose(capability)
    target = None if chosen is None else chosen[1]
    # A worse target may be installed than the core has: the command brings the better one.
    both = [each for each in (target, needs) if each is not None]
    in_use = target is not None and best_target(loader.library, capability, both) == target
    return ServedCapability(
        capability=capability,
        target=target,
        plugin=None if chosen is None else text(loader.candidate(chosen[0]).path),
        native=target is not None and target.startswith("sm_"),
        needs=needs,
        command=None if in_use else command,
    )


_SERVED, _UNMATCHED = 1, 2
"""Of ``archsplit_graft_state``."""


def served_by_packs(loader: Loader, core: Core, capability: str) -> ServedCapability:
    """Return the coverage of a capability by a split core."""
    found = loader.service(capability)
    counts = (found.native, found.older_minor, found.ptx)
    # A core without any code for this capability has nothing missing, but serves nothing.
    complete = found.missing == 0 and sum(counts) > 0
    in_use = complete and found.worse == 0
    return ServedCapability(
        capability=capability,
        target=_summary(*counts) if complete else None,
        plugin="device packs" if complete else None,
        native=complete and found.ptx == 0,
        needs=_pack_names(core, capability),
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
    """Return the command that installs what is missing; None if a restart helps."""
    from ._commands import pack_command  # noqa: PLC0415 (few need a command)

    # The wrappers are elsewhere: the library is not from this core, which packs can't mend.
    if found.unmatched:
        return f'pip install --force-reinstall --no-deps "{core.distribution}=={core.version}"'
    # The pack is installed already, so the command would change nothing.
    return None if found.late else pack_command(core, capability, loader.verdicts())


def loaded_libraries(loader: Loader) -> tuple[LoadedLibrary, ...]:
    """Return the libraries of a split core that this process has loaded."""
    found: dict[str, list[tuple[int, set[str]]]] = {}
    for each in loader.grafted():
        targets = {str(each.targets[n]) for n in range(each.target_count)}
        # The rows of one library come together, but a library may be loaded twice.
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


def _summary(native: int, older_minor: int, ptx: int) -> str:
    """Describe the coverage of containers in words."""
    counts = ((native, "native"), (older_minor, "of an older minor capability"), (ptx, "PTX"))
    return ", ".join(f"{_count(count, 'container')} {what}" for count, what in counts if count)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


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
                f"\nhint: {_hint(device.served)}"
            )


def _hint(served: ServedCapability) -> str:
    if served.restart and served.command is None:
        return "start this process again: a pack was installed after it loaded its libraries"
    return served.command or "this release has no code for it"


def _pack_names(core: Core, capability: str) -> str | None:
    """Return the names of the packs that a GPU needs, or None."""
    return " + ".join(core.packs_for(capability)) or None


def render(explanation: Explanation) -> str:
    """Return the whole explanation, one fact a line, without control characters."""
    return "\n".join(map(_escape, _lines(explanation)))


def _escape(line: str) -> str:
    """Names of files may have any character, also those that terminals obey."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )


def _lines(explanation: Explanation) -> Iterator[str]:
    yield f"core: {explanation.package} {explanation.version}, build {explanation.build_id[:16]}"
    yield _driver_line(explanation)
    yield from (f"  {note}" for note in explanation.notes)
    for device in explanation.devices:
        yield from _device_lines(device)
    yield from _plugin_lines(explanation.candidates)
    yield from _library_lines(explanation.libraries)
    # On a machine without a GPU, readers prepare an image for another one.
    if not explanation.devices:
        yield from _capability_lines(explanation.known)
    yield from (f"warning: {warning}" for warning in explanation.warnings)
    yield f"verdict: {_verdict(explanation)}"
    if explanation.hint is not None:
        yield f"hint: {explanation.hint}"


def _driver_line(explanation: Explanation) -> str:
    driver = explanation.driver
    # Without a driver its version is unknown; the reason is what helps.
    if driver.state != "ready":
        return f"driver: {driver.reason}"
    # A GPU that a variable stands for comes without a driver.
    cuda = f", for CUDA up to {driver.cuda}" if driver.cuda else ""
    return f"driver: {driver.version or 'unknown'}{cuda}"


def _device_lines(device: Device) -> Iterator[str]:
    served = device.served
    facts = (device.name, f"capability {served.capability}", device.uuid)
    yield f"device {device.number}: {', '.join(filter(None, facts))}"
    if served.target is not None:
        how = "" if served.native else ", compiled by the driver when it is first used"
        yield f"  served by {served.plugin} ({served.target}{how})"
    elif served.needs is None:
        yield "  not served: this release has no plugin for it"
    else:
        yield f"  not served: needs the plugin for {served.needs}"
    if served.command is not None:
        yield from wrap_command(f"  {_purpose(served)}: {served.command}")
    if served.restart:
        yield "  start this process again: a pack was installed after it loaded its libraries"


def _library_lines(libraries: tuple[LoadedLibrary, ...]) -> Iterator[str]:
    """Describe the images that the loaded libraries got."""
    if libraries:
        yield "libraries in this process:"
    for each in libraries:
        unmatched = f", {each.unmatched} unmatched" if each.unmatched else ""
        targets = f" ({', '.join(each.targets)})" if each.targets else ""
        served = f"{each.served} of {_count(each.containers, 'container')} served"
        yield f"  {each.name}: {served}{targets}{unmatched}"


def _purpose(served: ServedCapability) -> str:
    return "to fix it" if served.target is None else f"better, with {served.needs}"


def _plugin_lines(candidates: tuple[Candidate, ...]) -> Iterator[str]:
    yield "plugins:" if candidates else "plugins: none installed"
    for each in candidates:
        yield f"  {each.verdict}: {each.path}"
        if each.package:
            yield (
                f"    {each.package} {each.version} for {', '.join(each.targets)},"
                f" built with CUDA {each.cuda or '(unknown)'}"
            )
        if each.reason:
            yield f"    it {each.reason}"


def _capability_lines(known: tuple[PublishedCapability, ...]) -> Iterator[str]:
    """Describe the plugin of each published capability: installed, or its requirement."""
    commands = [each.served.command for each in known if each.served.command]
    # Most commands differ only in the requirement at their end.
    starts = [each.rpartition(" ")[0] for each in commands]
    start = max(starts, default="", key=starts.count)
    yield "plugins by GPU:"
    if start:
        yield from wrap_command(f"  to install one: {start} REQUIREMENT")
    for each in known:
        served = each.served
        what = served.target or served.needs
        if what is not None:
            command = (served.command or "").replace(f"{start} ", "", 1)
            state = "installed" if served.target else command or _state_text(served)
            better = f"; better: {command}" if served.target and command else ""
            yield f"  {served.capability:<5} {each.gpus:<34} {what:<12} {state}{better}"


def _state_text(served: ServedCapability) -> str:
    # A pack of a library that was loaded before is in its place, but not in this process.
    return "installed, for a new process" if served.restart else "needs a newer driver"


def _verdict(explanation: Explanation) -> str:
    devices = explanation.devices
    if not devices:
        fine = "no GPU here; the installed plugins are fine"
        return fine if explanation.healthy else "no GPU can be used here; see the messages above"
    served = sum(device.served.target is not None for device in devices)
    damaged = f"; damaged plugins: {explanation.damaged}" if explanation.damaged else ""
    return f"{served} of {_count(len(devices), 'device')} served{damaged}"
