"""Test installation of a release into new virtual environments, with pip and with uv.

In: a folder of wheels. Out: findings for each installer that fails, or that does not install all
distributions of the release, and for a core that can't be imported there. pip installs the core
alone first: it must be imported with and without its plugins. The wheels of the release come from
the folder only; their other dependencies come from the package index of the caller.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from archsplit.errors import ToolNotFoundError
from archsplit.system.env import without_credentials
from archsplit.system.process import Command
from archsplit.wheels.filename import ALL_EXTRA, distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.metadata import Metadata

    from archsplit.release.wheel_set import WheelSet
    from archsplit.system.finding import Finding
    from archsplit.system.process import CompletedProcess, Runner

_SECONDS = 900.0
# Settings that lead an installation elsewhere, or make it smaller than that of a user.
_DISTURBING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_NO_DEPS", "PYTHONPATH", "VIRTUAL_ENV")
_DRIVER = re.compile(r"\b(libcuda|libnvidia-[\w-]+)\.so[\d.]*: cannot open shared object file")
_SCRIPTS = (
    "import sys\n"
    "from importlib.metadata import distribution\n"
    "for each in distribution(sys.argv[1]).entry_points:\n"
    "    if each.group == 'console_scripts': print(each.name)\n"
)
_LISTED = (
    "from importlib.metadata import distributions\n"
    "for each in distributions(): print(each.metadata['Name'])\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRelease:
    """The release to install.

    Attributes:
        core: the core alone: ``vecsort==1.2.3``.
        package: the core's import package.
        requirement: the core with all plugins: ``vecsort[all]==1.2.3``.
        promised: the distributions that the requirement must install.
        outside: the requirements of the wheels on other projects.
    """

    core: str
    package: str
    requirement: str
    promised: tuple[str, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """The installers of a test and their folder.

    Attributes:
        scratch: the folder for virtual environments.
        environment: the caller's environment, with the settings of pip and uv.
        release: the wheels, with one core.
        scripts: True to run each console script of the core with ``--help``.
        notes: receives what can't be shown on this machine.
    """

    runner: Runner
    scratch: Path
    environment: Mapping[str, str] = field(repr=False)
    release: WheelSet = field(repr=False)
    scripts: bool = False
    notes: list[str] = field(default_factory=list)

    def faults(self) -> Iterator[Finding]:
        """Install the release with each installer; yield its faults."""
        core = self.release.cores[0].name.project
        wanted = read_install_release(self.release, core=core)
        if wanted is None:
            found = "its METADATA is one that an index refuses, so nothing was installed"
            yield self.release.fault("not-installed", core, found)
            return
        for name, program in (("pip", self._pip()), ("uv", self._uv())):
            # A release must install with both, so a missing installer is a finding.
            if program is None:
                found = f"{name} is not here to install the wheels with"
                yield self.release.fault("no-installer", core, found, program=name)
            else:
                yield from self._install(name, program, wanted)

    def _install(
        self, name: str, program: tuple[str, ...], wanted: InstallRelease
    ) -> Iterator[Finding]:
        fault = partial(self.release.fault, subject=wanted.requirement)
        # An environment for each installer: what one leaves out must not be there from the other.
        place = self.scratch / name
        made = self._run((sys.executable, "-m", "venv", "--without-pip", str(place)))
        # Debian's Python has no venv module without the package python3-venv.
        if made.returncode != 0:
            found = f"no environment can be made for {name} to install in:\n{made.tail()}"
            yield fault("no-environment", found=found)
            return
        python = str(place / "bin" / "python")
        for step, words in _steps(name, python, self.release.folder.absolute(), wanted):
            done = self._run((*program, *words))
            if done.returncode != 0:
                found = f"{name} can't {step}:\n{_indented(done)}"
                yield fault("install-failed", found=found, program=name)
                return
            # One installer's environment is enough for what the wheels themselves do.
            if name == "pip" and words[-1] in {wanted.core, wanted.requirement}:
                yield from self._use(python, words[-1], wanted)
        # Both programs call an installation complete that lacks a distribution which no extra
        # names.
        listed = self._run((python, "-c", _LISTED)).stdout.split()
        here = set(map(distribution_name, listed))
        for missing in sorted(set(wanted.promised) - here):
            found = f"{name} installs {wanted.requirement} without {missing}"
            yield fault("incomplete-install", found=found)

    def _use(self, python: str, installed: str, wanted: InstallRelease) -> Iterator[Finding]:
        """Import the core, and run its console scripts."""
        package = wanted.package
        done = self._run((python, "-c", f"import {package}"))
        if done.returncode != 0 and (missing := _DRIVER.search(done.stderr)):
            self.notes.append(
                f"import {package} can't be shown here: it needs {missing[1]} of NVIDIA's driver"
            )
        elif done.returncode != 0:
            found = f"with {installed} alone installed, import {package} fails:\n{_indented(done)}"
            yield self.release.fault("import-failed", installed, found)
        # A script that needs a plugin has a right to fail without one.
        if not self.scripts or installed != wanted.requirement:
            return
        core = Requirement(wanted.core).name
        for script in self._run((python, "-c", _SCRIPTS, core)).stdout.split():
            done = self._run((str(Path(python).with_name(script)), "--help"))
            if done.returncode != 0:
                found = f"{script} --help ends with {done.returncode}:\n{_indented(done)}"
                yield self.release.fault("script-failed", core, found)

    def _pip(self) -> tuple[str, ...] | None:
        program = (sys.executable, "-m", "pip")
        return program if self._run((*program, "--version")).returncode == 0 else None

    def _uv(self) -> tuple[str, ...] | None:
        found = _find_uv(self.environment)
        return None if found is None else (found, "--no-cache", "--no-progress")

    def _run(self, argv: tuple[str, ...]) -> CompletedProcess:
        free = without_credentials(self.environment)
        kept = {key: text for key, text in free.items() if key not in _DISTURBING}
        command = Command(argv=argv, cwd=self.scratch, env=kept, timeout=_SECONDS)
        return self.runner.run(command)


def require_installers(environment: Mapping[str, str]) -> None:
    """Refuse an environment without pip or uv.

    Raises:
        ToolNotFoundError: names what is missing.
    """
    missing = [] if find_spec("pip") else ["pip"]
    missing += [] if _find_uv(environment) else ["uv"]
    if missing:
        names = " and ".join(missing)
        raise ToolNotFoundError(
            f"{names} is not here to install the release with",
            hint=f"pip install {' '.join(missing)}; or check without installing: --no-install",
        )


def _find_uv(environment: Mapping[str, str]) -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else which("uv", path=environment.get("PATH"))


def read_install_release(release: WheelSet, *, core: str) -> InstallRelease | None:
    """Return the release to install; None if the METADATA of its core is not valid."""
    found: dict[str, Metadata] = {
        wheel.name.project: wheel.metadata for wheel in release.wheels if wheel.metadata is not None
    }
    # Without valid METADATA the requirements are unknown.
    if core not in found:
        return None
    version = str(found[core].version)
    required = [each for one in found.values() for each in _active(one)]
    own = {core, *found, *(each.name for each in required if _is_plugin(each, core, version))}
    identity = release.identity
    return InstallRelease(
        core=f"{core}=={version}",
        package=core.replace("-", "_") if identity is None else identity.import_package,
        requirement=f"{core}[{ALL_EXTRA}]=={version}",
        promised=tuple(
            sorted({core, *(one.name for one in _active(found[core]) if one.name in own)})
        ),
        outside=tuple(sorted({_text(each) for each in required if each.name not in own})),
    )


def _is_plugin(requirement: Requirement, core: str, version: str) -> bool:
    """Return True if a requirement is on a plugin of this release, present or missing.

    A missing plugin must not be replaced by a distribution of the index with its name.
    """
    exact = str(requirement.specifier) == f"=={version}"
    return exact and requirement.name.startswith(f"{core}-")


def _active(metadata: Metadata) -> Iterator[Requirement]:
    """Yield the requirements that hold here with the extra for all plugins, names normalized."""
    for each in metadata.requires_dist or []:
        if each.marker is None or each.marker.evaluate({"extra": ALL_EXTRA}):
            requirement = Requirement(str(each))
            requirement.name = distribution_name(each.name)
            yield requirement


def _text(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()


def _steps(
    name: str, python: str, folder: Path, wanted: InstallRelease
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands of an installer: other projects, the release, the check."""
    pip = name == "pip"
    install: tuple[str, ...] = (
        ("--python", python, "install", "--no-input", "--disable-pip-version-check", "--no-compile")
        if pip
        else ("pip", "install", "--python", python)
    )
    # From the index, and before the release: the release itself comes from the folder alone.
    if wanted.outside:
        yield (
            f"install what the wheels need of others ({', '.join(wanted.outside)})",
            (
                *install,
                *wanted.outside,
            ),
        )
    for requirement in (*([wanted.core] if pip else []), wanted.requirement):
        yield (
            f"install {requirement} from the folder",
            (*install, "--no-index", "--find-links", str(folder), requirement),
        )
    check = ("--python", python, "check") if pip else ("pip", "check", "--python", python)
    yield "find everything that the installed wheels require (pip check)", check


def _indented(done: CompletedProcess) -> str:
    return "\n".join(f"    {line}" for line in done.tail().splitlines())
