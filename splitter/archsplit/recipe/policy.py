"""Tables ``[policy.<name>]``: smaller builds of the same recipe, such as nightlies.

A policy changes the targets and the version of a build, never nvcc's view of the sources: nvcc gets
all targets of the recipe, so device code is the same as a release's, and so is its key in the
compile cache.
"""

# ruff: noqa: TC003 (pydantic reads the annotations when it runs)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, TypeAdapter

from archsplit.arch.target import CodeKind, Target
from archsplit.errors import UsageError
from archsplit.recipe.values import (
    InvalidValue,
    Matching,
    Ptx,
    RecipeTable,
    Sass,
    TextValidator,
    Unique,
)
from archsplit.system.units import parse_size, short_size

__pure__ = True

POLICY_TABLE = "policy"
"""Table that the policies are in."""

_FIELDS = ("next", "date")
_SOME_DAY = "20260131"

PolicyName = Annotated[
    str, Matching(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", "a policy name, such as nightly")
]


def _template(text: str) -> str:
    try:
        names = [name for _, name, *_ in Formatter().parse(text) if name is not None]
    except ValueError:
        names = [""]
    if unknown := [name for name in names if name not in _FIELDS]:
        raise InvalidValue(
            f"{text!r} has a field {{{unknown[0]}}}",
            hint="there are {next}, the release after project.version, and {date}, as in 20261121",
        )
    return text


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise InvalidValue(f"must be text, not {value!r}", hint='write it like "100MB"')
    try:
        return parse_size(value)
    except UsageError as error:
        raise InvalidValue(error.args[0], hint=error.hint) from None


VersionTemplate = Annotated[str, AfterValidator(_template)]
SizeText = Annotated[int, TextValidator(_size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(RecipeTable):
    """A build with fewer targets than a release: ``archsplit build --policy <name>``.

    Attributes:
        sass: targets of targets.sass to build; all of them if left out.
        ptx: targets of targets.ptx to build; none if left out.
        version: version of the wheels; {next} is the release after project.version, {date} the day
            of SOURCE_DATE_EPOCH.
        max_wheel: size limit of each wheel, as in 30MB.
        budget: size limit of all wheels together, as in 100MB.
    """

    sass: Unique[Sass] | None = None
    ptx: Unique[Ptx] = ()
    version: VersionTemplate = "{next}.dev{date}"
    max_wheel: SizeText | None = None
    budget: SizeText | None = None

    def __post_init__(self) -> None:
        # An empty list is not a missing one: missing means all targets.
        if self.sass == () and not self.ptx:
            raise InvalidValue(
                "names no target", hint="leave out sass to build all of targets.sass"
            )

    def targets(self, release: tuple[Target, ...]) -> tuple[Target, ...]:
        """Return the targets of a release that the policy builds, in their order."""
        return tuple(
            target
            for target in release
            if target in self.ptx
            or target in (self.sass or ())
            or (self.sass is None and target.kind is CodeKind.SASS)
        )

    def version_on(self, day: str, release: str) -> str:
        """Return the version of a build on a day (YYYYMMDD) after a release's version."""
        return self.version.format(next=next_version(release), date=day)

    @property
    def is_limited(self) -> bool:
        """True if the sizes of wheels are limited."""
        return self.max_wheel is not None or self.budget is not None

    def exceeded(self, sizes: Mapping[str, int]) -> Iterator[str]:
        """Return messages about wheels beyond the limits, from sizes by name."""
        for name, size in sizes.items():
            if self.max_wheel is not None and size > self.max_wheel:
                over = short_size(size - self.max_wheel)
                limit = short_size(self.max_wheel)
                yield f"{name} is {short_size(size)}, {over} more than max-wheel = {limit}"
        total = sum(sizes.values())
        if self.budget is not None and total > self.budget:
            over, limit = short_size(total - self.budget), short_size(self.budget)
            # The largest wheels first: a user looks there for bytes to save.
            parts = sorted(sizes.items(), key=lambda item: -item[1])
            weights = "".join(f"\n    {short_size(size):>10} {name}" for name, size in parts)
            yield f"together {short_size(total)}, {over} more than budget = {limit}{weights}"


POLICIES = TypeAdapter(dict[PolicyName, Policy])
"""Reader of the table of all policies."""


def next_version(release: str) -> str:
    """Return the release after a version: its last number plus one, as in setuptools-scm.

    A development version (``1.1.0.dev0``) leads to its own release; after ``1.1.0rc1`` comes
    ``1.1.0rc2``. So ``{next}.dev…`` sorts after the version, and before the next one.
    """
    version = Version(release)
    # 1.1.0.dev0 is already before 1.1.0, so its own release is the next one.
    if version.dev is not None:
        return release.rpartition(".dev")[0]
    if version.pre is not None and version.post is None:
        kind, number = version.pre
        return f"{_release(version, version.release)}{kind}{number + 1}"
    *first, last = version.release
    return _release(version, (*first, last + 1))


def find_version_fault(policy: Policy, release: str) -> str | None:
    """Return the fault of the version that a policy derives from a release's, or None."""
    text = policy.version_on(_SOME_DAY, release)
    try:
        version = Version(text)
    except InvalidVersion:
        return f"{policy.version!r} gives {text!r}, which is not a version"
    # As for a release's version: the index would refuse it only after the build.
    if version.local:
        return f"{policy.version!r} gives {text!r}; the public index refuses its local part"
    if str(version) != text:
        return f"{policy.version!r} gives {text!r}, which is not normalized: {version}"
    # An index keeps the first file of a name, so a nightly must never take a release's version.
    if version == Version(release):
        return f"{policy.version!r} gives the release's own version, whose wheels are others"
    return None


def _release(version: Version, numbers: tuple[int, ...]) -> str:
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{'.'.join(map(str, numbers))}"
