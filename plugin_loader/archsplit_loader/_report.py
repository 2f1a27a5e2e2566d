"""An explanation as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._explanation import Explanation
    from ._records import Candidate, Device, Known, LoadedLibrary, Served


def render(explanation: Explanation) -> str:
    """The whole explanation, one fact a line, without control characters."""
    return "\n".join(map(_escaped, _lines(explanation)))


def _escaped(line: str) -> str:
    """Names of files may have any character, also those that terminals obey."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )


def _lines(explanation: Explanation) -> Iterator[str]:
    yield f"core: {explanation.package} {explanation.version}, build {explanation.build_id[:16]}"
    yield _driver(explanation)
    for note in explanation.notes:
        yield f"note: {note}"
    for device in explanation.devices:
        yield from _device(device)
    yield from _plugins(explanation.candidates)
    yield from _libraries(explanation.libraries)
    if not explanation.devices:
        yield from _known(explanation.known)
    yield f"verdict: {_verdict(explanation)}"


def _driver(explanation: Explanation) -> str:
    driver = explanation.driver
    if driver.state != "ready":
        return f"driver: {driver.reason}"
    return f"driver: {driver.version or 'unknown'}, for CUDA up to {driver.cuda or '(unknown)'}"


def _device(device: Device) -> Iterator[str]:
    served = device.served
    yield f"device {device.number}: {device.name}, capability {served.capability}, {device.uuid}"
    if served.target is not None:
        how = "" if served.native else ", compiled by the driver when it is first used"
        yield f"  served by {served.plugin} ({served.target}{how})"
    elif served.needs is None:
        yield "  not served: this release has no plugin for it"
    else:
        yield f"  not served: needs the plugin for {served.needs}"
    if served.command is not None:
        yield f"  {_purpose(served)}: {served.command}"
    if served.restart:
        yield "  start this process again: a pack was installed after it loaded its libraries"


def _libraries(libraries: tuple[LoadedLibrary, ...]) -> Iterator[str]:
    """What was put under the libraries that this process has loaded."""
    if libraries:
        yield "libraries in this process:"
    for each in libraries:
        unmatched = f", {each.unmatched} unmatched" if each.unmatched else ""
        targets = f" ({', '.join(each.targets)})" if each.targets else ""
        served = f"{each.served} of {each.containers} containers served"
        yield f"  {each.name}: {served}{targets}{unmatched}"


def _purpose(served: Served) -> str:
    return "to mend it" if served.target is None else f"better, with {served.needs}"


def _plugins(candidates: tuple[Candidate, ...]) -> Iterator[str]:
    yield "plugins:" if candidates else "plugins: none is installed"
    for each in candidates:
        yield f"  {each.verdict}: {each.path}"
        if each.package:
            yield (
                f"    {each.package} {each.version} for {', '.join(each.targets)},"
                f" built with CUDA {each.cuda or '(unknown)'}"
            )
        if each.reason:
            yield f"    it {each.reason}"


def _known(known: tuple[Known, ...]) -> Iterator[str]:
    """What each published capability would get: installed, or from a command."""
    yield "what would serve which GPU:"
    for each in known:
        served = each.served
        what = served.target or served.needs
        if what is not None:
            state = "installed" if served.target else served.command or "needs a newer driver"
            better = f"; better: {served.command}" if served.target and served.command else ""
            yield f"  {served.capability:<5} {each.gpus:<34} {what:<12} {state}{better}"


def _verdict(explanation: Explanation) -> str:
    devices = explanation.devices
    if not devices:
        fine = "no GPU here, and nothing that is installed is wrong"
        return fine if explanation.healthy else "no GPU can be used here, and something is wrong"
    served = sum(device.served.target is not None for device in devices)
    return f"{served} of {len(devices)} devices served"
