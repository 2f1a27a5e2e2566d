"""Checks before publication: everything that keeps a folder from being a release, all at once.

A release, built or split, must pass its own checks, match its report and manifest, and have
descriptions that an index takes. A built release must have every kernel in every plugin.
``publish``, ``publish --plan`` and ``verify --release`` run `release_findings`, so they agree; the
last one also installs the release with pip and uv.

A split has the kernels of its fat wheel, image by image, and that is checked for each GPU. Kernels
that some GPUs lack there were missing before, so they are notes. Names of kernels are compared
without the parts that differ between compilations of one source.
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
from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.kernels import find_demangler, readable_name, stable_name
from archsplit.errors import BinaryFormatError, InputError, ToolFailedError, VerifyError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers, read_entry
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import Window, open_file
from archsplit.release.checks import CheckScope, release_faults
from archsplit.release.device_checks import targets_by_container
from archsplit.release.findings import finding
from archsplit.release.identity import ReleaseKind
from archsplit.release.install_test import InstallTest, installers
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.release.matrix import hole_findings, matrix_text, release_matrix
from archsplit.release.report import REPORT_FILE, find_report
from archsplit.release.verify import field_faults, file_list_faults, tag_cache
from archsplit.release.wheel_set import read_wheel_set
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.release.context import Effects
    from archsplit.release.findings import DescriptionCheck
    from archsplit.release.matrix import Cell
    from archsplit.release.report import Release
    from archsplit.release.wheel_set import WheelSet
    from archsplit.system.finding import Finding

    Describe = Callable[[Sequence[Path]], DescriptionCheck]

Names = frozenset[str]

_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
_SHOWN = 5
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCoverage:
    """Kernels of each wheel or group of GPUs.

    Attributes:
        found: the kernels by file name of the wheel, or of a split by library.
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


class KernelReader:
    """Reader of the kernels of images; equal images are read once.

    Attributes:
        unread: a message for each image that could not be read.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._cached: dict[bytes, Names] = {}

    def read_image(self, window: Window, digest: bytes) -> Names:
        """Return the kernels of a window with a single image."""
        # Packs share images, and decompression is most of the time.
        if digest not in self._cached:
            self._cached[digest] = self.read_entry(window)
        return self._cached[digest]

    def read_entry(self, window: Window, entry: FatbinEntry | None = None) -> Names:
        """Return the kernels of an entry; empty, with a line in `unread`, if it is unreadable.

        Args:
            entry: None for the first one.
        """
        try:
            return kernels_of_entry(window, entry or read_entry(window, 0))
        # An unreadable image is a remark and not a fault: newer toolkits have newer formats.
        except BinaryFormatError as error:
            self.unread.append(str(error))
            return frozenset()


def kernel_faults(found: Mapping[str, Names], allowed: tuple[str, ...]) -> Iterator[Finding]:
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
        other, *further = [file for file, names in found.items() if missing & names]
        first = ", ".join(sorted(shown[name] for name in missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        others = f"{other} (and {len(further)} more)" if further else other
        text = f"no {first}{more}, which {others} has"
        yield finding("missing-kernel", ", ".join(files), text)


def _is_allowed(spellings: tuple[str, str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in spellings for pattern in patterns)


def read_coverage(release: WheelSet) -> KernelCoverage:
    """Return the kernels of each plugin library of a build."""
    reader = KernelReader()
    found = {
        f"{view.cores[0].file}: {name}" if len(release.cores) > 1 else name: each
        for view in release.views
        for name, each in _library_kernels(view, reader)
    }
    return KernelCoverage(found=found, unread=tuple(reader.unread))


def _library_kernels(release: WheelSet, reader: KernelReader) -> Iterator[tuple[str, Names]]:
    for wheel in release.plugins.values():
        libraries = [_in_library(open_file(path), reader) for path in wheel.unpacked.values()]
        yield wheel.file, frozenset().union(*libraries)


def _in_library(window: Window, reader: KernelReader) -> Names:
    kernels = [
        reader.read_entry(window, entry)
        for _, container in host_containers(Elf(window))
        for entry in container.entries()
    ]
    # A library may have gigabytes; its pages would push others out of memory.
    release_pages(window)
    return frozenset().union(*kernels)


def split_coverage(release: WheelSet) -> tuple[KernelCoverage, tuple[str, ...]]:
    """Return the kernels of each library of a split, and notes on gaps.

    A gap is a kernel that some of the GPUs have. The fat wheel has the same one, because each GPU
    selects the image that it selected there.
    """
    reader = KernelReader()
    found: dict[str, Names] = {}
    notes: list[str] = []
    for view in release.views:
        for library, by_gpu in _library_selections(view, reader).items():
            everything = frozenset().union(*by_gpu.values())
            found[library] = found.get(library, frozenset()) | everything
            notes += _gap_notes(library, everything, by_gpu)
    coverage = KernelCoverage(found=found, unread=tuple(reader.unread))
    # Cores of several Pythons often have the same libraries.
    return coverage, tuple(dict.fromkeys(notes))


def _library_selections(release: WheelSet, reader: KernelReader) -> dict[str, dict[str, Names]]:
    """Return the kernels that each GPU selects, by library and capability."""
    table = release.cores[0].pack if len(release.cores) == 1 else None
    # A finding about the core exists already.
    if table is None or release.identity is None:
        return {}
    packs = {name: wheel.pack for name, wheel in release.plugins.items() if wheel.pack is not None}
    found: dict[str, dict[str, Names]] = {}
    containers = targets_by_container(table)
    for capability, names in release.identity.needs.items():
        # A pack that is missing or damaged has a finding of its own.
        if not packs.keys() >= set(names):
            continue
        images = {
            key: (packs[name].content(image), image.digest)
            for name in names
            for key, image in packs[name].images_in(table)
        }
        for library in table.libraries:
            found.setdefault(library.name, {})[capability] = frozenset()
        for (number, _), (targets, keys) in containers.items():
            # As the driver chooses: only the selected image has to have the kernels.
            best = best_target(Capability.parse(capability), targets)
            selected = [images[key] for key in keys.get(best, ()) if key in images] if best else []
            kernels = [reader.read_image(*image) for image in selected]
            found[table.libraries[number].name][capability] |= frozenset().union(*kernels)
    return found


def _gap_notes(library: str, everything: Names, by_gpu: Mapping[str, Names]) -> Iterator[str]:
    gpus_by_missing: dict[Names, list[str]] = defaultdict(list)
    for capability, names in by_gpu.items():
        # GPUs without any code in a library never had one: the summary of the split has them.
        if names and (missing := everything - names):
            gpus_by_missing[missing].append(capability)
    if not gpus_by_missing:
        return
    demangle = find_demangler()
    counts = ", ".join(
        f"{len(missing)} for {', '.join(gpus)}" for missing, gpus in gpus_by_missing.items()
    )
    first = min(
        _short_name(readable_name(name, demangle)) for name in min(gpus_by_missing, key=len)
    )
    kernels = f"missing kernels, as in the fat wheel: of {len(everything)}, {counts}"
    yield f"{library}: {kernels}; one is {first}"


def _short_name(name: str) -> str:
    """Return the readable name of a kernel without its template arguments and parameters."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    plain = re.split(r"[<(]", plain, maxsplit=1)[0]
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of a release check.

    Attributes:
        allowed: patterns of kernels that may be missing for some targets.
        install: let pip and uv install the release, each into its own environment.
        without: patterns of the cells that may be missing.
        pythons: interpreters to install with, by path or version, beside those that are found.
    """

    allowed: tuple[str, ...] = ()
    install: bool = True
    without: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a release check.

    Attributes:
        wheels: sorted by file name.
        kind: "built" or "split".
        kernels: their number: of a build each in every plugin, of a split as in the fat wheel.
        installed: the programs that installed the release.
        sample: the Python and platform of each core that was installed.
        notes: remarks about checks that were not possible.
        cells: a row for each Python, platform and GPU; empty without a report.
        matrix: the same as a table.
    """

    project: str
    version: str
    build_id: str
    kind: str
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
    options: CheckOptions,
    *,
    describe: Describe,
) -> CheckResult:
    """Check a folder that is to be published.

    Args:
        describe: checks the descriptions of wheels, as an index would.

    Raises:
        VerifyError: lists every finding, and what to do about each.
        InputError: the folder has no wheel.
    """
    gaps: tuple[str, ...] = ()
    with temporary_dir() as scratch:
        tags = tag_cache(effects, scratch)
        release = read_wheel_set(folder, scratch, platforms=tags.platforms)
        report = None
        # A report that can't be read is a finding of another check.
        with contextlib.suppress(InputError):
            report = find_report(folder)
        checked = release_findings(release, report, options, describe)
        if release.kind is ReleaseKind.SPLIT:
            kernels, gaps = split_coverage(release)
        else:
            kernels = checked.kernels
        damaged = {one.subject for one in release.damaged}
        findings = [*folder_findings(folder, damaged), *checked.findings]
        test = InstallTest(
            runner=effects.runner,
            scratch=scratch,
            environment=effects.environment,
            release=release,
            pythons=options.pythons,
        )
        # An installer would only repeat that a wheel is damaged.
        if options.install and not release.damaged:
            findings += test.faults()
    if findings or release.identity is None:
        # Two checks may find the same fault.
        found = tuple(dict.fromkeys(findings))
        raise VerifyError(f"{folder} can't be published:", findings=found)
    # For mypy: a missing report is a finding.
    cells = () if report is None else release_matrix(report)
    return CheckResult(
        cells=cells,
        matrix="" if report is None else matrix_text(report, cells),
        project=release.identity.package,
        version=release.identity.version,
        build_id=release.identity.build_id,
        kind=release.kind.value,
        wheels=tuple(wheel.file for wheel in release.wheels),
        kernels=len(frozenset().union(*kernels.found.values())),
        installed=installers(effects.environment) if test.installed else (),
        sample=tuple(test.installed),
        notes=tuple(
            dict.fromkeys((*_unread_notes(kernels), *gaps, *checked.warnings, *test.notes))
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWheels:
    """Result of the checks of a set of wheels.

    Attributes:
        warnings: about descriptions that upstream wrote.
        kernels: of a build; empty for a split.
    """

    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    kernels: KernelCoverage


def release_findings(
    release: WheelSet, report: Release | None, options: CheckOptions, describe: Describe
) -> CheckedWheels:
    """Check all wheels of a release without an installation: the one list of checks."""
    kernels = KernelCoverage(found={})
    if release.kind is ReleaseKind.BUILT:
        kernels = read_coverage(release)
    descriptions, warnings = _check_descriptions(release, describe)
    faults = tuple(release_faults(release, CheckScope(published=True)))
    found = (
        *faults,
        *field_faults(release, REPORT_FILE, MANIFEST_FILE),
        *(() if report is None else _holes(report, release, options, {one.code for one in faults})),
        *descriptions,
        *kernel_faults(kernels.found, options.allowed),
    )
    return CheckedWheels(findings=found, warnings=warnings, kernels=kernels)


def folder_findings(folder: Path, damaged: Collection[str] = ()) -> Iterator[Finding]:
    """Compare a folder with its report and its manifest, which a release must have.

    Args:
        damaged: files that have a finding already.
    """
    for name in (REPORT_FILE, MANIFEST_FILE):
        if not (folder / name).exists():
            yield finding("missing-report", name, f"is not in {folder}")
    yield from file_list_faults(folder, REPORT_FILE, None, damaged)
    yield from file_list_faults(folder, MANIFEST_FILE)


def _holes(
    report: Release, release: WheelSet, options: CheckOptions, codes: Collection[str]
) -> Iterator[Finding]:
    """Find the cells of the release's matrix without wheels.

    Args:
        codes: of the wheels' findings; `missing-plugin` has those that a core lacks.
    """
    usable = {wheel.file for wheel in release.wheels} | {one.subject for one in release.damaged}
    # A wheel of the report that is missing here fills no cell.
    present = tuple(wheel for wheel in report.wheels if wheel.file in usable)
    for one in hole_findings(replace(report, wheels=present), options.without):
        if one.code == "missing-cell":
            yield one
        # The wheels are complete, so the report has wrong names.
        elif "missing-plugin" not in codes:
            yield finding("wrong-listing", REPORT_FILE, f"{one.subject}: {one.found}")


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
        return [finding("tool-failed", str(release.folder), error.message)], ()
    faults = [finding("bad-description", *each) for each in described.faults]
    return faults, described.warnings


def _unread_notes(kernels: KernelCoverage) -> Iterator[str]:
    if kernels.unread:
        yield f"images that were not read for kernels: {len(kernels.unread)}; {kernels.unread[0]}"
