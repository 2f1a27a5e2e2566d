"""Checks before publication: everything that keeps a folder from being a release, all at once.

A release, built or split, must pass its own checks, match its report and manifest, have every
kernel in every plugin, have descriptions that an index takes, and install with pip and uv.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from archsplit.errors import ArchsplitError, InputError, VerifyError
from archsplit.release.checks import verify_build
from archsplit.release.findings import DescriptionCheck, ReleaseKind, finding
from archsplit.release.identity import IDENTITY_FILE as IDENTITY
from archsplit.release.identity import LOADER_PACKAGE
from archsplit.release.install_test import Installer
from archsplit.release.kernel_coverage import gaps, plugin_kernels, split_kernels
from archsplit.release.list_checks import manifest_faults, wheels_in
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.release.split_checks import verify_split
from archsplit.release.split_read import is_split, read_split, read_wheels
from archsplit.release.wheel_checks import pin_faults
from archsplit.system.fs import temporary_dir
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.kernel_coverage import KernelCoverage
    from archsplit.system.finding import Finding
    from archsplit.wheels.reader import Wheel


_T = TypeVar("_T")
_Known = tuple[str, str, str]
"""A release's project, version and build id."""

_IDENTITY = f"/{LOADER_PACKAGE}/{IDENTITY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a release check.

    Attributes:
        allowed: patterns of kernels that may be missing for some targets.
        install: let pip and uv install the release, each into its own environment.
    """

    allowed: tuple[str, ...] = ()
    install: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a release check.

    Attributes:
        wheels: sorted by file name.
        kernels: their number, each in every plugin that must have it.
        installed: the programs that installed the release.
        notes: remarks about checks that were not possible.
    """

    project: str
    version: str
    build_id: str
    wheels: tuple[str, ...]
    kernels: int
    installed: tuple[str, ...]
    notes: tuple[str, ...]


def check_release(
    folder: Path,
    effects: Effects,
    demands: Requirements,
    *,
    describe: Callable[[Sequence[Path]], DescriptionCheck],
) -> CheckResult:
    """Check a folder that is to be published.

    Args:
        describe: checks the descriptions of wheels, as an index would.

    Raises:
        VerifyError: lists every finding, and what to do about each.
        InputError: there is no wheel.
    """
    split = folder.is_dir() and is_split(folder)
    kind = ReleaseKind.SPLIT if split else ReleaseKind.BUILT
    check = _Check(
        folder=folder, effects=effects, demands=demands, kind=kind, findings=[], describe=describe
    )
    return check.verdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """A check of one folder, with the findings so far."""

    folder: Path
    effects: Effects
    demands: Requirements
    kind: ReleaseKind
    findings: list[Finding]
    describe: Callable[[Sequence[Path]], DescriptionCheck]

    def verdict(self) -> CheckResult:
        split = self.kind is ReleaseKind.SPLIT
        known = self._tried(self._as_split if split else self._as_built)
        self.findings.extend(manifest_faults(self.folder, self.kind))
        described = self._tried(lambda: self.describe(wheels_in(self.folder)))
        descriptions = described or DescriptionCheck()
        self.findings.extend(
            finding(self.kind, "bad-description", file, text) for file, text in descriptions.faults
        )
        with temporary_dir() as scratch:
            reading = split_kernels if split else plugin_kernels
            kernels = self._tried(lambda: reading(self.folder, scratch))
        if kernels is not None:
            self.findings.extend(gaps(kernels.found, self.demands.allowed, self.kind))
        if self.demands.install:
            self.findings.extend(self._install_faults())
        if self.findings or known is None or kernels is None:
            found = tuple(dict.fromkeys(self.findings))
            raise VerifyError(f"{self.folder} is not a release to publish:", findings=found)
        return CheckResult(
            project=known[0],
            version=known[1],
            build_id=known[2],
            wheels=tuple(path.name for path in wheels_in(self.folder)),
            kernels=len(frozenset().union(*kernels.found.values())),
            installed=("pip", "uv") if self.demands.install else (),
            notes=(*_notes(self.folder, kernels), *descriptions.warnings),
        )

    def _tried(self, read: Callable[[], _T]) -> _T | None:
        """Return the result of reading, or None after adding the errors to the findings."""
        try:
            return read()
        except VerifyError as error:
            self.findings.extend(error.findings or (self._unreadable(error),))
        except InputError:
            raise
        except ArchsplitError as error:
            self.findings.append(self._unreadable(error))
        return None

    def _unreadable(self, error: ArchsplitError) -> Finding:
        return finding(self.kind, "unreadable", "", error.message)

    def _as_built(self) -> _Known:
        identity = verify_build(self.folder, self.effects).identity
        return identity.package, identity.version, identity.build_id

    def _as_split(self) -> _Known:
        with temporary_dir() as scratch:
            self._tried(lambda: self._pins(scratch))
        release = verify_split(self.folder)
        return release.package, release.version, release.build_id

    def _pins(self, scratch: Path) -> None:
        core, packs = read_split(self.folder, scratch)
        with open_wheel(core.path, same_tags=False) as wheel:
            metadata = wheel.metadata()
        here = [WheelName.parse(pack.path.name).project for pack in packs]
        self.findings.extend(pin_faults(core.path.name, metadata, core.identity, here))

    def _install_faults(self) -> list[Finding]:
        core = _core_of(self.folder)
        if core is None:
            found = "no wheel is a core that can be read, so nothing was installed"
            return [finding(self.kind, "not-installed", str(self.folder), found)]
        with temporary_dir() as scratch:
            installer = Installer(
                runner=self.effects.runner,
                scratch=scratch,
                environment=self.effects.environment,
                kind=self.kind,
            )
            return list(installer.faults(self.folder, core=core))


def _core_of(folder: Path) -> str | None:
    """Return the distribution of the core in a folder."""
    names = read_wheels(folder, _core_name).values()
    return next(filter(None, names), None)


def _core_name(wheel: Wheel) -> str | None:
    is_core = any(name.endswith(_IDENTITY) for name in wheel.names)
    return wheel.name.project if is_core else None


def _notes(folder: Path, kernels: KernelCoverage) -> Iterator[str]:
    if not (folder / MANIFEST_FILE).exists():
        yield f"there is no {MANIFEST_FILE} to hold the wheels against"
    if kernels.unread:
        yield f"{len(kernels.unread)} images were not read for kernels: {kernels.unread[0]}"
