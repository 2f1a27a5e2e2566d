"""Installation of a core and its plugins into the environment of a Python.

The core's own doctor chooses and installs plugins; a missing core is installed before. And before
anything is installed, the metadata of the wheel is read that pip or uv would take: a wheel without
extras for GPUs is not a core.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability
from archsplit.cli.files import check_folder
from archsplit.cli.options import capabilities, show
from archsplit.devicecode.partition import capability_extra
from archsplit.errors import (
    ArchsplitError,
    InputError,
    ToolFailedError,
    ToolNotFoundError,
    UsageError,
    WheelError,
)
from archsplit.release.identity import IDENTITY_ENDING
from archsplit.release.installed_core import loader_folder
from archsplit.release.summary import download_lines
from archsplit.system.env import without_credentials
from archsplit.system.fs import temporary_dir
from archsplit.system.installers import find_uv, refuse_offline
from archsplit.system.nvidia import driver_version
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.units import short_size
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from packaging.metadata import RawMetadata
    from packaging.tags import Tag

    from archsplit.system.process import CompletedProcess

_QUERY = """
import json, sys
print(json.dumps([sys.path, sys.version_info[:2], sys.prefix]))
"""


def active_python() -> Path:
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
    """Environment of a Python.

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
            raise InputError(f"{python} can't be run: {error}", hint="name a Python") from None
        if done.returncode != 0:
            raise InputError(f"{python} is not a Python", hint="name one with --python")
        folders, version, prefix = json.loads(done.stdout)
        settings = Path(prefix) / "pyvenv.cfg"
        # uv marks the environments that it makes; they often have no pip.
        by_uv = settings.is_file() and "\nuv =" in settings.read_text(errors="replace")
        uv = find_uv(os.environ)
        has_pip = _run((str(python), "-m", "pip", "--version")).returncode == 0
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
        found: dict[str, Distribution] = {}
        for each in distributions(path=list(self.folders)):
            # As Python imports: the first folder of the path wins.
            found.setdefault(canonicalize_name(each.metadata["Name"] or ""), each)
        return found


def install_core(
    environment: Environment, arguments: argparse.Namespace, gpus: tuple[str, ...]
) -> int:
    """Install the core if it is missing; its doctor installs the plugins."""
    name, wheel = _subject(arguments.subject, environment)
    wheel = wheel or _listed_wheel(arguments, name, environment)
    request = CoreRequest(
        name=name,
        subject=arguments.subject,
        wheel=wheel,
        find_links=tuple(arguments.find_links),
        index_url=arguments.index_url or "",
        gpus=gpus,
    )
    core = environment.installed().get(name)
    loader = None if core is None else loader_folder(core)
    if loader is None or wheel is not None:
        is_new = _install_wheel(environment, request, dry_run=arguments.dry_run)
        # A dry run has no core whose doctor could choose plugins, or another version's.
        if arguments.dry_run and is_new:
            return 0
        core = environment.installed().get(name)
        loader = None if core is None else loader_folder(core)
    if loader is None:
        raise InputError(f"{name} was installed, but as a fat wheel, not as a core")
    _require_gpus(gpus)
    words = ["--dry-run"] if arguments.dry_run else []
    words += [word for each in gpus for word in ("--gpu", each)]
    # The installed core's own doctor decides: its loader is the one that chooses later.
    # The doctor looks for uv on the PATH, and uv may be only beside this Python.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
    command = (environment.python, str(loader), "--install", *words, *request.sources)
    done = _run(command, {**os.environ, "PATH": path})
    show(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)  # noqa: T201 - and talk
    return done.returncode


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRequest:
    """A core to install.

    Attributes:
        subject: as it is on the command line.
        wheel: the path or address of its wheel; None if the installer is to find one.
        find_links: folders and addresses with wheels.
        index_url: the index; "" for the installer's own.
        gpus: the capabilities that need plugins; empty for this machine's GPUs.
    """

    name: str
    subject: str
    wheel: str | None
    find_links: tuple[str, ...] = ()
    index_url: str = ""
    gpus: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Options of pip and uv that find wheels."""
        links = chain.from_iterable(("--find-links", each) for each in self.find_links)
        return (*links, *(("--index-url", self.index_url) if self.index_url else ()))


def _install_wheel(environment: Environment, request: CoreRequest, *, dry_run: bool) -> bool:
    """Install a core, unless the same version of it is installed; a fat wheel is replaced.

    Returns:
        False if the same version is installed.

    Raises:
        InputError: the wheel is not a core, or has no plugin for a GPU.
    """
    present = environment.installed().get(request.name)
    is_core = present is not None and loader_folder(present) is not None
    offer = _read_offer(environment, request)
    if offer is not None:
        _check_offer(offer, request)
        if dry_run:
            show("\n".join(_download_table(environment, request, offer)))
    if present is not None and not is_core:
        show(f"{request.name} {present.version} is installed as a fat wheel; its core replaces it")
    # The same version is installed already: only its plugins may be missing.
    version = None if present is None else present.version
    if is_core and request.wheel is not None and version == _version(request.wheel):
        return False
    # The fat wheel has the core's version, so an installer would keep it without this option.
    again = "--reinstall" if environment.uses_uv else "--force-reinstall"
    reinstall = () if present is None else (again, "--no-deps")
    words = (*reinstall, *request.sources, request.wheel or request.subject)
    # A dry run without a core has a table of all GPUs.
    if not dry_run:
        _require_gpus(request.gpus)
    _run_installer(environment.command("install", *words), dry_run=dry_run)
    return True


def _require_gpus(named: Sequence[str]) -> None:
    """Refuse a machine without a GPU if none is named: the core's doctor could choose no plugin.

    Raises:
        TargetError: the machine has neither a GPU nor a driver.
    """
    # With a driver the doctor decides, which also knows a Jetson, and GPUs later than this table.
    if not (named or os.environ.get("ARCHSPLIT_CAPABILITY") or driver_version()):
        capabilities(["native"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Wheel that an installer would take.

    Attributes:
        extras: the extras for GPUs, as ``cc90``, ``sm90`` or ``ptx``, each with its plugins; none
            for a fat wheel.
    """

    version: str
    extras: Mapping[str, tuple[str, ...]]


_GPU_EXTRA = re.compile(r"(cc|sm|compute)-?[0-9]+[af]?|ptx")


def _read_offer(environment: Environment, request: CoreRequest) -> Offer | None:
    """Return the version and the extras of a core's wheel, from metadata; None if unknown."""
    if request.wheel is not None:
        return _read_wheel_offer(request.wheel) if "://" not in request.wheel else None
    if environment.uses_uv:
        return _ask_uv(environment, request)
    words = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
    command = environment.command("install", *words, *request.sources, request.subject)
    done = _ask(command, request.name)
    if done is None:
        return None
    (found,) = (one["metadata"] for one in json.loads(done)["install"])
    return Offer(version=found["version"], extras=_gpu_extras(found))


def _ask_uv(environment: Environment, request: CoreRequest) -> Offer | None:
    """Resolve a core with all plugins, and for each GPU: uv prints no metadata."""
    pins = _resolve_extra(environment, request, "all")
    if pins is None:
        return None
    plugins: dict[str, tuple[str, ...]] = {
        name.removeprefix(f"{request.name}-"): (name,) for name in pins
    }
    extras = {extra: names for extra, names in plugins.items() if _GPU_EXTRA.fullmatch(extra)}
    # A plugin may serve several capabilities, each with an extra of its own.
    for extra in (capability_extra(Capability.parse(gpu)) for gpu in request.gpus if extras):
        own = _resolve_extra(environment, request, extra) or {}
        names = tuple(name for name in own if name.startswith(f"{request.name}-"))
        extras |= {extra: names} if names else {}
    return Offer(version=pins.get(request.name, ""), extras=extras)


def _resolve_extra(
    environment: Environment, request: CoreRequest, extra: str
) -> Mapping[str, str] | None:
    """Return the versions that uv would install of a core with an extra, by project."""
    with temporary_dir() as folder:
        asked = Requirement(request.subject)
        asked.extras = {*asked.extras, extra}
        (folder / "requirements.in").write_text(f"{asked}\n")
        words = ("--quiet", "--no-header", "--no-annotate", *request.sources)
        command = environment.command("compile", *words, str(folder / "requirements.in"))
        done = _ask(command, request.name)
    if done is None:
        return None
    pins: dict[str, str] = {}
    for line in done.splitlines():
        with contextlib.suppress(InvalidRequirement):
            pin = Requirement(line.rstrip(" \\"))
            pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return pins


def _read_wheel_offer(wheel: str) -> Offer | None:
    try:
        with open_wheel(Path(wheel), same_tags=False, full_record=False) as opened:
            fields = opened.raw_metadata
    # The installer says what is wrong with the file.
    except (InputError, WheelError):
        return None
    return Offer(version=_version(wheel), extras=_gpu_extras(fields))


def _gpu_extras(metadata: RawMetadata) -> Mapping[str, tuple[str, ...]]:
    """Return the extras for GPUs, each with the projects that only it requires."""
    requires = map(Requirement, metadata.get("requires_dist", ()))
    rules = [(one.name, one.marker) for one in requires if one.marker]
    # Other requirements have markers too, as of nvidia-nccl-cu12: platform_system == "Linux".
    extras_only = [(name, marker) for name, marker in rules if not marker.evaluate({"extra": ""})]
    return {
        extra: tuple(name for name, marker in extras_only if marker.evaluate({"extra": extra}))
        for extra in metadata.get("provides_extra", ())
        if _GPU_EXTRA.fullmatch(extra)
    }


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
        # Plugins that are built serve later minor capabilities too; only their doctor knows.
        if _extra(gpu, offer) is None and any(one.startswith("cc") for one in offer.extras):
            raise InputError(
                f"{release} has no plugin for a GPU of capability {gpu}",
                hint=f"it has {', '.join(sorted(offer.extras))}",
            )


def _extra(gpu: str, offer: Offer) -> str | None:
    """Return the extra for a capability, or None."""
    number = Capability.parse(gpu).sm_number
    extra = next((one for one in (f"cc{number}", f"sm{number}") if one in offer.extras), None)
    return extra or ("ptx" if "ptx" in offer.extras and _is_newest(gpu, offer) else None)


def _download_table(environment: Environment, request: CoreRequest, offer: Offer) -> Iterator[str]:
    """Yield a row for each GPU: the size of core and packs, the requirement, the packs."""
    gpus = [Capability.parse(gpu) for gpu in request.gpus] or _present_gpus() or GPU_BY_CAPABILITY
    groups: dict[tuple[str, ...], list[Capability]] = {}
    for gpu in gpus:
        if extra := _extra(str(gpu), offer):
            groups.setdefault(offer.extras[extra], []).append(gpu)
    sizes = _sizes(environment, request, {request.name, *chain(*groups)}, offer.version)
    rows = [("GPU", "download", "install", "packs")]
    for packs, served in groups.items():
        known = [sizes[name] for name in (request.name, *packs) if name in sizes]
        total = short_size(sum(known)) if len(known) == len(packs) + 1 else "unknown"
        requirement = f'"{request.name}[{_extra(str(served[0]), offer)}]=={offer.version}"'
        names = ", ".join(name.removeprefix(f"{request.name}-") for name in packs)
        rows.append((", ".join(map(str, served)), total, requirement, names))
    yield from download_lines(rows)


def _present_gpus() -> tuple[Capability, ...]:
    """Return the capabilities of this machine's GPUs; none without a driver."""
    with contextlib.suppress(ArchsplitError):
        return capabilities(["native"])
    return ()


def _sizes(
    environment: Environment, request: CoreRequest, projects: Iterable[str], version: str
) -> Mapping[str, int]:
    """Return the sizes of a release's wheels by project, from folders or the index."""
    own = () if request.wheel is None or "://" in request.wheel else (Path(request.wheel).parent,)
    files: Mapping[str, int] = {
        path.name: path.stat().st_size
        for one in (*own, *map(Path, request.find_links))
        for path in one.glob("*.whl")
    }
    if not files:
        files = _index_sizes(environment, request.index_url, projects)
    tags = _tags(environment)
    found: dict[str, int] = {}
    for file, size in files.items():
        # An index lists source distributions too.
        with contextlib.suppress(InvalidWheelFilename):
            name, release, _, own_tags = parse_wheel_filename(file)
            if str(release) == version and tags & own_tags:
                found[name] = size
    return found


def _index_sizes(
    environment: Environment, index: str, projects: Iterable[str]
) -> Mapping[str, int]:
    """Return the sizes that an index lists, by file; none if it lists none."""
    from archsplit.index.client import Index, index_address
    from archsplit.index.retry import Clock, RetryPolicy

    variables = ("UV_DEFAULT_INDEX", "UV_INDEX_URL") if environment.uses_uv else ("PIP_INDEX_URL",)
    named = (index, *map(os.environ.get, variables), "https://pypi.org/simple/")
    address = next(filter(None, named))
    # A table with unknown sizes is better than no table.
    with contextlib.suppress(ArchsplitError):
        policy = RetryPolicy(seconds=0, clock=Clock(), note=lambda _: None)
        pages = Index(index_address(address), policy).projects(projects).values()
        files = [one for page in pages for one in page.files.values()]
        return {one.name: one.size for one in files if one.size is not None}
    return {}


def _is_newest(gpu: str, offer: Offer) -> bool:
    """Return True if a capability is newer than all extras of a release."""
    numbers = (re.sub("[^0-9]", "", one) for one in offer.extras)
    return Capability.parse(gpu).sm_number > max((int(one) for one in numbers if one), default=0)


def _listed_wheel(arguments: argparse.Namespace, name: str, environment: Environment) -> str | None:
    """Return the newest core of a project in the folders of ``--find-links``.

    An index may have a newer fat wheel of the same name.
    """
    folders = [Path(one) for one in arguments.find_links if "://" not in one]
    wanted = Requirement(arguments.subject).specifier if folders else None
    found = [
        (Version(own.version), path)
        for folder in folders
        for own, path in _fitting_cores(folder, environment)
        if own.project == name and wanted is not None and own.version in wanted
    ]
    return str(max(found)[1].absolute()) if found else None


def _subject(text: str, environment: Environment) -> tuple[str, str | None]:
    """Return the normalized name of the core, and its wheel if one is named.

    Raises:
        InputError: the folder has no core's wheel that fits this Python.
        UsageError: the text is neither a name nor a path.
    """
    # The name in the URL is enough: only the installer downloads the wheel.
    if "://" in text:
        return _wheel_name(text.rpartition("/")[2]).project, text
    path = Path(text)
    if path.suffix == ".whl":
        return _wheel_name(path.name).project, str(path.absolute())
    if path.is_dir():
        check_folder(path)
        found = core_wheel(path, environment)
        return _wheel_name(found.name).project, str(found.absolute())
    try:
        return canonicalize_name(Requirement(text).name), None
    except InvalidRequirement:
        raise UsageError(
            f"{text!r} is neither a project name nor an existing folder or wheel",
            hint="name one, such as xgboost or wheels/",
        ) from None


def _wheel_name(name: str) -> WheelName:
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
    fitting = _fitting_cores(folder, environment)
    projects = {name.project for name, _ in fitting}
    # A folder of several cores gives no way to choose one.
    if len(projects) != 1:
        found = f"cores of {', '.join(sorted(projects))}" if projects else "no wheel of a core"
        raise InputError(
            f"{folder} has {found} for Python {'.'.join(map(str, environment.version))}",
            hint="name the wheel itself, or the folder that archsplit split wrote",
        )
    return max(fitting, key=lambda each: Version(each[0].version))[1]


def _tags(environment: Environment) -> frozenset[Tag]:
    """Return the tags of wheels that fit a Python."""
    return frozenset(chain(cpython_tags(environment.version), compatible_tags(environment.version)))


def _fitting_cores(folder: Path, environment: Environment) -> list[tuple[WheelName, Path]]:
    """Return the wheels of cores in a folder that fit a Python."""
    tags = _tags(environment)
    return [
        (_wheel_name(path.name), path)
        for path in sorted(folder.glob("*.whl"))
        if tags & parse_wheel_filename(path.name)[3] and _is_core_wheel(path)
    ]


def _is_core_wheel(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(IDENTITY_ENDING) for name in archive.namelist())
    # Other files of the folder are not judged here.
    except (OSError, zipfile.BadZipFile):
        return False


def _run_installer(command: tuple[str, ...], *, dry_run: bool) -> None:
    """Run an installer, or print its command line.

    Raises:
        ToolFailedError: the installer failed; the message has its output.
    """
    begin = "would run: " if dry_run else "running: "
    # A terminal of 80 columns would break the command inside a word.
    fold = textwrap.TextWrapper(78, begin, break_long_words=False, break_on_hyphens=False)
    print(" \\\n    ".join(fold.wrap(shlex.join(command))), flush=True)  # noqa: T201 - the report
    if dry_run:
        return
    # pip and uv read their own settings; passwords of a publishing job are not for them.
    free = without_credentials(os.environ)
    done = _run(command, free)
    if done.returncode != 0:
        # Of `python -m pip` the program is python3, which did nothing wrong.
        name = command[2] if command[1] == "-m" else Path(command[0]).name
        raise ToolFailedError(f"{name} failed:\n{done.tail()}")


def _ask(argv: tuple[str, ...], name: str) -> str | None:
    """Return what pip or uv finds on an index, or None if it refuses.

    Raises:
        IndexUnreachableError: no index replies.
    """
    # One more attempt, not five: pip says nothing until the last one has failed.
    few = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", **os.environ}
    done = _run(argv, few)
    if done.returncode == 0:
        return done.stdout
    refuse_offline(done.stderr, subject=name)
    return None


def _run(argv: tuple[str, ...], environment: Mapping[str, str] | None = None) -> CompletedProcess:
    """Run a program; by default in the environment of this process."""
    return SubprocessRunner().run(Command(argv=argv, cwd=Path.cwd(), env=environment or os.environ))
