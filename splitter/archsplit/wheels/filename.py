"""Names of distributions, plugins, extras and wheel files.

``packaging`` knows the rules of names and of file names. What a name may be beyond these rules is
decided here, because a name of ours becomes a path, a requirement and an address of the index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from packaging.utils import InvalidName, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from archsplit.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Sequence

__pure__ = True

ALL_EXTRA = "all"
"""Extra that brings every plugin."""
DROPPED_EXTRA = re.compile(r"(cc|sm|compute)\d+[af]?")
"""Extra of a plugin that an earlier release had."""
CUDA_IN_NAME = re.compile(r"-cu(?:da)?-?(\d\d)x?$")
"""End of a distribution's name with the major of its CUDA."""

_TARGET = re.compile(r"[a-z]+(_[0-9a-z]+)*")
_FILE_NAME = re.compile(r"[\w.+-]+", re.ASCII)
# Lower case: installers compare tags as text.
_TAG = re.compile(r"[a-z0-9_]+")
_BUILD = re.compile(r"(\d[A-Za-z0-9_.]*)?", re.ASCII)


def distribution_name(text: str) -> NormalizedName:
    """Normalize the name of a project as the index does (PEP 503).

    Raises:
        WheelError: no project can have that name.
    """
    try:
        # The rules are PyPA's; only the wording of the error is ours.
        return canonicalize_name(text, validate=True)
    except InvalidName:
        raise WheelError(
            f"{text!r} is not a project name",
            hint="use ASCII letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        ) from None


def extra_name(target: str) -> NormalizedName:
    """Return the extra of the core for the plugin of one target: ``sm_90a`` → ``sm90a``.

    Raises:
        WheelError: the target can't be part of a name.
    """
    # `sm_90a` would become `sm-90a`, which no user types as an extra.
    return distribution_name(_check_pattern(target, _TARGET, "a target").replace("_", ""))


def plugin_distribution(project: str, target: str) -> NormalizedName:
    """Return the distribution of a plugin: ``vecsort``, ``compute_120`` → ``vecsort-compute120``.

    Raises:
        WheelError: the project or the target can't be part of a name.
    """
    return distribution_name(f"{distribution_name(project)}-{extra_name(target)}")


def plugins_package(package: str) -> str:
    """Return the namespace folder that all plugins of an import package install into.

    Raises:
        WheelError: not the name of a top-level import package.
    """
    # A dotted name would be a folder of another package.
    if not package.isidentifier():
        raise WheelError(
            f"{package!r} is not the name of an import package",
            hint="write one Python identifier, such as vecsort",
        )
    return f"{package}_plugins"


def plugin_path(package: str, target: str, library: str) -> str:
    """Return the path of a plugin's library: ``<package>_plugins/cuda/<target>/<library>``.

    Raises:
        WheelError: an argument can't be a part of that path.
    """
    folder = f"{plugins_package(package)}/cuda/{_check_pattern(target, _TARGET, 'a target')}"
    return f"{folder}/{_check_pattern(library, _FILE_NAME, 'the file name of a library')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelName:
    """Parts of a wheel's file name; ``str()`` escapes them as PEP 427 does.

    Attributes:
        project: the distribution, normalized.
        version: PEP 440, normalized.
        platforms: platform tags, such as ``manylinux_2_17_x86_64``, sorted.
        pythons: interpreter tags, sorted.
        abis: ABI tags, sorted.
        build: the build tag, or "" for none.
    """

    project: NormalizedName
    version: str
    platforms: tuple[str, ...]
    pythons: tuple[str, ...] = ("py3",)
    abis: tuple[str, ...] = ("none",)
    build: str = ""

    def __post_init__(self) -> None:
        if self.project != distribution_name(self.project):
            raise WheelError(f"{self.project!r} is not a normalized project name")
        if self.version != normalized_version(self.version):
            raise WheelError(f"{self.version!r} is not a normalized version")
        _check_pattern(self.build, _BUILD, "a build tag")
        for tags in (self.pythons, self.abis, self.platforms):
            if not tags or list(tags) != sorted(set(tags)):
                raise WheelError(f"{'.'.join(tags)!r} is not a sorted set of tags")
            for tag in tags:
                _check_pattern(tag, _TAG, "a tag of a wheel")

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Parse a file name, and normalize the project and the version.

        Raises:
            WheelError: not the file name of a wheel.
        """
        try:
            project, version, build, tags = parse_wheel_filename(filename)
        except ValueError as error:
            raise WheelError(
                f"{filename!r} is not the file name of a wheel: {error}",
                hint="name it <name>-<version>[-<build>]-<python>-<abi>-<platform>.whl",
            ) from None
        return cls(
            project=project,
            version=str(version),
            platforms=tuple(sorted({tag.platform for tag in tags})),
            pythons=tuple(sorted({tag.interpreter for tag in tags})),
            abis=tuple(sorted({tag.abi for tag in tags})),
            # The text of the file: the parsed form is a number and a rest, and loses zeros.
            build=filename.split("-")[2] if build else "",
        )

    def __str__(self) -> str:
        parts = [self._escaped, self.version, self.build, *map(".".join, self._tag_sets)]
        return "-".join(filter(None, parts)) + ".whl"

    @property
    def dist_info(self) -> str:
        """Folder of METADATA, WHEEL and RECORD, without a slash at the end."""
        return f"{self._escaped}-{self.version}.dist-info"

    @property
    def machine(self) -> str:
        """Machine of the platform tags: ``x86_64``, ``aarch64``, ``amd64`` or ``any``."""
        known = ("x86_64", "aarch64", "amd64", "arm64")
        first = self.platforms[0]
        return next((one for one in known if first.endswith(f"_{one}")), first)

    @property
    def place(self) -> str:
        """Only the three tags, such as ``cp311-cp311-manylinux_2_28_x86_64``."""
        return "-".join(map(".".join, self._tag_sets))

    @property
    def tags(self) -> tuple[str, ...]:
        """Expanded tags, such as ``py3-none-any``, sorted."""
        return tuple(sorted(map("-".join, product(*self._tag_sets))))

    def is_release(self, project: str, version: str) -> bool:
        """Return True if this name has the project and version, in any spelling."""
        try:
            # 1.0 and 1.0.0 are one release.
            same_version = Version(version) == Version(self.version)
        except InvalidVersion:
            return False
        return same_version and canonicalize_name(project) == self.project

    def add_build_tag(self, tag: str) -> WheelName:
        """Return the same release under a build tag, which installers prefer."""
        # A build tag begins with a digit (PEP 427).
        return replace(self, build=f"{self.build}.{tag}" if self.build else f"0{tag}")

    def add_local_label(self, label: str) -> WheelName:
        """Return the name with one more local label: ``3.2.0`` → ``3.2.0+slim.sm90``.

        Raises:
            WheelError: the label can't be part of a version.
        """
        check_local_label(label)
        # A version has one local part; further labels follow a dot.
        separator = "." if Version(self.version).local else "+"
        return replace(self, version=str(Version(f"{self.version}{separator}{label}")))

    @property
    def _escaped(self) -> str:
        # The hyphen separates the parts of the file name.
        return self.project.replace("-", "_")

    @property
    def _tag_sets(self) -> tuple[tuple[str, ...], ...]:
        return self.pythons, self.abis, self.platforms


def fitting_file(core: WheelName, files: Sequence[WheelName]) -> WheelName | None:
    """Return the file that an installer takes beside a core, of one distribution's files.

    Its machine is the core's or any. A file with the core's own Python and ABI is
    preferred to one for any Python.
    """
    # The files of a machine may be for other ages of Linux than the core.
    there = [file for file in files if file.machine in {"any", core.machine}]
    own = [
        file
        for file in there
        if not set(core.pythons).isdisjoint(file.pythons)
        and not set(core.abis).isdisjoint(file.abis)
    ]
    generic = [file for file in there if "none" in file.abis and _is_generic(file.pythons)]
    # A platform's own file comes before one for any.
    found = sorted(
        [*own, *generic],
        key=lambda file: (
            file not in own,
            set(core.platforms).isdisjoint(file.platforms),
            file.machine == "any",
        ),
    )
    return found[0] if found else None


def _is_generic(pythons: Sequence[str]) -> bool:
    return not set(pythons).isdisjoint({"py3", "py2.py3"})


def normalized_version(text: str) -> str:
    """Return the normal form of a version.

    Raises:
        WheelError: it is not a version; the hint has examples.
    """
    try:
        return str(Version(text))
    except InvalidVersion:
        raise WheelError(
            f"{text!r} is not a version", hint="see PEP 440; for example 1.2.3 or 1.2.3rc1"
        ) from None


def _check_pattern(text: str, pattern: re.Pattern[str], kind: str) -> str:
    if not pattern.fullmatch(text):
        raise WheelError(f"{text!r} can't be {kind}")
    return text


def check_local_label(label: str) -> None:
    """Refuse a local label that can't be part of a version.

    Raises:
        WheelError: the hint has what is allowed.
    """
    try:
        Version(f"0+{label}")
    except InvalidVersion:
        raise WheelError(
            f"{label!r} is not a local version label",
            hint="use letters, digits and dots, such as slim.sm90",
        ) from None
