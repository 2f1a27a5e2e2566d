"""Installed cores: the loader package of a core, and the report of the core's doctor.

In: the name of a project as users write it, which is the import package, its folder, or the
distribution. Out: the folder of the loader package in that core, or a message that says what
is installed instead. The doctor of a core runs in a child process, because it belongs to the core:
it may be older than this tool, and it works where importing the core fails.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from archsplit.errors import InputError, ToolFailedError
from archsplit.release.identity import IDENTITY_ENDING, LOADER_PACKAGE
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.system.process import CompletedProcess, Runner


def doctor_report(name: str, *, full: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of an installed core's doctor, decoded.

    Args:
        name: the import package, its folder, or the distribution.
        full: read all of every plugin, not only its index.

    Raises:
        InputError: nothing of that name is installed, or it is not a core.
        ToolFailedError: the doctor crashed.
    """
    words = ["json", "full"] if full else ["json"]
    done = run_doctor(name, words, runner=SubprocessRunner(), environment=environment)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ToolFailedError(
            f"the report of the doctor of {name} can't be read:\n{done.tail()}",
            hint="install the core again",
        ) from None
    return report


def run_doctor(
    name: str, options: Iterable[str], *, runner: Runner, environment: Mapping[str, str]
) -> CompletedProcess:
    """Run the doctor of an installed core.

    Args:
        options: names of options, without the dashes.

    Raises:
        InputError: nothing of that name is installed, or it is not a core.
        ToolFailedError: a signal ended the doctor.
    """
    argv = (sys.executable, str(find_loader_package(name)), *(f"--{word}" for word in options))
    # By its folder and not with -m: the core itself, with all that it imports, stays unloaded.
    done = runner.run(Command(argv=argv, cwd=Path.cwd(), env=environment))
    # An exit code is a result of the doctor; a signal is a crash.
    if done.returncode < 0:
        raise ToolFailedError(
            f"signal {-done.returncode} ended the doctor of {name}",
            hint="install the core again",
        )
    return done


def find_loader_package(name: str) -> Path:
    """Return the folder of the loader package in an installed core.

    Raises:
        InputError: nothing of that name is installed, or it is not a core.
    """
    # PathFinder looks only into folders, importlib's find_spec first into this process.
    spec = PathFinder.find_spec(name) if name.isidentifier() else None
    installed = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    folders = [*([Path(name)] if Path(name).is_dir() else []), *installed]
    loaders = [folder / LOADER_PACKAGE for folder in folders]
    for loader in (*filter(Path.is_dir, loaders), *_distributed_loaders(name)):
        return loader
    # A fat wheel that was installed over the core, or instead of it, leaves its plugins behind.
    for distribution in distributions():
        core = _normal_name(distribution)
        if _has_name(distribution, name) and any(
            required_core(each) == core for each in distributions()
        ):
            raise InputError(missing_core_text(core, distribution, distributions()))
    fault = "is not a core" if folders else "is not installed"
    raise InputError(
        f"{name} {fault}", hint="use its name or, in another environment, its folder: DIR/PACKAGE"
    )


def _distributed_loaders(name: str) -> Iterator[Path]:
    """Yield the loader packages of the cores that have a name.

    The folder of a core lies in a package with the project's own name: ``cupy-cuda12x`` installs
    ``cupy``, and has the folder in ``cupy_cuda12x``.
    """
    for each in distributions():
        if (folder := loader_folder(each)) is not None and _has_name(each, name):
            yield folder


def _has_name(distribution: Distribution, name: str) -> bool:
    """Return True if a distribution or one of its packages has this name."""
    return _normal_name(distribution) == canonicalize_name(name) or any(
        row.startswith(f"{name}/") for row in _record_rows(distribution)
    )


def loader_folder(distribution: Distribution) -> Path | None:
    """Return the folder of a core's loader package; None for other distributions."""
    for row in _record_rows(distribution):
        # A core may be installed under a package of any name.
        if row.endswith(IDENTITY_ENDING):
            return Path(str(distribution.locate_file(row))).parent
    return None


def required_core(distribution: Distribution) -> str | None:
    """Return the core that a distribution of plugins requires; None for other distributions."""
    own = [row for row in _record_rows(distribution) if not _is_record(row)]
    # A distribution with other files is a project that only depends on a core.
    if not own or not all(_is_plugin_file(row) for row in own):
        return None
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        # Old packages may have requirements that today's grammar refuses.
        except InvalidRequirement:
            continue
        # A plugin has one exact pin; other requirements are of other projects.
        if str(requirement.specifier).startswith("=="):
            return canonicalize_name(requirement.name)
    return None


def missing_core_text(name: str, fat: Distribution, installed: Iterable[Distribution]) -> str:
    """Return a message about a fat wheel instead of a core, and its unused plugins."""
    plugins = sorted(_normal_name(each) for each in installed if required_core(each) == name)
    # Without plugins there was never a core: this is an ordinary wheel.
    if not plugins:
        return f"{name} {fat.version} is installed as a fat wheel, not as a core"
    return (
        f"{name} {fat.version} is installed as a fat wheel, so {', '.join(plugins)} are never used"
        f"\nhint: archsplit install {name}, which replaces it with its core; or pip uninstall"
        f" {' '.join(plugins)}"
    )


def _normal_name(distribution: Distribution) -> str:
    return canonicalize_name(distribution.metadata["Name"] or "")


def _record_rows(distribution: Distribution) -> Iterator[str]:
    """Yield the files of a RECORD, without bytecode."""
    for row in (distribution.read_text("RECORD") or "").splitlines():
        path = row.rsplit(",", 2)[0].strip('"')
        # Installers add the bytecode that they compile to RECORD.
        if path and "__pycache__" not in path:
            yield path


def _is_record(path: str) -> bool:
    return PurePosixPath(path).parts[0].endswith(".dist-info")


def _is_plugin_file(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return len(parts) > 2 and parts[0].endswith("_plugins") and parts[1] == "cuda"  # noqa: PLR2004 (the folders above a plugin's own)
