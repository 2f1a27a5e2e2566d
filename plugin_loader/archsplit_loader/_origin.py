"""The origin of a core: its site folder, its installer, and the source of its wheels.

Installers record this beside each distribution: ``INSTALLER``, and ``direct_url.json`` (PEP 610)
where a file or address was named. What came from an index has no such record: the installer's own
settings name that index.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import sys
import sysconfig
from functools import lru_cache
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from ._errors import PluginError
from ._places import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._core import Core


class Program(NamedTuple):
    """An installer, for the folder that a core is in."""

    name: str
    install: tuple[str, ...]
    """The command line up to its first option."""
    uninstall: tuple[str, ...]
    target: str | None
    """A folder that is no environment of its own; None where the core is in one."""


def site_folder(folder: str = FOLDER) -> str:
    """The folder that the core's package is installed in."""
    return os.path.dirname(os.path.dirname(os.path.realpath(folder)))  # noqa: PTH120 (as in _places)


def normalized(name: str) -> str:
    """A distribution's name as all installers compare it."""
    return re.sub("[-_.]+", "-", name).lower()


def source_of(core: Core, folder: str = FOLDER) -> str | None:
    """The folder or the page that the core's wheel came from; None for the configured index.

    A pack's own record counts where the core has none.
    """
    return _records(site_folder(folder), _names(core))[0]


def install_words(core: Core, folder: str = FOLDER) -> str:
    """The beginning of a command for people, which finds the core's plugins."""
    source, installer = _records(site_folder(folder), _names(core))
    words = "uv pip install" if installer == "uv" else "pip install"
    return words if source is None else f"{words} --no-index --find-links {shlex.quote(source)}"


def _names(core: Core) -> tuple[str, ...]:
    return (core.distribution, *(distribution for _, distribution in core.plugins()))


@lru_cache(maxsize=None)
def _records(site: str, names: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the first recorded source of some distributions, and the core's installer."""
    wanted = {normalized(name): rank for rank, name in enumerate(names)}
    found, installer = [], ""
    for each in distributions(path=[site]):
        rank = wanted.get(normalized(each.metadata["Name"] or ""))
        source = None if rank is None else _parent(each.read_text("direct_url.json"))
        if rank == 0:
            installer = (each.read_text("INSTALLER") or "").strip()
        if rank is not None and source is not None:
            found.append((rank, source))
    return (min(found)[1] if found else None), installer


def program(core: Core, folder: str = FOLDER) -> Program:
    """The installer that made the core's environment, or the other one where that is gone.

    Raises:
        PluginError: there is neither pip nor uv.
    """
    place = site_folder(folder)
    python, target, user = _environment(place)
    uv = shutil.which("uv") or _beside(python, "uv")
    has_pip = python != sys.executable or find_spec("pip") is not None
    if uv is not None and (_is_made_by_uv(core, place) or not has_pip):
        words = (uv, "pip")
        own = ("--python", python)
        where = () if target is None and not user else ("--target", place)
        return Program("uv", (*words, "install", *own, *where), (*words, "uninstall", *own), None)
    if not has_pip:
        raise PluginError(
            "neither pip nor uv is here to install with\n"
            f"hint: {python} -m ensurepip, or put uv on the PATH"
        )
    run = (python, "-m", "pip")
    quiet = ("--no-input", "--disable-pip-version-check")
    return Program(
        "pip",
        (*run, "install", *quiet, *(("--user",) if user else ())),
        (*run, "uninstall", "--yes", *quiet),
        target,
    )


def _environment(place: str) -> tuple[str, str | None, bool]:
    """The Python whose environment a folder is; the folder where it is none's; if it's a user's."""
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    # An environment's own folders come first: a user's folder may be a link to one.
    if place in own:
        return sys.executable, None, False
    if place == os.path.realpath(site.getusersitepackages()):
        return sys.executable, None, True
    base = getattr(sys, "_base_executable", None) or sys.executable
    inside = os.path.realpath(sys.base_prefix) + os.sep
    if sys.prefix != sys.base_prefix and place.startswith(inside):
        return base, None, False
    return sys.executable, place, False


def _beside(python: str, name: str) -> str | None:
    path = os.path.join(os.path.dirname(python), name)  # noqa: PTH118, PTH120 (as in _places)
    return path if os.access(path, os.X_OK) else None


def _is_made_by_uv(core: Core, place: str) -> bool:
    """By the records of the core's installer, or of the environment's maker."""
    installer = _records(place, _names(core))[1]
    if installer:
        return installer == "uv"
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:  # noqa: PTH118, PTH123 (as in _places)
            return any(line.startswith("uv =") for line in file)
    except OSError:
        return False


def _parent(record: str | None) -> str | None:
    """The folder, or the page, that lists the file of a ``direct_url.json``."""
    try:
        url = json.loads(record or "null")["url"]
        parts = urlsplit(url)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    # An editable installation or a source archive has no wheels beside it.
    if not parts.path.endswith(".whl"):
        return None
    if parts.scheme == "file":
        return os.path.dirname(unquote(parts.path))  # noqa: PTH120 (as in _places)
    return str(url[: url.rindex("/") + 1])


def wheels_in(source: str, distribution: str, version: str) -> Iterator[str]:
    """The wheels of one release in a folder, by their names."""
    start = f"{normalized(distribution).replace('-', '_')}-{version}-"
    try:
        names = sorted(os.listdir(source))  # noqa: PTH208 (as in _places)
    except OSError:
        names = []
    for name in names:
        if name.lower().startswith(start.lower()) and name.endswith(".whl"):
            yield os.path.join(source, name)  # noqa: PTH118 (as in _places)
