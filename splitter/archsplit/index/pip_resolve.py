"""Check with pip's resolver that a whole release can be installed; nothing is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping  # noqa: TC003 - a record's field
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from archsplit.errors import IndexUnreachableError, VerifyError, WheelError
from archsplit.index.retry import RetryableError
from archsplit.system.env import without_credentials
from archsplit.system.fs import read_file, temporary_dir
from archsplit.system.process import Command
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from archsplit.index.client import Index
    from archsplit.index.release import Artifact
    from archsplit.index.retry import RetryPolicy
    from archsplit.system.process import Runner

_SECONDS = 1800.0
"""Time limit of pip, which downloads whole wheels from an index without PEP 658."""

_DRY_RUN = (
    *("--dry-run", "--ignore-installed", "--ignore-requires-python", "--no-cache-dir"),
    "--only-binary=:all:",
)
"""Options that resolve as in an empty environment of a fitting Python. Source distributions are
excluded: pip would run their build code to read the requirements."""

_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A requirement that pip resolved with the files of a release.

    Attributes:
        requirement: as a user gives it to pip.
        shadowed: the projects for which pip takes the file of another index, which has the same
            version, with the URL of that file. The release was resolved by its files' URLs.
    """

    requirement: str
    shadowed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """Runs pip's own resolver against an index.

    Attributes:
        client: reads the pages of the same index.
        index: the only source of plugins.
        others: extra indexes, for the core's other dependencies.
        retry: bridges an index whose pages for pip are older than those for us.
    """

    runner: Runner
    environment: Mapping[str, str] = field(repr=False)
    python_path: str = field(repr=False)
    client: Index = field(repr=False)
    index: str
    others: tuple[str, ...]
    retry: RetryPolicy

    def with_local(self, core: Artifact, plugins: Sequence[Artifact]) -> Resolution:
        """Resolve a local core, with its plugins from the index.

        Raises:
            VerifyError: the core can't be installed with every plugin; has pip's errors.
        """
        requirements = read_requirements(core, plugins)
        requirement = f"{core.project}{requirements.extras} @ {core.path.as_uri()}"
        return self._resolve(requirement, core, requirements.plugins)

    def from_index(self, core: Artifact, plugins: Sequence[Artifact]) -> Resolution:
        """Resolve a core as users do, from the index alone, with every plugin.

        Raises:
            VerifyError: see `with_local`.
        """
        requirements = read_requirements(core, plugins)
        requirement = f"{core.project}{requirements.extras}=={core.version}"
        return self._resolve(requirement, core, (core, *requirements.plugins))

    def meta_from_index(
        self, meta: Artifact, core: Artifact, plugins: Sequence[Artifact]
    ) -> Resolution:
        """Resolve a meta wheel as users do, and with it the core and every plugin.

        Raises:
            VerifyError: see `with_local`.
        """
        required = read_requirements(core, plugins).plugins
        return self._resolve(f"{meta.project}=={meta.version}", core, (meta, core, *required))

    def _resolve(self, requirement: str, core: Artifact, needed: Sequence[Artifact]) -> Resolution:
        """Resolve a requirement.

        Args:
            core: decides the platform.
            needed: the files of the index that pip has to take.
        """
        what = f"resolving {requirement}"
        found = self._query(what, (requirement,), core)
        missing = [one for one in needed if not _is_in(found, one)]
        shadows = {one.project: found[one.project].url for one in missing if one.project in found}
        # An index of somebody else is no fault of the release: only its own files judge it.
        # A fat wheel in the core's place has no extras, so that all plugins are missing too.
        if shadows and not any(self._has(project, url) for project, url in shadows.items()):
            exact = tuple(f"{one.project} @ {self._url(one)}" for one in needed)
            found = self._query(what, (requirement, *exact), core)
            missing = [one for one in needed if not _is_in(found, one)]
        if missing:
            raise VerifyError(_missing_text(requirement, missing, found))
        return Resolution(requirement=requirement, shadowed=shadows)

    def _has(self, project: str, url: str) -> bool:
        """Return True if the index itself has the file of a URL."""
        files = self.client.project(project).files.values()
        return _place(url) in {_place(file.url) for file in files}

    def _url(self, one: Artifact) -> str:
        """Return the address of a file on the index, with the hash that pip compares."""
        url = self.client.project(one.project).files[one.path.name].url
        return f"{url.partition('#')[0]}#sha256={one.sha256}"

    def _query(
        self, what: str, requirements: tuple[str, ...], core: Artifact
    ) -> dict[str, _Resolved]:
        try:
            return self.retry.keep_trying(what, lambda: self._pip_report(requirements, core))
        except IndexUnreachableError as error:
            raise VerifyError(
                str(error),
                hint="--extra-index-url names an index for dependencies from elsewhere",
            ) from None

    def _pip_report(self, requirements: tuple[str, ...], core: Artifact) -> dict[str, _Resolved]:
        """Return the distributions that pip would install, by project."""
        with temporary_dir() as folder:
            report = folder / "report.json"
            command = Command(
                argv=(
                    *(sys.executable, "-m", "pip", "--isolated", "--no-input", "install"),
                    *_DRY_RUN,
                    *(f"--report={report}", *self._indexes(), *_platform(core, folder)),
                    *requirements,
                ),
                cwd=folder,
                env=self._environment(folder),
                timeout=_SECONDS,
            )
            done = self.runner.run(command)
            # Retryable: a CDN may still serve the old page without the new files.
            if done.returncode != 0 or not report.exists():
                raise RetryableError(f"pip can't resolve it:\n{_pip_errors(done.stderr)}")
            return _read_pip_report(read_file(report))

    def _environment(self, folder: Path) -> dict[str, str]:
        kept = without_credentials(self.environment)
        return {**kept, "PYTHONPATH": self.python_path, "TMPDIR": str(folder)}

    def _indexes(self) -> tuple[str, ...]:
        # The retry policy repeats pip as a whole: pip's own retries would only add to its time.
        words = ["--disable-pip-version-check", "--retries=0", f"--index-url={self.index}"]
        words += [f"--extra-index-url={other}" for other in self.others]
        for address in (self.index, *self.others):
            parts = urlsplit(address)
            # pip trusts local addresses by itself.
            if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
                # An address without TLS was chosen by the user; pip needs a second option for it.
                words.append(f"--trusted-host={parts.netloc}")
        return tuple(words)


class CoreRequirements(NamedTuple):
    """The extras and requirements by which a core brings its plugins.

    Attributes:
        extras: all that require a plugin of the same release, as in ``foo[all,sm80]``; or "".
        plugins: those that the core requires; no core requires a split's ``rest``.
    """

    extras: str
    plugins: tuple[Artifact, ...]


def read_requirements(core: Artifact, plugins: Sequence[Artifact]) -> CoreRequirements:
    """Read the extras and requirements of a core that name its plugins.

    Raises:
        WheelError: the wheel is damaged.
    """
    with open_wheel(core.path, same_tags=False) as wheel:
        # Unchecked: the core of a split has upstream's METADATA, which indexes take as it is.
        metadata = parse_email(wheel.read(f"{wheel.dist_info}/METADATA"))[0]
    try:
        requirements = list(map(Requirement, metadata.get("requires_dist", [])))
    except InvalidRequirement as error:
        raise WheelError(f"{core.path}: METADATA: {error}") from error
    own = {one.project for one in plugins}
    named: dict[str, set[str]] = {}
    for requirement in requirements:
        for extra in ("", *metadata.get("provides_extra", [])):
            marker = requirement.marker
            # An extra is active only in its own evaluation, as pip does it.
            if marker is None or marker.evaluate({"extra": extra}):
                named.setdefault(extra, set()).add(canonicalize_name(requirement.name))
    always = named.get("", set())
    # Extras of upstream, such as `test`, bring no plugins and are not checked here.
    extras = sorted(extra for extra, names in named.items() if extra and (names - always) & own)
    required = set().union(*named.values()) if named else set()
    return CoreRequirements(
        extras=f"[{','.join(extras)}]" if extras else "",
        plugins=tuple(one for one in plugins if one.project in required),
    )


def _platform(core: Artifact, folder: Path) -> tuple[str, ...]:
    """Return pip's options for a platform other than this one."""
    name = WheelName.parse(core.path.name)
    # This platform: the tags that pip finds itself are more exact than a list.
    if set(name.tags) & set(map(str, sys_tags())):
        return ()
    # Older versions of pip accept --platform only together with --target.
    words = [f"--target={folder / 'target'}"]
    words += [f"--platform={tag}" for tag in name.platforms]
    if "none" not in name.abis:
        # Plugins are tagged "none", so a core's own ABI alone would exclude them.
        words += [f"--abi={tag}" for tag in (*name.abis, "none")]
    for tag in name.pythons:
        if tag.startswith("cp"):
            words.append(f"--python-version={tag.removeprefix('cp')}")
    return tuple(words)


class _Resolved(NamedTuple):
    """A distribution that pip would install; without SHA-256 if the index has another digest."""

    version: str
    sha256: str
    url: str


def _read_pip_report(report: bytes) -> dict[str, _Resolved]:
    found: dict[str, _Resolved] = {}
    for row in json.loads(report)["install"]:
        hashes = row["download_info"].get("archive_info", {}).get("hashes", {})
        metadata = row["metadata"]
        found[canonicalize_name(metadata["name"])] = _Resolved(
            str(Version(metadata["version"])),
            hashes.get("sha256", ""),
            row["download_info"].get("url", ""),
        )
    return found


def _is_in(found: Mapping[str, _Resolved], one: Artifact) -> bool:
    here = found.get(one.project)
    return here is not None and here.version == one.version and here.sha256 in ("", one.sha256)


def _place(url: str) -> tuple[str | None, int | None, str]:
    """Return the part of a URL that names a file: pip leaves out passwords and digests."""
    parts = urlsplit(url)
    return parts.hostname, parts.port, unquote(parts.path)


def _missing_text(
    requirement: str, missing: Sequence[Artifact], found: Mapping[str, _Resolved]
) -> str:
    names = ", ".join(sorted(one.project for one in missing))
    lines = [f"pip resolves {requirement} without {names} of this build"]
    lines += [
        f"pip takes {found[one.project].url}, not {one.path.name}"
        for one in missing
        if one.project in found
    ]
    return "\n  ".join(lines)


def _pip_errors(text: str) -> str:
    """Return the errors in pip's output, without its notes."""
    # pip's notes about new versions of pip would hide the reason.
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    return "\n".join(errors) or text.strip()
