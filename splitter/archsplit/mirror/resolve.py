"""Resolution of the inputs of a mirror by pip or uv: which wheels a machine would install.

In: requirement files, ``pylock.toml`` (PEP 751) or ``uv.lock`` files. Out: one wheel
for each project. pip resolves requirements, uv exports its lock, `packaging` selects from a lock.
The Python that runs archsplit decides about markers and tags, as for an installation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urlsplit

from packaging.pylock import (
    Package,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockUnsupportedVersionError,
    PylockValidationError,
    is_valid_pylock_path,
)
from packaging.utils import canonicalize_name

from archsplit.errors import ConflictError, InputError, ToolNotFoundError
from archsplit.mirror.model import ResolvedWheel
from archsplit.system.env import without_credentials
from archsplit.system.fs import read_file, temporary_dir
from archsplit.system.installers import find_uv, pip_command, refuse_offline
from archsplit.system.process import Command
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.mirror.model import MirrorRequest
    from archsplit.system.process import Runner

UV_LOCK = "uv.lock"

_LINES = 6
"""Lines of another program's errors in a message."""


def resolve_inputs(
    request: MirrorRequest, runner: Runner, environment: Mapping[str, str]
) -> tuple[ResolvedWheel, ...]:
    """Return the wheels that a machine would install, sorted by name.

    Raises:
        InputError: an input can't be read or resolved, or a project has no wheel.
        ConflictError: two inputs have different wheels of a project.
        ToolNotFoundError: pip or uv is missing.
    """
    requirements = [path for path in request.inputs if not _is_lock(path)]
    found: list[ResolvedWheel] = []
    own = without_credentials(environment)
    # Together, because pip resolves all requirements of an environment at once.
    if requirements:
        found += _resolve_requirements(requirements, runner, own)
    for path in request.inputs:
        if path.name == UV_LOCK:
            found += _resolve_uv_lock(path, request, runner, own)
        elif is_valid_pylock_path(path):
            found += _select(path, path, extras=request.extras, groups=request.groups)
    wheels: dict[str, ResolvedWheel] = {}
    for wheel in found:
        other = wheels.setdefault(wheel.name, wheel)
        if other.file != wheel.file:
            raise ConflictError(
                f"the inputs have two wheels of {wheel.name}: {other.file}, {wheel.file}",
                hint="mirror each input by itself, with a --lock-name of its own",
            )
    # A mirror without wheels is a mistake, and would remove all wheels of the earlier one.
    if not wheels:
        raise InputError(
            f"no wheel to mirror: {', '.join(map(str, request.inputs))} requires nothing",
            hint="an environment marker may exclude this Python; --extra and --group add projects",
        )
    return tuple(wheels[name] for name in sorted(wheels))


def _is_lock(path: Path) -> bool:
    return path.name == UV_LOCK or is_valid_pylock_path(path)


def _resolve_requirements(
    paths: Iterable[Path], runner: Runner, environment: Mapping[str, str]
) -> Iterator[ResolvedWheel]:
    paths = tuple(paths)
    names = ", ".join(map(str, paths))
    for path in paths:
        # pip's own message about a missing file has no next step.
        read_file(path)
    with temporary_dir() as folder:
        report = folder / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--no-input", "--quiet"]
        # A source distribution would be built to find its requirements.
        words += ["--only-binary=:all:", f"--report={report}"]
        # A wheel is a requirement itself.
        words += [
            str(path.absolute()) if path.suffix == ".whl" else f"--requirement={path}"
            for path in paths
        ]
        command = Command(argv=(*pip_command(environment), *words), cwd=Path.cwd(), env=environment)
        done = runner.run(command)
        if done.returncode != 0 or not report.exists():
            refuse_offline(done.stderr, subject=names)
            raise InputError(
                f"pip can't resolve {names}:\n  {_last_errors(done.stderr)}",
                hint="check the lines of the file; every project needs a wheel for this Python:"
                " build a missing one, and name its folder in the file with --find-links",
            )
        rows = json.loads(read_file(report))["install"]
    refused = []
    for row in rows:
        name = canonicalize_name(row["metadata"]["name"])
        download = row["download_info"]
        url = urldefrag(download["url"]).url
        if "archive_info" not in download or not url.endswith(".whl"):
            refused.append(f"{name}: {url}")
            continue
        yield ResolvedWheel(
            name=name,
            version=row["metadata"]["version"],
            file=unquote(url.rpartition("/")[2]),
            url=url,
            sha256=download["archive_info"].get("hashes", {}).get("sha256", ""),
        )
    _refuse_sources(names, refused)


def _refuse_sources(where: str, refused: list[str]) -> None:
    if refused:
        raise InputError(
            "\n  ".join([f"{where} has projects without a wheel:", *sorted(refused)]),
            hint="build wheels of them, and name those instead of the sources",
        )


def _resolve_uv_lock(
    path: Path, request: MirrorRequest, runner: Runner, environment: Mapping[str, str]
) -> tuple[ResolvedWheel, ...]:
    read_file(path)
    # The project itself has no wheel in an index.
    words = ["export", "--frozen", "--no-emit-project", "--no-default-groups"]
    words += [f"--extra={name}" for name in request.extras]
    words += [f"--group={name}" for name in request.groups]
    uv = find_uv(environment)
    if uv is None:
        raise ToolNotFoundError(f"uv is required to export {path}", hint="pip install uv")
    with temporary_dir() as folder:
        lock = folder / "pylock.toml"
        words += ["--quiet", "--no-header", "--format=pylock.toml", f"--output-file={lock}"]
        done = runner.run(Command(argv=(uv, *words), cwd=path.resolve().parent, env=environment))
        if done.returncode != 0 or not lock.exists():
            refuse_offline(done.stderr, subject=f"export {path}")
            raise InputError(
                f"uv can't export {path}:\n  {_last_errors(done.stderr)}",
                hint="pyproject.toml must be beside the lock, in step with it (uv lock), and define"
                " each --extra and --group",
            )
        return tuple(_select(lock, path, extras=(), groups=()))


def _select(
    path: Path, origin: Path, *, extras: tuple[str, ...], groups: tuple[str, ...]
) -> Iterator[ResolvedWheel]:
    """Yield the wheels that this Python would install from a lock (PEP 751).

    Args:
        origin: the file that the user named, which uv may have exported.

    Raises:
        InputError: the lock can't be read, or has no wheel of a project for this Python.
    """
    refused = []
    try:
        lock = Pylock.from_dict(loads(read_file(path).decode()))
        default = list(lock.default_groups or ())
        chosen = list(
            lock.select(extras=extras, dependency_groups=[*default, *groups] if groups else None)
        )
    except (
        ValueError,
        PylockSelectError,
        PylockUnsupportedVersionError,
        PylockValidationError,
    ) as error:
        raise InputError(
            f"{origin} can't be resolved for this Python: {error}",
            hint="lock again for this Python and platform and with each --extra and --group, or"
            " run archsplit with another Python",
        ) from error
    for package, artifact in chosen:
        if isinstance(artifact, PackageWheel):
            yield _locked_wheel(package, artifact, origin)
        else:
            kind = type(artifact).__name__.removeprefix("Package").lower()
            refused.append(f"{package.name}: {kind}")
    _refuse_sources(str(origin), refused)


def _locked_wheel(package: Package, wheel: PackageWheel, origin: Path) -> ResolvedWheel:
    if wheel.url:
        url = urldefrag(wheel.url).url
    else:
        # The path of a lock is relative to the lock (PEP 751).
        url = (origin.resolve().parent / (wheel.path or "")).as_uri()
    file = wheel.name or unquote(urlsplit(url).path.rpartition("/")[2])
    return ResolvedWheel(
        name=package.name,
        version=str(package.version or file.split("-")[1]),
        file=file,
        url=url,
        sha256=wheel.hashes.get("sha256", "").lower(),
    )


def _last_errors(text: str) -> str:
    """Return the last errors of a program, without its notes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "error", "\u00d7", "\u2570"))]
    # pip's own faults end with the last line of a traceback, which is the reason.
    if errors and errors[-1].endswith("Exception:"):
        errors.append(lines[-1])
    return "\n  ".join((errors or lines)[-_LINES:]) or "no output"
