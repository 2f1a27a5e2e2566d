"""The report of a release: the file beside its wheels that later steps read.

A release has one core, plugins and sometimes a meta wheel, whether a recipe was built or a fat
wheel was split. A build's plugins are libraries, a split's are device packs. The file has one
schema for both: JSON with a schema number and one row per wheel. If the plugins of a build are
built one after the other into one folder, their lists are joined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from archsplit.devicecode.partition import UNUSED_PACKS
from archsplit.errors import BudgetError, InputError, OutputError
from archsplit.release.identity import ReleaseKind
from archsplit.system.fs import read_file
from archsplit.system.schema import schema_faults, type_adapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from archsplit.recipe.policy import Policy

__pure__ = True

_Listing = TypeVar("_Listing")


class Listed(Protocol):
    """A row of a list of wheels."""

    @property
    def file(self) -> str:
        """File name of the wheel, in the folder of the list."""


_Wheel = TypeVar("_Wheel", bound=Listed)


def merge_listings(
    wheels: Sequence[_Wheel], earlier: Sequence[_Wheel], folder: Path
) -> tuple[_Wheel, ...]:
    """Return the new wheels and the earlier ones that still exist, sorted by name."""
    # A wheel that was deleted on purpose must not come back as a missing file.
    kept = {wheel.file: wheel for wheel in earlier if (folder / wheel.file).exists()}
    listed = kept | {wheel.file: wheel for wheel in wheels}
    return tuple(listed[name] for name in sorted(listed))


def read_listing(path: Path, kind: type[_Listing], *, schema: int, what: str) -> _Listing:
    """Read the file of a list.

    Args:
        what: the kind of list for messages, as in "a release's report".

    Raises:
        InputError: the file can't be read, has another schema, or a field is missing or wrong.
    """
    from pydantic import ValidationError  # noqa: PLC0415 (0.1 s, not for other commands)

    try:
        fields = type_adapter(dict[str, object]).validate_json(read_file(path))
        found = fields.pop("schema", None)
        # A newer schema may have moved a field, so nothing is guessed.
        if found != schema:
            raise InputError(f"{path} has schema {found}, expected {schema}")
        return type_adapter(kind).validate_python(fields)
    except ValidationError as error:
        raise InputError(f"{path} is not {what}: {schema_faults(error)}") from None


REPORT_SCHEMA = 2
REPORT_FILE = "archsplit-report.json"

Role = Literal["core", "plugin", "meta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Device code of a plugin wheel.

    Attributes:
        kind: a ``library`` for one target, or a ``pack`` of images.
        name: the target, ``sm_90``, or the name of the pack, ``cc90``.
        targets: of the device code, sorted.
        serves: the capabilities of GPUs that need no other pack.
    """

    kind: Literal["library", "pack"]
    name: str
    targets: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """Targets, or the capabilities, for which a user asks for this plugin."""
        return self.targets if self.kind == "library" else self.serves


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWheel:
    """A wheel of a release.

    Attributes:
        file: its name in the folder of the report.
        size: bytes.
        sha256: of the file, 64 hexadecimal digits.
        role: as the report has it, unchecked.
        distribution: the project's name on an index.
        plugin: for a plugin wheel.
    """

    file: str
    size: int
    sha256: str
    role: Role
    distribution: str
    plugin: Plugin | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        """Targets or capabilities of the plugin; empty for other wheels."""
        return () if self.plugin is None else self.plugin.gpus

    @property
    def label(self) -> str:
        """Plugin's name, or the role."""
        return self.role if self.plugin is None else self.plugin.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLibrary:
    """A library that was split: its size before and after, and its containers.

    Attributes:
        core: the core's file.
    """

    name: str
    size_before: int
    size_after: int
    containers: int
    notes: tuple[str, ...]
    core: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmovedCode:
    """Device code that a split left in place.

    Attributes:
        name: the member of the wheel.
        images: their number; 0 if the code can't be read.
        size: of the images, in bytes.
        why: the obstacle.
        core: the core's file.
    """

    name: str
    images: int
    size: int
    why: str
    core: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSource:
    """A fat wheel or library, and the file of its core."""

    core: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDetails:
    """Part of a report that only a build has.

    Attributes:
        epoch: the time of all members, in seconds since 1970.
        targets: all of the recipe's, built now or not.
    """

    epoch: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDetails:
    """Part of a report that only a split has.

    Attributes:
        sources: the fat wheels or libraries, one for each core.
        needs: the packs that each capability needs.
        unmoved: device code that could not be moved.
        notes: repaired faults of a fat wheel, after the core's file and a colon.
    """

    sources: tuple[SplitSource, ...]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    libraries: tuple[SplitLibrary, ...] = ()
    unmoved: tuple[UnmovedCode, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release, as far as it is the same on every machine: no path, no time, no user.

    Attributes:
        project: the core's distribution.
        version: of all wheels.
        build_id: 64 hexadecimal digits, also in the core and in every plugin.
        interface_hash: the same.
        wheels: sorted by file name if several folders were merged.
        build: None for a split.
        split: None for a build.
    """

    project: str
    version: str
    build_id: str
    interface_hash: str
    wheels: tuple[ReleaseWheel, ...]
    build: BuildDetails | None = None
    split: SplitDetails | None = None

    @property
    def kind(self) -> ReleaseKind:
        """Command that wrote the wheels."""
        return ReleaseKind.BUILT if self.split is None else ReleaseKind.SPLIT

    @property
    def core(self) -> ReleaseWheel | None:
        """First core; None if the folder has only plugins."""
        return next(iter(self.cores), None)

    @property
    def cores(self) -> tuple[ReleaseWheel, ...]:
        """Cores: one for each Python and platform."""
        return tuple(wheel for wheel in self.wheels if wheel.role == "core")

    @property
    def plugins(self) -> tuple[ReleaseWheel, ...]:
        """Plugin wheels."""
        return tuple(wheel for wheel in self.wheels if wheel.role == "plugin")

    @property
    def published(self) -> tuple[ReleaseWheel, ...]:
        """Wheels for an index: all but packs that only `archsplit join` reads."""
        return tuple(wheel for wheel in self.wheels if wheel.label not in UNUSED_PACKS)

    def together_with(self, folder: Path) -> Release:
        """Return this release with the wheels of an earlier report of the same build.

        So the plugins of one release may be built one after the other, each by itself.

        Args:
            folder: the output folder. A wheel that is no longer there is left out.

        Raises:
            InputError: the folder has a report that can't be read.
        """
        earlier = find_report(folder)
        # Wheels of another build or version don't fit this core.
        own = (self.build_id, self.version)
        if earlier is None or (earlier.build_id, earlier.version) != own:
            return self
        return replace(self, wheels=merge_listings(self.wheels, earlier.wheels, folder))

    def check_budget(self, policy: Policy, name: str) -> None:
        """Refuse wheels beyond the limits of a policy.

        Raises:
            BudgetError: names all of them.
        """
        sizes = {f"{wheel.file} ({wheel.label})": wheel.size for wheel in self.wheels}
        if findings := list(policy.exceeded(sizes)):
            raise BudgetError(
                "\n  ".join([f"the wheels of policy {name} are too big:", *findings]),
                hint="`archsplit advise` says which targets fit; or raise the limit in the recipe",
            )

    def as_json(self) -> str:
        """Return the text of the file: sorted keys, one final newline."""
        content: Mapping[str, object] = {"schema": REPORT_SCHEMA, **asdict(self)}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def find_report(folder: Path) -> Release | None:
    """Read the report in a folder; None if there is none.

    Raises:
        InputError: the report can't be read.
    """
    path = folder / REPORT_FILE
    return read_report(path) if path.exists() else None


def read_report(path: Path) -> Release:
    """Read a report.

    Raises:
        InputError: the file can't be read, or is not a report.
    """
    return read_listing(path, Release, schema=REPORT_SCHEMA, what="a release's report")


def require_report(folder: Path) -> Release:
    """Read the report in a folder.

    Raises:
        InputError: there is none, or it can't be read.
    """
    release = find_report(folder)
    if release is None:
        if any(folder.glob("*.whl")):
            raise InputError(
                f"{folder} has wheels and no {REPORT_FILE} (pip writes none), so it is unknown"
                " which wheels are one release, and the core has no digests of its plugins",
                hint="archsplit split WHEEL --release --out DIR, or archsplit build, writes one",
            )
        raise InputError(
            f"{folder} has no {REPORT_FILE}",
            hint="give the folders that archsplit build or archsplit split wrote to",
        )
    return release


def releases_by_build(reports: Iterable[Release]) -> dict[str, Release]:
    """Return the release of each build id, with the wheels of all its parts."""
    releases: dict[str, Release] = {}
    for report in reports:
        first = releases.setdefault(report.build_id, report)
        wheels = tuple(dict.fromkeys((*first.wheels, *report.wheels)))
        releases[report.build_id] = replace(first, wheels=wheels)
    return releases


def refuse_other_release(folder: Path, build_id: str) -> None:
    """Refuse an output folder with the wheels of another release.

    Packs of two splits in one folder look like one release, and each core refuses the other's.

    Raises:
        OutputError: the folder has one.
        InputError: its report can't be read.
    """
    earlier = find_report(folder)
    # An equal build id is the same release, written again.
    if earlier is not None and earlier.build_id != build_id:
        of_split = None if earlier.split is None else f"split of {earlier.split.sources[0].file}"
        raise OutputError(
            f"{folder} already has a different {of_split or f'release of {earlier.project}'}",
            hint=f"use another --out, or remove {folder}",
        )
