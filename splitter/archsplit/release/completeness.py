"""Checks before publication: everything that keeps a folder from being a release, all at once.

A release, built or split, must pass its own checks, match its report and manifest, have every
kernel in every plugin, have descriptions that an index takes, and install with pip and uv.

Kernels are compared between plugins, or between groups of GPUs with the same packs. Their names
are compared without the parts that differ between compilations of one source.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability, CodeKind
from archsplit.devicecode.edits import decompress
from archsplit.devicecode.kernels import find_demangler, readable_name, stable_name
from archsplit.devicecode.partition import REST_PACK
from archsplit.devicecode.scan import release_pages
from archsplit.errors import BinaryFormatError, InputError, ToolFailedError, VerifyError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers, read_entry
from archsplit.formats.reader import Window, open_file
from archsplit.release.checks import CheckScope
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.install_test import Installer
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.release.matrix import find_holes, hole_texts, matrix_text, release_matrix
from archsplit.release.report import find_report
from archsplit.release.verify import manifest_faults, open_tag_judge, verify_wheel_set
from archsplit.release.wheel_set import read_wheel_set, wheels_in
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.formats.device_pack import Pack, PackImage
    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.release.context import Effects
    from archsplit.release.findings import DescriptionCheck
    from archsplit.release.matrix import Cell
    from archsplit.release.wheel_set import WheelSet
    from archsplit.system.finding import Finding

Names = frozenset[str]

_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
_SHOWN = 5

_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCoverage:
    """The kernels of each wheel or group of GPUs.

    Attributes:
        found: the kernels by file name of the wheel, for packs with the capabilities of the GPUs.
        unread: a message for each image that could not be read.
    """

    found: Mapping[str, Names] = field(repr=False)
    unread: tuple[str, ...] = ()


def kernels_of_entry(window: Window, entry: FatbinEntry) -> Names:
    """Return the kernels of an image; empty if the image is neither machine code nor PTX.

    The names lack the parts that differ between two compilations of one source.

    Args:
        window: the file with the entry.
        entry: the header of the image.

    Raises:
        BinaryFormatError: the image can't be unpacked, or is damaged.
    """
    # LTO IR and other intermediate code have no kernels by name.
    if entry.target is None:
        return frozenset()
    payload = window.at(entry.payload_offset, entry.payload_size, "payload")
    content = decompress(entry, payload)
    if entry.target.kind is CodeKind.PTX:
        names = {match[1].decode() for match in _PTX_ENTRY.finditer(content)}
    else:
        cubin = Cubin(Window(content, source=f"{window.source}, image at {entry.offset:#x}"))
        names = {kernel.name for kernel in cubin.kernels()}
    return frozenset(map(stable_name, names))


class Reader:
    """Reader of the kernels of images; equal images are read once.

    Attributes:
        unread: a message for each image that could not be read.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._cached: dict[bytes, Names] = {}

    def image(self, window: Window, digest: bytes) -> Names:
        """Return the kernels of a window with a single image."""
        # Packs share images, and decompression is most of the time.
        if digest not in self._cached:
            self._cached[digest] = self._read(window, lambda: read_entry(window, 0))
        return self._cached[digest]

    def entry(self, window: Window, entry: FatbinEntry) -> Names:
        """Return the kernels of an entry; empty, with a line in `unread`, if it is unreadable."""
        return self._read(window, lambda: entry)

    def _read(self, window: Window, find_entry: Callable[[], FatbinEntry]) -> Names:
        try:
            return kernels_of_entry(window, find_entry())
        # An unreadable image is a remark and not a fault: newer toolkits have newer formats.
        except BinaryFormatError as error:
            self.unread.append(str(error))
            return frozenset()


def kernel_faults(
    found: Mapping[str, Names], allowed: tuple[str, ...], kind: ReleaseKind = ReleaseKind.BUILT
) -> Iterator[Finding]:
    """Find wheels that lack kernels of other wheels.

    Args:
        found: the kernels by wheel, see `KernelCoverage`.
        allowed: patterns of kernels that may be missing, mangled or readable.
    """
    everything = frozenset().union(*found.values())
    demangle = find_demangler()
    shown = {name: readable_name(name, demangle) for name in everything}
    required = {name for name in everything if not _is_allowed((name, shown[name]), allowed)}
    files_by_missing: dict[Names, list[str]] = defaultdict(list)
    for file, names in found.items():
        files_by_missing[frozenset(required - names)].append(file)
    # One finding for all wheels that lack the same kernels: a forgotten source lacks them all.
    for missing, files in sorted(files_by_missing.items(), key=lambda pair: pair[1]):
        if not missing:
            continue
        others = [file for file, names in found.items() if missing & names]
        first = ", ".join(sorted(shown[name] for name in missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        text = f"no {first}{more}, which {_first_of(others)} has"
        yield finding(kind, "missing-kernel", ", ".join(files), text)


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} others)"


def _is_allowed(spellings: tuple[str, str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in spellings for pattern in patterns)


def read_coverage(release: WheelSet) -> KernelCoverage:
    """Return the kernels of each plugin library, or of GPUs with the same packs."""
    reader = Reader()
    kernels = _library_kernels if release.kind is ReleaseKind.BUILT else _pack_kernels
    # A core of several finds its images among those packs that an installer takes for it.
    found = {
        f"{view.cores[0].file}: {name}" if len(release.cores) > 1 else name: each
        for view in release.views
        for name, each in kernels(view, reader)
    }
    return KernelCoverage(found=found, unread=tuple(reader.unread))


def _library_kernels(release: WheelSet, reader: Reader) -> Iterator[tuple[str, Names]]:
    for wheel in release.plugins.values():
        libraries = [_in_library(open_file(path), reader) for path in wheel.unpacked.values()]
        yield wheel.file, frozenset().union(*libraries)


def _in_library(window: Window, reader: Reader) -> Names:
    kernels = [
        reader.entry(window, entry)
        for _, container in host_containers(Elf(window))
        for entry in container.entries()
    ]
    # A library may have gigabytes; its pages would push others out of memory.
    release_pages(window)
    return frozenset().union(*kernels)


def _pack_kernels(release: WheelSet, reader: Reader) -> Iterator[tuple[str, Names]]:
    """Yield the kernels that GPUs select from their packs, container by container."""
    table = release.cores[0].pack if len(release.cores) == 1 else None
    # A finding about the core exists already.
    if table is None or release.identity is None:
        return
    needs = release.identity.needs
    packs = {
        name: (wheel.file, wheel.pack)
        for name, wheel in release.plugins.items()
        if wheel.pack is not None
    }
    for names, capabilities in _groups(needs).items():
        here = [packs[name] for name in packs if name in names]
        wheels = ", ".join(file for file, _ in here)
        gpus_by_kernels = _select_kernels(table, [pack for _, pack in here], capabilities, reader)
        for each, gpus in gpus_by_kernels.items():
            yield f"{wheels} (GPUs of {', '.join(gpus)})", each
    for name, (file, pack) in packs.items():
        # A pack that no known GPU needs: PTX for future GPUs.
        if name != REST_PACK and not any(name in names for names in needs.values()):
            kernels = [reader.image(pack.content(one), one.digest) for _, one in pack.images()]
            yield file, frozenset().union(*kernels)


def _select_kernels(
    table: Pack, packs: Sequence[Pack], capabilities: Iterable[str], reader: Reader
) -> Mapping[Names, list[str]]:
    """Return the capabilities of the GPUs by the kernels that they select from some packs."""
    images = {
        key: (pack.content(image), image) for pack in packs for key, image in pack.images_in(table)
    }
    gpus_by_kernels: dict[Names, list[str]] = {}
    for capability in capabilities:
        selected = _select_images(table, images, Capability.parse(capability))
        kernels = [reader.image(window, image.digest) for window, image in selected]
        gpus_by_kernels.setdefault(frozenset().union(*kernels), []).append(capability)
    return gpus_by_kernels


def _groups(needs: Mapping[str, tuple[str, ...]]) -> Mapping[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for capability, names in needs.items():
        groups.setdefault(tuple(names), []).append(capability)
    return groups


def _select_images(
    table: Pack, images: Mapping[_Key, tuple[Window, PackImage]], capability: Capability
) -> list[tuple[Window, PackImage]]:
    """Return the image of each container that a GPU selects."""
    containers: dict[tuple[int, int], list[tuple[_Key, PackImage]]] = {}
    for key, image in table.images():
        containers.setdefault(key[:2], []).append((key, image))
    selected = []
    for listed in containers.values():
        # As the driver chooses: only the selected image has to have the kernels.
        best = best_target(capability, {image.target for _, image in listed})
        selected += [images[key] for key, image in listed if image.target == best and key in images]
    return selected


if TYPE_CHECKING:
    Describe = Callable[[Sequence[Path]], DescriptionCheck]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a release check.

    Attributes:
        allowed: patterns of kernels that may be missing for some targets.
        install: let pip and uv install the release, each into its own environment.
        without: patterns of the cells that may be missing.
        scripts: also run each console script of the core with ``--help``.
        pythons: interpreters to install with, by path or version, beside those that are found.
    """

    allowed: tuple[str, ...] = ()
    install: bool = True
    without: tuple[str, ...] = ()
    scripts: bool = False
    pythons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a release check.

    Attributes:
        wheels: sorted by file name.
        kernels: their number, each in every plugin that must have it.
        installed: the programs that installed the release.
        sample: the Python and platform of each core that was installed.
        notes: remarks about checks that were not possible.
        cells: a row for each Python, platform and GPU; empty without a report.
        matrix: the same as a table.
    """

    project: str
    version: str
    build_id: str
    wheels: tuple[str, ...]
    kernels: int
    installed: tuple[str, ...]
    notes: tuple[str, ...]
    sample: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    matrix: str = ""


def check_release(
    folder: Path,
    effects: Effects,
    demands: Requirements,
    *,
    describe: Describe,
) -> CheckResult:
    """Check a folder that is to be published.

    Args:
        describe: checks the descriptions of wheels, as an index would.

    Raises:
        VerifyError: lists every finding, and what to do about each.
        InputError: there is no wheel.
    """
    unshown: list[str] = []
    sample: list[str] = []
    with temporary_dir() as scratch:
        judge = open_tag_judge(effects, scratch)
        release = read_wheel_set(folder, scratch, platforms=judge.platforms)
        kernels = read_coverage(release)
        descriptions, warnings = _check_descriptions(release, describe)
        findings = [
            *_find_faults(release),
            *manifest_faults(folder, release.kind),
            *_holes(folder, release, demands),
            *descriptions,
            *kernel_faults(kernels.found, demands.allowed, release.kind),
            *(
                _install_faults(release, effects, scratch, demands, unshown, sample)
                if demands.install
                else ()
            ),
        ]
    if findings or release.identity is None:
        # Two checks may find the same fault.
        found = tuple(dict.fromkeys(findings))
        raise VerifyError(f"{folder} is not a release to publish:", findings=found)
    # A report that can't be read is a finding above.
    report = find_report(folder)
    cells = () if report is None else release_matrix(report)
    return CheckResult(
        cells=cells,
        matrix="" if report is None else matrix_text(report, cells),
        project=release.identity.package,
        version=release.identity.version,
        build_id=release.identity.build_id,
        wheels=tuple(wheel.file for wheel in release.wheels),
        kernels=len(frozenset().union(*kernels.found.values())),
        installed=("pip", "uv") if sample else (),
        sample=tuple(sample),
        notes=tuple(dict.fromkeys((*_notes(folder, kernels), *warnings, *unshown))),
    )


def _holes(folder: Path, release: WheelSet, demands: Requirements) -> Iterator[Finding]:
    """Find the cells of the release's matrix without wheels, as far as its report tells."""
    report = None
    with contextlib.suppress(InputError):
        report = find_report(folder)
    if report is not None:
        here = {path.name for path in wheels_in(folder)}
        # A wheel of the report that is missing here fills no cell.
        present = tuple(wheel for wheel in report.wheels if wheel.file in here)
        holes = find_holes(release_matrix(replace(report, wheels=present)), demands.without)
        for place, text in hole_texts(holes):
            yield release.fault("missing-cell", place, text, cell=f"'{place}:*'")


def _find_faults(release: WheelSet) -> tuple[Finding, ...]:
    try:
        verify_wheel_set(release, CheckScope(published=True))
    except VerifyError as error:
        return error.findings
    return ()


def _check_descriptions(
    release: WheelSet, describe: Describe
) -> tuple[list[Finding], tuple[str, ...]]:
    """Return the findings about descriptions, and the warnings."""
    # Wheels that can't be read have a finding already, and twine would stop at them.
    paths = [wheel.path for wheel in release.wheels]
    try:
        described = describe(paths)
    # A crash of twine is one more finding: the others are still of use.
    except ToolFailedError as error:
        return [release.fault("tool-failed", str(release.folder), error.message)], ()
    faults = [release.fault("bad-description", *each) for each in described.faults]
    return faults, described.warnings


def _install_faults(
    release: WheelSet,
    effects: Effects,
    scratch: Path,
    demands: Requirements,
    unshown: list[str],
    sample: list[str],
) -> Iterator[Finding]:
    # Without a common identity several cores are of several releases.
    if not release.cores or release.identity is None:
        found = "no wheel is a core that can be read, so nothing was installed"
        yield release.fault("not-installed", str(release.folder), found)
        return
    installer = Installer(
        runner=effects.runner,
        scratch=scratch,
        environment=effects.environment,
        release=release,
        scripts=demands.scripts,
        pythons=demands.pythons,
        notes=unshown,
        installed=sample,
    )
    yield from installer.faults()


def _notes(folder: Path, kernels: KernelCoverage) -> Iterator[str]:
    if not (folder / MANIFEST_FILE).exists():
        yield f"there is no {MANIFEST_FILE} to hold the wheels against"
    if kernels.unread:
        yield f"{len(kernels.unread)} images were not read for kernels: {kernels.unread[0]}"
