"""Test installation of a release into new virtual environments, with pip and with uv.

In: a folder of wheels. Out: findings for each installer that fails, and for a core that can't be
imported there. Of a release for several Pythons and platforms, each core is installed for which
this machine has a Python: without plugins, with the plugins for one kind of GPU (another one for
each core), and with all plugins. The core must be imported with and without its plugins. The wheels
of the release come from the folder only; their other dependencies come from the package index of
the caller.

uv finds the interpreters, on the PATH and among those that it manages; it downloads none here.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import packaging
from packaging.requirements import Requirement

from archsplit.errors import DiskFullError, ToolNotFoundError
from archsplit.release.findings import finding
from archsplit.release.identity import HOOK_SUFFIX, ReleaseKind
from archsplit.scheduler.runner import NO_SPACE_HINT
from archsplit.system.env import without_credentials
from archsplit.system.installers import find_uv, has_pip
from archsplit.system.process import Command
from archsplit.wheels.filename import ALL_EXTRA, distribution_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from packaging.metadata import Metadata

    from archsplit.release.wheel_set import WheelFacts, WheelSet
    from archsplit.system.finding import Finding
    from archsplit.system.process import CompletedProcess, Runner
    from archsplit.wheels.filename import WheelName

    Run = Callable[[tuple[str, ...]], CompletedProcess]

_VERSIONED = re.compile(r"cp3(\d+)")
_PROBE = (
    "import json, sys\n"
    "sys.path.append(sys.argv[1])\n"
    "from packaging.markers import default_environment\n"
    "from packaging.tags import sys_tags\n"
    "print(json.dumps([default_environment(), [*map(str, sys_tags())]]))"
)
_PACKAGING = str(Path(packaging.__file__).parents[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter.

    Attributes:
        program: its path.
        markers: the variables of environment markers.
        tags: the tags of the wheels that it takes.
    """

    program: str
    markers: Mapping[str, str] = field(repr=False)
    tags: frozenset[str] = field(repr=False)

    def fits(self, name: WheelName) -> bool:
        """Return True if an installer of this interpreter takes a wheel."""
        return not self.tags.isdisjoint(name.tags)

    @property
    def version(self) -> str:
        """Version as in ``3.12``."""
        return self.markers["python_version"]


def find_interpreters(
    names: Sequence[WheelName], *, own: str, requested: Iterable[str], uv: tuple[str, ...], run: Run
) -> tuple[Interpreter, ...]:
    """Return interpreters for as many cores as this machine has them for.

    Args:
        names: of the cores' wheels.
        own: the interpreter of this process, which is preferred.
        requested: the paths or versions that the caller names.
        uv: the command line of uv.
        run: runs a program.

    Raises:
        ToolNotFoundError: an interpreter that was named is not here.
    """
    found = list(_probe([own], run))
    for each in requested:
        program = _locate(each, uv, run)
        probed = list(_probe([program] if program else [], run))
        if not probed:
            raise ToolNotFoundError(
                f"Python {each} is not here",
                hint="name another with --python, or leave it out; `uv python list` shows them",
            )
        found += probed
    for name in names:
        if any(one.fits(name) for one in found):
            continue
        for tag in name.pythons:
            version = _VERSIONED.fullmatch(tag)
            # Other tags, such as pp310 of PyPy, have to be asked for.
            if version and (program := _locate(f"3.{version[1]}", uv, run)):
                found += _probe([program], run)
    return tuple(found)


def _locate(requested: str, uv: tuple[str, ...], run: Run) -> str:
    """Return the path of an interpreter by its path or version; "" for none."""
    # A virtual environment that is active by accident is not a Python of the machine.
    done = run((*uv, "python", "find", "--system", "--no-python-downloads", requested))
    return done.stdout.strip() if done.returncode == 0 else ""


def _probe(programs: Iterable[str], run: Run) -> Iterator[Interpreter]:
    for program in programs:
        done = run((program, "-I", "-c", _PROBE, _PACKAGING))
        if done.returncode == 0:
            markers, tags = json.loads(done.stdout)
            yield Interpreter(program=program, markers=markers, tags=frozenset(tags))


_SECONDS = 900.0
# Settings that lead an installation elsewhere, or make it smaller than a user's.
_DISTURBING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_NO_DEPS", "PYTHONPATH", "VIRTUAL_ENV")
_DRIVER = re.compile(r"\b(libcuda|libnvidia-[\w-]+)\.so[\d.]*: cannot open shared object file")
_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """Requirements on one core, in the order in which they are installed.

    Attributes:
        core: the core without plugins: ``vecsort==1.2.3``.
        packages: the core's import packages. A split's loader may be in a package of its own, which
            shows nothing about the package that users import: faiss-gpu-cu12 brings ``faiss``.
        requirements: ``vecsort[sm90]==1.2.3``, the core with the plugins for one kind of GPU, and
            ``vecsort[all]==1.2.3``.
        outside: the requirements of the wheels on other projects.
    """

    core: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """Core with all plugins."""
        return self.requirements[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallTest:
    """Test installation of a release with each installer that is here.

    Attributes:
        scratch: the folder for virtual environments.
        environment: the caller's environment, with the settings of pip and uv.
        release: the wheels.
        pythons: the interpreters that the caller names, by path or version.
        notes: receives what can't be shown on this machine.
        installed: receives the place of each core that was installed, and the Python.
    """

    runner: Runner
    scratch: Path
    environment: Mapping[str, str] = field(repr=False)
    release: WheelSet = field(repr=False)
    pythons: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    installed: list[str] = field(default_factory=list)

    def faults(self) -> Iterator[Finding]:
        """Install the release with each installer; yield its faults.

        Raises:
            ToolNotFoundError: an interpreter that the caller names is not here, or no installer is.
        """
        names = installers(self.environment)
        uv = (find_uv(self.environment) or "uv", "--no-cache", "--no-progress")
        commands = {"pip": (sys.executable, "-m", "pip"), "uv": uv}
        # One installer is enough: both follow the same standards for these wheels.
        for name in sorted(commands.keys() - {*names}):
            self.notes.append(f"{name} was not tried, because it is not installed")
        programs = {name: commands[name] for name in names}
        found = find_interpreters(
            [core.name for core in self.release.cores],
            own=sys.executable,
            requested=self.pythons,
            uv=uv,
            run=self._run,
        )
        for number, view in enumerate(self.release.views):
            core = view.cores[0]
            fitting = [one for one in found if one.fits(core.name)]
            if not fitting:
                self.notes.append(f"{core.name.place} was not installed: {_reason(core, found)}")
            # A core for any Python is tried with each one that the caller names.
            for python in fitting if self.pythons else fitting[:1]:
                yield from self._try(view, python, programs, number)

    def _try(
        self,
        view: WheelSet,
        python: Interpreter,
        programs: Mapping[str, tuple[str, ...]],
        number: int,
    ) -> Iterator[Finding]:
        """Install one core with its plugins, with each installer."""
        core = view.cores[0].name
        wanted = read_install_plan(view, core=core.project, python=python, number=number)
        if wanted is None:
            found = "its METADATA is one that an index refuses, so nothing was installed"
            yield finding("not-installed", core.project, found)
            return
        self.installed.append(f"{core.place} with Python {python.version}")
        is_first = True
        for name, program in programs.items():
            folder = self.scratch / f"{number}-{python.version}-{name}"
            is_tried = yield from self._install(
                name, program, view, python, wanted, folder, is_first=is_first
            )
            # One installer's environment is enough for what the wheels themselves do.
            is_first = is_first and not is_tried

    def _install(
        self,
        name: str,
        program: tuple[str, ...],
        view: WheelSet,
        interpreter: Interpreter,
        wanted: InstallPlan,
        folder: Path,
        *,
        is_first: bool,
    ) -> Generator[Finding, None, bool]:
        """Yield the faults; return False if the installer doesn't support the Python."""
        # A release with one core is tried with one Python, which needs no mention.
        with_python = f" for Python {interpreter.version}" if view.is_view else ""
        # An environment for each installer: what one leaves out must not be there from the other.
        made = self._run((interpreter.program, "-m", "venv", "--without-pip", str(folder)))
        # Debian's Python has no venv module without the package python3-venv.
        if made.returncode != 0:
            found = f"can't make an environment to install {name} in:\n{made.tail()}"
            yield finding("no-environment", wanted.requirement, found)
            return True
        python = str(folder / "bin" / "python")
        own = self._pip_for(program, python, interpreter) if name == "pip" else program
        if own is None:
            self.notes.append(
                f"pip was not tried for Python {interpreter.version}: it supports only newer ones"
            )
            self.installed[-1] += " (only uv)"
            return False
        steps = _steps(name, python, view.folder.absolute(), wanted, is_first=is_first)
        for step, words in steps:
            done = self._run((*own, *words))
            if done.returncode != 0:
                found = f"{name} can't {step}{with_python}:\n{_indented(done)}"
                yield finding("install-failed", wanted.requirement, found, program=name)
                # One kind of GPU may be whole while another one is not.
                if words[-1] in wanted.requirements[:-1]:
                    continue
                return True
            if is_first and words[-1] in {wanted.core, wanted.requirement}:
                yield from self._use(python, words[-1], wanted)
        return True

    def _use(self, python: str, installed: str, wanted: InstallPlan) -> Iterator[Finding]:
        """Import the packages of the core."""
        for package in wanted.packages:
            done = self._run((python, "-c", f"import {package}"))
            if done.returncode == 0:
                continue
            if need := self._foreign_need(done.stderr, package):
                self.notes.append(f"import {package} can't be tested here: it needs {need}")
                continue
            found = f"with only {installed} installed, import {package} fails:\n{_indented(done)}"
            yield finding("import-failed", installed, found)

    def _foreign_need(self, error: str, package: str) -> str:
        """Return the need of an import that no wheel of the release has promised; "" for none."""
        if missing := _DRIVER.search(error):
            return f"{missing[1]} of NVIDIA's driver"
        missing = _MODULE.search(error)
        # A split keeps all modules and requirements, so another project's module is as missing
        # beside the fat wheel: torchaudio imports torch, and doesn't require it.
        if not missing or self.release.kind is ReleaseKind.BUILT or missing[1] == package:
            return ""
        return f"{missing[1]}, which the fat wheel doesn't require either"

    def _pip_for(
        self, program: tuple[str, ...], python: str, interpreter: Interpreter
    ) -> tuple[str, ...] | None:
        """Return the pip for an environment; None if there is none for its Python.

        A new pip refuses old Pythons, which often have an older pip of their own.
        """
        for one in (program, (interpreter.program, "-m", "pip")):
            if self._run((*one, "--python", python, "--version")).returncode == 0:
                return one
        return None

    def _run(self, argv: tuple[str, ...]) -> CompletedProcess:
        free = without_credentials(self.environment)
        kept = {key: text for key, text in free.items() if key not in _DISTURBING}
        done = self.runner.run(Command(argv=argv, cwd=self.scratch, env=kept, timeout=_SECONDS))
        if done.returncode != 0 and "No space left on device" in done.stdout + done.stderr:
            raise DiskFullError(f"no space left in {self.scratch}", hint=NO_SPACE_HINT)
        return done


def installers(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the installers that are here: pip, uv or both.

    Raises:
        ToolNotFoundError: both are missing.
    """
    here = {"pip": has_pip(), "uv": find_uv(environment) is not None}
    if not any(here.values()):
        raise ToolNotFoundError(
            "neither pip nor uv is installed",
            hint="pip install 'archsplit[publish]'; or check without installing: --no-install",
        )
    return tuple(name for name, is_here in here.items() if is_here)


def read_install_plan(
    release: WheelSet, *, core: str, python: Interpreter, number: int = 0
) -> InstallPlan | None:
    """Return what to install of a release; None if the METADATA of its core is not valid.

    Args:
        python: the interpreter that installs it.
        number: selects one of the kinds of GPU, so that the cores of a release get different ones.
    """
    found: dict[str, Metadata] = {
        wheel.name.project: wheel.metadata for wheel in release.wheels if wheel.metadata is not None
    }
    # Without valid METADATA the requirements are unknown.
    if core not in found:
        return None
    version = str(found[core].version)
    required = [each for one in found.values() for each in _active(one, python)]
    own = {core, *found, *(each.name for each in required if _is_plugin(each, core, version))}
    identity = release.identity
    extras = [ALL_EXTRA]
    if identity is not None and (gpus := _gpu_extras(found[core], identity.plugins)):
        extras.insert(0, gpus[number % len(gpus)])
    return InstallPlan(
        core=f"{core}=={version}",
        packages=tuple(sorted(_packages(release))),
        requirements=tuple(f"{core}[{extra}]=={version}" for extra in extras),
        outside=tuple(sorted({str(each) for each in required if each.name not in own})),
    )


def _packages(release: WheelSet) -> set[str]:
    """Return the import packages of the core, but not the one of PyInstaller's hook."""
    files = (one for one in release.cores[0].members if one.endswith("/__init__.py"))
    found = {file.removesuffix("/__init__.py") for file in files}
    own = set() if release.identity is None else {release.identity.import_package}
    return own | {one for one in found if one.isidentifier() and not one.endswith(HOOK_SUFFIX)}


def _gpu_extras(metadata: Metadata, plugins: Mapping[str, str]) -> list[str]:
    """Return the extras that are named after a plugin, in the order of the plugins."""
    here = set(metadata.provides_extra or ())
    names = [distribution_name(plugin.replace("_", "")) for plugin in plugins]
    return [extra for extra in names if extra in here]


def _reason(core: WheelFacts, found: tuple[Interpreter, ...]) -> str:
    """Return the reason why no interpreter of this machine takes a core."""
    name = core.name
    # Each Python takes cp310-abi3, too, so that an interpreter's tag says nothing by itself.
    here = {tag.rpartition("-")[0] for one in found for tag in one.tags}
    if not here.isdisjoint(tag.rpartition("-")[0] for tag in name.tags):
        return f"this machine accepts no wheel for {', '.join(name.platforms)}"
    return f"no Python for {', '.join(name.pythons)} is here; name one with --python"


def _is_plugin(requirement: Requirement, core: str, version: str) -> bool:
    """Return True if a requirement is on a plugin of this release, present or missing.

    A missing plugin must not be replaced by a distribution of the index with its name.
    """
    exact = str(requirement.specifier) == f"=={version}"
    return exact and requirement.name.startswith(f"{core}-")


def _active(metadata: Metadata, python: Interpreter) -> Iterator[Requirement]:
    """Yield the requirements that hold for a Python with all plugins, without their markers."""
    for each in metadata.requires_dist or []:
        if each.marker is None or each.marker.evaluate({**python.markers, "extra": ALL_EXTRA}):
            requirement = Requirement(str(each))
            requirement.name, requirement.marker = distribution_name(each.name), None
            yield requirement


def _steps(
    name: str, python: str, folder: Path, wanted: InstallPlan, *, is_first: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands of an installer: other projects, the release, the check.

    The first installer also installs the core without plugins.
    """
    pip = name == "pip"
    install: tuple[str, ...] = (
        ("--python", python, "install", "--no-input", "--disable-pip-version-check", "--no-compile")
        if pip
        else ("pip", "install", "--python", python)
    )
    # From the index, and before the release: the release itself comes only from the folder.
    if wanted.outside:
        yield (
            f"install what the wheels need of others ({', '.join(wanted.outside)})",
            (*install, *wanted.outside),
        )
    for requirement in (*([wanted.core] if is_first else []), *wanted.requirements):
        yield (
            f"install {requirement} from the folder",
            (*install, "--no-index", "--find-links", str(folder), requirement),
        )
    check = ("--python", python, "check") if pip else ("pip", "check", "--python", python)
    yield "find everything that the installed wheels require (pip check)", check


def _indented(done: CompletedProcess) -> str:
    return "\n".join(f"    {line}" for line in done.tail().splitlines())
