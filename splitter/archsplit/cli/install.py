"""``archsplit install``: a core, and exactly the plugins that this machine's GPUs take.

The core's own doctor chooses and installs plugins; this verb installs a missing core,
and removes plugins that no core uses. Before anything is installed it reads the metadata of the
wheel that pip or uv would take: a wheel without extras for GPUs is not a core.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli.files import check_folder
from archsplit.cli.options import capabilities
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, ToolFailedError, ToolNotFoundError, UsageError, WheelError
from archsplit.system.env import without_credentials
from archsplit.system.fs import temporary_dir
from archsplit.system.installers import find_uv

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from rich.console import Console

    from archsplit.cli import options
    from archsplit.wheels.filename import WheelName

_QUERY = """
import json, sys
print(json.dumps([sys.path, sys.version_info[:2], sys.prefix]))
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "install",
        "archsplit install xgboost --find-links split",
        "archsplit install split --gpu 9.0 --dry-run",
    )
    parser.add_argument(
        "subject", nargs="?", metavar="NAME|DIR|URL",
        help="a project, a folder of wheels, or the address of a core's wheel",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print commands, and run nothing")
    parser.add_argument(
        "--clean",
        action="store_true",
        help="only remove plugins whose core is not installed; NAME: only the plugins of this core",
    )
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="9.0",
        help="install for this GPU, which may be elsewhere: 9.0, sm_90, H100; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--find-links", action="append", default=[], metavar="DIR|URL", help="take wheels from here"
    )
    parser.add_argument("--index-url", metavar="URL", help="take wheels from this index")
    parser.add_argument(
        "--python", type=Path, metavar="PATH",
        help="the environment's Python (default: the active environment's)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Clean, then install."""
    del console
    if arguments.subject is None and not arguments.clean:
        raise UsageError("name what to install", hint="archsplit install NAME, or only --clean")
    # A wrong option is refused before an installer changes anything.
    gpus = tuple(str(one) for one in capabilities(arguments.gpu))
    for each in arguments.find_links:
        if "://" not in each:
            check_folder(Path(each))
    environment = Environment.of(arguments.python or _active_python())
    if arguments.clean:
        _clean(environment, arguments.subject, dry_run=arguments.dry_run)
        return 0
    return _install(environment, arguments, gpus)


def _active_python() -> Path:
    """Return the Python of the active environment, or this one outside of virtual environments.

    Raises:
        UsageError: the only environment is archsplit's own, as with uvx and pipx.
    """
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active is not None:
        return Path(active) / "bin" / "python"
    if sys.prefix == sys.base_prefix:
        return Path(sys.executable)
    raise UsageError(
        f"no environment is active, and {sys.prefix} is archsplit's own",
        hint="activate one, or name its Python: --python .venv/bin/python",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment of a Python.

    Attributes:
        folders: its search path.
        version: of that Python, major and minor.
        installer: the command line of pip or uv, up to the verb.
    """

    python: str
    folders: tuple[str, ...]
    version: tuple[int, int]
    installer: tuple[str, ...]

    @classmethod
    def of(cls, python: Path) -> Environment:
        """Return the environment of a Python.

        Raises:
            InputError: the Python can't be run.
            ToolNotFoundError: neither pip nor uv was found.
        """
        try:
            # The environment may be of another Python, so its own path is read.
            done = _run((str(python), "-c", _QUERY))
        except ToolNotFoundError as error:
            raise InputError(f"{python} can't be run: {error}") from None
        if done is None:
            raise InputError(f"{python} is not a Python", hint="name one with --python")
        folders, version, prefix = json.loads(done)
        settings = Path(prefix) / "pyvenv.cfg"
        # uv marks the environments that it makes; they often have no pip.
        by_uv = settings.is_file() and "\nuv =" in settings.read_text(errors="replace")
        uv = find_uv(os.environ)
        has_pip = _run((str(python), "-m", "pip", "--version")) is not None
        if uv is None and not has_pip:
            raise ToolNotFoundError(
                f"{prefix} has no pip, and uv was not found",
                hint=f"{python} -m ensurepip, or put uv on the PATH",
            )
        use_uv = uv is not None and (by_uv or not has_pip)
        return cls(
            python=str(python),
            folders=tuple(filter(None, folders)),
            version=(version[0], version[1]),
            installer=(str(uv), "pip") if use_uv else (str(python), "-m", "pip"),
        )

    @property
    def uses_uv(self) -> bool:
        """True for ``uv pip``, False for ``python -m pip``."""
        return "-m" not in self.installer

    def command(self, verb: str, *words: str) -> tuple[str, ...]:
        """Return a command line of the installer."""
        own = ("--python", self.python) if self.uses_uv else ("--disable-pip-version-check",)
        # pip asks before each removal; uv does not.
        yes = ("--yes",) if verb == "uninstall" and not self.uses_uv else ()
        return (*self.installer, verb, *own, *yes, *words)

    def installed(self) -> dict[str, Distribution]:
        """Return all distributions by normalized name; the first on the path counts."""
        from packaging.utils import canonicalize_name

        found: dict[str, Distribution] = {}
        for each in distributions(path=list(self.folders)):
            # As Python imports: the first folder of the path wins.
            found.setdefault(canonicalize_name(each.metadata["Name"] or ""), each)
        return found


def _clean(environment: Environment, name: str | None, *, dry_run: bool) -> None:
    """Remove plugins whose core is gone, or is installed as the fat wheel."""
    from packaging.utils import canonicalize_name

    from archsplit.release.installed_core import loader_folder, required_core

    installed = environment.installed()
    gone = []
    for each, distribution in installed.items():
        core = required_core(distribution)
        owner = None if core is None else installed.get(core)
        is_of = name is None or core == canonicalize_name(name)
        # A fat wheel replaces core and plugins, so its old plugins only take space.
        if core is not None and is_of and (owner is None or loader_folder(owner) is None):
            gone.append(each)
            state = "is not installed" if owner is None else "is installed as its fat wheel"
            print(f"{each} {distribution.version}: {core} {state}")  # noqa: T201 - the report
    if gone:
        _run_installer(environment.command("uninstall", *sorted(gone)), dry_run=dry_run)
    else:
        print("no plugin is without its core")  # noqa: T201 - the report


def _install(environment: Environment, arguments: argparse.Namespace, gpus: tuple[str, ...]) -> int:
    """Install the core if it is missing; its doctor installs the plugins."""
    from archsplit.release.installed_core import loader_folder

    name, wheel = _subject(arguments.subject, environment)
    wheel = wheel or _listed_wheel(arguments, name, environment)
    sources = [word for each in arguments.find_links for word in ("--find-links", each)]
    sources += ["--index-url", arguments.index_url] if arguments.index_url else []
    core = environment.installed().get(name)
    loader = None if core is None else loader_folder(core)
    if loader is None or wheel is not None:
        subject = arguments.subject
        request = CoreRequest(
            name=name, subject=subject, wheel=wheel, sources=tuple(sources), gpus=gpus
        )
        _install_core(environment, request, dry_run=arguments.dry_run)
        # A dry run has no core whose doctor could choose plugins.
        if arguments.dry_run and loader is None:
            return 0
        core = environment.installed().get(name)
        loader = None if core is None else loader_folder(core)
    if loader is None:
        raise InputError(f"{name} is installed as a fat wheel: what was installed is not a core")
    words = ["--dry-run"] if arguments.dry_run else []
    words += [word for each in gpus for word in ("--gpu", each)]
    # The installed core's own doctor decides: its loader is the one that chooses later.
    return _run_doctor((environment.python, str(loader), "--install", *words, *sources))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRequest:
    """A core to install.

    Attributes:
        subject: as it is on the command line.
        wheel: the path or address of its wheel; None if the installer is to find one.
        sources: options of pip and uv that find wheels.
        gpus: the capabilities that need plugins; empty for this machine's GPUs.
    """

    name: str
    subject: str
    wheel: str | None
    sources: tuple[str, ...]
    gpus: tuple[str, ...] = ()


def _install_core(environment: Environment, request: CoreRequest, *, dry_run: bool) -> None:
    """Install a core, unless the same version of it is installed; a fat wheel is replaced.

    Raises:
        InputError: the wheel is not a core, or has no plugin for a GPU.
    """
    from archsplit.release.installed_core import loader_folder

    present = environment.installed().get(request.name)
    is_core = present is not None and loader_folder(present) is not None
    offer = _read_offer(environment, request)
    if offer is not None:
        _check_offer(offer, request)
    if present is not None and not is_core:
        print(  # noqa: T201 - the report
            f"{request.name} {present.version} is installed as a fat wheel; its core replaces it"
        )
    # The same version is installed already: only its plugins may be missing.
    version = None if present is None else present.version
    if is_core and request.wheel is not None and version == _version(request.wheel):
        return
    # The fat wheel has the core's version, so an installer would keep it without this option.
    reinstall = () if present is None else (_reinstall_option(environment), "--no-deps")
    words = (*reinstall, *request.sources, request.wheel or request.subject)
    _run_installer(environment.command("install", *words), dry_run=dry_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The wheel that an installer would take.

    Attributes:
        extras: the extras for GPUs, as ``cc90``, ``sm90`` or ``ptx``; none for a fat wheel.
    """

    version: str
    extras: frozenset[str]


_GPU_EXTRA = re.compile(r"(cc|sm|compute)-?[0-9]+[af]?|ptx")


def _read_offer(environment: Environment, request: CoreRequest) -> Offer | None:
    """Return the version and the extras of a core's wheel, from metadata; None if unknown."""
    if request.wheel is not None:
        return _read_wheel_offer(request.wheel) if "://" not in request.wheel else None
    if environment.uses_uv:
        return _ask_uv(environment, request)
    words = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
    done = _run(environment.command("install", *words, *request.sources, request.subject))
    if done is None:
        return None
    (found,) = (one["metadata"] for one in json.loads(done)["install"])
    return Offer(version=found["version"], extras=_gpu_extras(found.get("provides_extra", ())))


def _ask_uv(environment: Environment, request: CoreRequest) -> Offer | None:
    """Resolve a core with all of its plugins: uv prints no metadata."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    with temporary_dir() as folder:
        asked = Requirement(request.subject)
        asked.extras = {*asked.extras, "all"}
        (folder / "requirements.in").write_text(f"{asked}\n")
        words = ("--quiet", "--no-header", "--no-annotate", *request.sources)
        done = _run(environment.command("compile", *words, str(folder / "requirements.in")))
    if done is None:
        return None
    pins: dict[str, str] = {}
    for line in done.splitlines():
        with contextlib.suppress(InvalidRequirement):
            pin = Requirement(line.rstrip(" \\"))
            pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    plugins = (name.removeprefix(f"{request.name}-") for name in pins)
    return Offer(version=pins.get(request.name, ""), extras=_gpu_extras(plugins))


def _read_wheel_offer(wheel: str) -> Offer | None:
    from email.parser import BytesParser

    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            metadata = BytesParser().parsebytes(archive.read(name))
    # The installer says what is wrong with the file.
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    extras = _gpu_extras(metadata.get_all("Provides-Extra", []))
    return Offer(version=_version(wheel), extras=extras)


def _gpu_extras(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if _GPU_EXTRA.fullmatch(name))


def _check_offer(offer: Offer, request: CoreRequest) -> None:
    """Refuse a fat wheel and GPUs without a plugin; print what each GPU will get.

    Raises:
        InputError: it has no extra for GPUs, or none for a GPU that was asked for.
    """
    release = f"{request.name} {offer.version}"
    if not offer.extras:
        raise InputError(
            f"{release} is a fat wheel; archsplit install needs a core (no extra for GPUs)",
            hint="install it with pip or uv, then: archsplit slim --site-packages DIR",
        )
    for gpu in request.gpus:
        number = gpu.replace(".", "")
        extra = next((one for one in (f"cc{number}", f"sm{number}") if one in offer.extras), None)
        extra = extra or ("ptx" if "ptx" in offer.extras and _is_newest(gpu, offer) else None)
        # Plugins that are built serve later minor capabilities too; only their doctor knows.
        if extra is None and any(one.startswith("cc") for one in offer.extras):
            raise InputError(
                f"{release} has no plugin for a GPU of capability {gpu}",
                hint=f"it has {', '.join(sorted(offer.extras))}",
            )
        if extra is not None:
            print(f'capability {gpu}: "{request.name}[{extra}]=={offer.version}"')  # noqa: T201 - the report


def _is_newest(gpu: str, offer: Offer) -> bool:
    """Return True if a capability is newer than all extras of a release."""
    numbers = (re.sub("[^0-9]", "", one) for one in offer.extras)
    return int(gpu.replace(".", "")) > max((int(one) for one in numbers if one), default=0)


def _run_doctor(argv: tuple[str, ...]) -> int:
    """Run the doctor of a core, show its output, and return its exit status."""
    from archsplit.system.process import Command, SubprocessRunner

    done = SubprocessRunner().run(Command(argv=argv, cwd=Path.cwd(), env=os.environ))
    print(done.stdout, end="")  # noqa: T201 - the report
    print(done.stderr, end="", file=sys.stderr)  # noqa: T201 - and talk
    return done.returncode


def _reinstall_option(environment: Environment) -> str:
    return "--reinstall" if environment.uses_uv else "--force-reinstall"


def _listed_wheel(arguments: argparse.Namespace, name: str, environment: Environment) -> str | None:
    """Return the newest core of a project in the folders of ``--find-links``.

    An index may have a newer fat wheel of the same name.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    folders = [Path(one) for one in arguments.find_links if "://" not in one]
    wanted = Requirement(arguments.subject).specifier if folders else None
    found = [
        (Version(own.version), path)
        for folder in folders
        for own, path in _fitting_cores(folder, environment)
        if canonical(own.project) == name and wanted is not None and own.version in wanted
    ]
    return str(max(found)[1].absolute()) if found else None


def canonical(name: str) -> str:
    """Return a project's normalized name."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _subject(text: str, environment: Environment) -> tuple[str, str | None]:
    """Return the normalized name of the core, and its wheel if one is named.

    Raises:
        InputError: the folder has no core's wheel that fits this Python.
        UsageError: the text is neither a name nor a path.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    # The name in the URL is enough: only the installer downloads the wheel.
    if "://" in text:
        return canonicalize_name(_wheel_name(text.rpartition("/")[2]).project), text
    path = Path(text)
    if path.suffix == ".whl":
        return canonicalize_name(_wheel_name(path.name).project), str(path.absolute())
    if path.is_dir():
        check_folder(path)
        found = core_wheel(path, environment)
        return canonicalize_name(_wheel_name(found.name).project), str(found.absolute())
    try:
        return canonicalize_name(Requirement(text).name), None
    except InvalidRequirement:
        raise UsageError(
            f"{text!r} is not the name of a project, and not a folder or wheel that exists",
            hint="as in xgboost, or wheels/",
        ) from None


def _wheel_name(name: str) -> WheelName:
    from archsplit.wheels.filename import WheelName

    try:
        return WheelName.parse(name)
    except WheelError:
        raise UsageError(
            f"{name!r} is not a wheel", hint="for an index, archsplit install NAME --index-url URL"
        ) from None


def _version(wheel: str) -> str:
    return _wheel_name(wheel.rpartition("/")[2]).version


def core_wheel(folder: Path, environment: Environment) -> Path:
    """Return the newest wheel of a core in a folder that fits a Python.

    Raises:
        InputError: the folder has no such wheel, or wheels of several cores.
    """
    from packaging.version import Version

    fitting = _fitting_cores(folder, environment)
    projects = {name.project for name, _ in fitting}
    # A folder of several cores gives no way to choose one.
    if len(projects) != 1:
        found = f"cores of {', '.join(sorted(projects))}" if projects else "no core's wheel"
        raise InputError(
            f"{folder} has {found} for Python {'.'.join(map(str, environment.version))}",
            hint="name the wheel itself, or the folder that archsplit split wrote",
        )
    return max(fitting, key=lambda each: Version(each[0].version))[1]


def _fitting_cores(folder: Path, environment: Environment) -> list[tuple[WheelName, Path]]:
    """Return the wheels of cores in a folder that fit a Python."""
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    tags = set(chain(cpython_tags(environment.version), compatible_tags(environment.version)))
    return [
        (_wheel_name(path.name), path)
        for path in sorted(folder.glob("*.whl"))
        if tags & parse_wheel_filename(path.name)[3] and _is_core_wheel(path)
    ]


def _is_core_wheel(path: Path) -> bool:
    from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE

    try:
        with zipfile.ZipFile(path) as archive:
            return any(
                name.endswith(f"/{LOADER_PACKAGE}/{IDENTITY_FILE}") for name in archive.namelist()
            )
    # Other files of the folder are not judged here.
    except (OSError, zipfile.BadZipFile):
        return False


def _run_installer(command: tuple[str, ...], *, dry_run: bool) -> None:
    """Run an installer, or print its command line.

    Raises:
        ToolFailedError: the installer failed; the message has its output.
    """
    from archsplit.system.process import Command, SubprocessRunner

    print(f"{'would run' if dry_run else 'running'}: {shlex.join(command)}", flush=True)  # noqa: T201 - the report
    if dry_run:
        return
    # pip and uv read their own settings; passwords of a publishing job are not for them.
    free = without_credentials(os.environ)
    done = SubprocessRunner().run(Command(argv=command, cwd=Path.cwd(), env=free))
    if done.returncode != 0:
        # Of `python -m pip` the program is python3, which did nothing wrong.
        name = command[2] if command[1] == "-m" else Path(command[0]).name
        raise ToolFailedError(f"{name} failed:\n{done.tail()}")


def _run(argv: tuple[str, ...]) -> str | None:
    """Return the standard output of a program, or None if it failed."""
    from archsplit.system.process import Command, SubprocessRunner

    done = SubprocessRunner().run(Command(argv=argv, cwd=Path.cwd(), env=os.environ))
    return done.stdout if done.returncode == 0 else None
