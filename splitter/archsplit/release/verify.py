"""Read finished wheels again, and say everything that is not as promised.

Nothing is taken from the build but its files: targets are read from the binaries, pins from the
metadata, identities from the core and from each plugin's descriptor.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.library import read_library
from archsplit.errors import ArchsplitError, InputError, VerifyError
from archsplit.formats.elf_header import ELF_MAGIC
from archsplit.release.checks import WheelFacts, release_faults
from archsplit.release.findings import ReleaseKind, error_finding, finding
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE, parse_identity
from archsplit.release.reported import report_faults
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.errors import Finding
    from archsplit.release.identity import Identity
    from archsplit.wheels.reader import Wheel

_DEPTH = 2
"""``<package>/_archsplit/core.json``: how many folders deep a core's identity lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRelease:
    """What was checked: the core's identity, and each wheel's targets by file name."""

    identity: Identity
    wheels: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Reads wheels.

    Attributes:
        scratch: a folder for what has to be unpacked.
        platforms: the platform tags of libraries where those that are provided are there, by a
            judge that is not the one who wrote them.
    """

    scratch: Path
    platforms: Callable[[Mapping[str, Path], tuple[str, ...]], tuple[str, ...]]

    def verify(
        self,
        folder: Path,
        *,
        targets: tuple[Target, ...] | None = None,
        identity: Identity | None = None,
    ) -> CheckedRelease:
        """Check every wheel in a folder, one by one and against each other.

        Args:
            folder: holds the wheels of one release.
            targets: whose plugins must be there; None for all that the core names.
            identity: the core's, for a folder in which there is none.

        Raises:
            InputError: there is no wheel.
            VerifyError: lists every finding, sorted by wheel.
        """
        paths = _wheels_in(folder)
        findings: list[Finding] = []
        provided = _provided(paths, identity)
        seen = [one for path in paths if (one := self._seen(path, provided, findings)) is not None]
        cores = [one for one in seen if one.identity is not None]
        if len(cores) == 1:
            identity = cores[0].identity
        elif cores or identity is None:
            names = ", ".join(one.file for one in cores) or "none"
            found = f"one core is needed, and there is {names}"
            findings.append(finding(ReleaseKind.BUILT, "one-core", str(folder), found))
        wanted = None if targets is None else {str(target) for target in targets}
        findings += report_faults(folder, ReleaseKind.BUILT, wanted)
        if identity is not None:
            findings += release_faults(tuple(seen), identity, targets)
        if findings or identity is None:
            raise VerifyError("the wheels are not as promised:", findings=tuple(findings))
        return CheckedRelease(identity=identity, wheels={one.file: _held(one) for one in seen})

    def _seen(
        self, path: Path, provided: tuple[str, ...], findings: list[Finding]
    ) -> WheelFacts | None:
        try:
            with open_wheel(path) as wheel:
                wheel.check_contents()
                return self._read(wheel, provided)
        except ArchsplitError as error:
            findings.append(error_finding(ReleaseKind.BUILT, path.name, error))
            return None

    def _read(self, wheel: Wheel, provided: tuple[str, ...]) -> WheelFacts:
        own, licenses = f"{wheel.dist_info}/", f"{wheel.dist_info}/licenses/"
        members = tuple(name for name in wheel.names if not name.startswith(own))
        files: dict[str, Path] = {}
        for number, name in enumerate(members):
            if _is_elf(wheel, name):
                files[name] = self.scratch / f"{wheel.path.stem}.{number}.so"
                wheel.extract(name, files[name])
        return WheelFacts(
            file=wheel.path.name,
            name=wheel.name,
            purelib=wheel.info.purelib,
            metadata=wheel.metadata(),
            members=members,
            licenses=tuple(
                name.removeprefix(licenses) for name in wheel.names if name.startswith(licenses)
            ),
            identity=_identity(wheel, members),
            libraries={name: read_library(path) for name, path in files.items()},
            platforms=self.platforms(files, provided) if files else (),
        )


def _wheels_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="give the folder that build wrote to")
    paths = sorted(path for path in folder.glob("*.whl") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"no wheel in {folder}", hint="give the folder that build wrote to")
    return paths


def _provided(paths: list[Path], identity: Identity | None) -> tuple[str, ...]:
    """The libraries that something else brings; a wheel that can't be read is reported later."""
    identities = [] if identity is None else [identity]
    for path in paths:
        with suppress(ArchsplitError), open_wheel(path) as wheel:
            identities += filter(None, [_identity(wheel, wheel.names)])
    return tuple(name for one in identities for name in one.provided)


def _identity(wheel: Wheel, members: tuple[str, ...]) -> Identity | None:
    """Who a core is; None for every other wheel."""
    for name in members:
        if (
            PurePosixPath(name).match(f"*/{LOADER_PACKAGE}/{IDENTITY_FILE}")
            and name.count("/") == _DEPTH
        ):
            return parse_identity(wheel.read(name), where=name)
    return None


def _is_elf(wheel: Wheel, name: str) -> bool:
    with wheel.open(name) as stream:
        return stream.read(len(ELF_MAGIC)) == ELF_MAGIC


def _held(one: WheelFacts) -> tuple[str, ...]:
    held = [library.targets for library in one.libraries.values()]
    return tuple(map(str, sorted(set().union(*held))))
