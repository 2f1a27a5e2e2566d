"""Origin of a core: its site folder, its installer, and the source of its wheels.

Installers record this beside each distribution: ``INSTALLER``, and ``direct_url.json`` (PEP 610)
where a file or address was named. What came from an index has no such record: the installer's own
settings name that index. Options of an earlier ``--install`` are recorded here, beside the plugins
that it installed, so that they outlive an update of the core.
"""

from __future__ import annotations

import base64
import hashlib
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
from ._folders import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._core import Core

_SOURCE_FILE = "archsplit_source.json"
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class Source(NamedTuple):
    """Places that an installer takes plugins from; empty for its own settings."""

    find_links: tuple[str, ...] = ()
    index_url: str | None = None

    def options(self) -> tuple[str, ...]:
        """Return the options of pip and uv for these places."""
        if self == Source():
            return ()
        index = ("--no-index",) if self.index_url is None else ("--index-url", self.index_url)
        return (*index, *(word for each in self.find_links for word in ("--find-links", each)))


class Program(NamedTuple):
    """An installer, for the folder that a core is in."""

    name: str
    install: tuple[str, ...]
    """Command line up to its first option."""
    uninstall: tuple[str, ...]
    target: str | None
    """A folder outside of an environment; None if the core is in one."""


def site_folder(folder: str = FOLDER) -> str:
    """Return the folder that the core's package is installed in."""
    return os.path.dirname(os.path.dirname(os.path.realpath(folder)))  # noqa: PTH120 (as in _folders)


def normalized(name: str) -> str:
    """A distribution's name as all installers compare it."""
    return re.sub("[-_.]+", "-", name).lower()


def source_of(core: Core, folder: str = FOLDER) -> str | None:
    """Return the folder or the page that the core's wheel came from; None for the configured index.

    A pack's own record counts where the core has none.
    """
    return _records(site_folder(folder), _names(core)).place


def saved_source(core: Core, folder: str = FOLDER) -> Source:
    """Return the places that an earlier ``--install`` was given; empty if there was none."""
    return _records(site_folder(folder), _names(core)).saved


def save_source(core: Core, source: Source, plugins: Sequence[str], folder: str = FOLDER) -> None:
    """Record the source of some installed plugins, for the next ``--install``.

    The file is added to the installer's RECORD, so that it goes with the plugin. Credentials of
    addresses are left out.
    """
    places = tuple(
        each if "://" in each else os.path.abspath(each)  # noqa: PTH100 (as in _folders)
        for each in source.find_links
    )
    # Anybody who can read the site folder can read this file.
    index = None if source.index_url is None else without_credentials(source.index_url)
    kept = Source(tuple(map(without_credentials, places)), index)
    content = json.dumps(kept._asdict()).encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    for name in plugins:
        own = f"{normalized(name).replace('-', '_')}-{core.version}.dist-info"
        record = os.path.join(site_folder(folder), own, "RECORD")  # noqa: PTH118 (as in _folders)
        file = f"{own}/{_SOURCE_FILE}"
        try:
            with open(record, encoding="utf-8") as stream:  # noqa: PTH123 (as in _folders)
                is_listed = file in stream.read()
            with open(os.path.join(site_folder(folder), file), "wb") as stream:  # noqa: PTH118, PTH123 (as in _folders)
                stream.write(content)
            if not is_listed:
                with open(record, "a", encoding="utf-8") as stream:  # noqa: PTH123 (as in _folders)
                    stream.write(f"{file},sha256={digest},{len(content)}\n")
        except OSError:
            # The plugins are installed; only the next command needs the option again.
            return


def without_credentials(text: str) -> str:
    """Return the text with no user and no password in its addresses."""
    return _CREDENTIALS.sub("", text)


def install_words(core: Core, folder: str = FOLDER) -> str:
    """Return the beginning of a command for people, which finds the core's plugins."""
    found = _records(site_folder(folder), _names(core))
    words = ("uv", "pip", "install") if found.installer == "uv" else ("pip", "install")
    source = found.saved if found.place is None else Source((found.place,))
    return shlex.join((*words, *source.options()))


def _names(core: Core) -> tuple[str, ...]:
    return (core.distribution, *(distribution for _, distribution in core.plugins()))


class _Records(NamedTuple):
    place: str | None
    """First recorded folder or page of the core's and the plugins' wheels."""
    installer: str
    """Installer of the core, as its INSTALLER file names it."""
    saved: Source


@lru_cache(maxsize=None)
def _records(site: str, names: tuple[str, ...]) -> _Records:
    """Return the records that lie beside some distributions, the core first."""
    wanted = {normalized(name): rank for rank, name in enumerate(names)}
    places, saved, installer = [], [], ""
    for each in distributions(path=[site]):
        rank = wanted.get(normalized(each.metadata["Name"] or ""))
        # A site folder has hundreds of distributions, and few are of this core.
        if rank is None:
            continue
        if rank == 0:
            installer = (each.read_text("INSTALLER") or "").strip()
        place = _parent(each.read_text("direct_url.json"))
        places += [] if place is None else [(rank, place)]
        source = _source(each.read_text(_SOURCE_FILE))
        saved += [] if source is None else [(rank, source)]
    return _Records(
        place=min(places)[1] if places else None,
        installer=installer,
        saved=min(saved, key=lambda each: each[0])[1] if saved else Source(),
    )


def _source(record: str | None) -> Source | None:
    """Return the source that an earlier installation recorded; None for anything else."""
    try:
        content = json.loads(record or "null")
        links, index = content["find_links"], content["index_url"]
    except (ValueError, TypeError, KeyError):
        return None
    texts = [*links, index or ""] if isinstance(links, list) else [None]
    return Source(tuple(links), index) if all(isinstance(each, str) for each in texts) else None


def program(core: Core, folder: str = FOLDER) -> Program:
    """Return the installer of the core's environment, or the other one if it is gone.

    Raises:
        PluginError: there is neither pip nor uv.
    """
    place = site_folder(folder)
    python, target, user = _environment(place)
    uv = shutil.which("uv") or _next_to(python, "uv")
    has_pip = python != sys.executable or find_spec("pip") is not None
    if uv is not None and (_is_made_by_uv(core, place) or not has_pip):
        words = (uv, "pip")
        own = ("--python", python)
        where = () if target is None and not user else ("--target", place)
        return Program("uv", (*words, "install", *own, *where), (*words, "uninstall", *own), None)
    # uv's environments have no pip, and uv may not be on the PATH of a service.
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
    """Return a folder's Python, the folder if it has none, and if it's a user's."""
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


def _next_to(python: str, name: str) -> str | None:
    path = os.path.join(os.path.dirname(python), name)  # noqa: PTH118, PTH120 (as in _folders)
    return path if os.access(path, os.X_OK) else None


def _is_made_by_uv(core: Core, place: str) -> bool:
    """By the records of the core's installer, or of the environment's maker."""
    installer = _records(place, _names(core))[1]
    # The core's own record comes first: pip and uv may both be used in one environment.
    if installer:
        return installer == "uv"
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:  # noqa: PTH118, PTH123 (as in _folders)
            return any(line.startswith("uv =") for line in file)
    except OSError:
        return False


def _parent(record: str | None) -> str | None:
    """Return the folder, or the page, that lists the file of a ``direct_url.json``."""
    try:
        url = json.loads(record or "null")["url"]
        parts = urlsplit(url)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    # An editable installation or a source archive has no wheels beside it.
    if not parts.path.endswith(".whl"):
        return None
    if parts.scheme == "file":
        return os.path.dirname(unquote(parts.path))  # noqa: PTH120 (as in _folders)
    return str(url[: url.rindex("/") + 1])


def wheels_in(source: str, distribution: str, version: str) -> Iterator[str]:
    """Return the wheels of one release in a folder, by their names."""
    start = f"{normalized(distribution).replace('-', '_')}-{version}-"
    try:
        names = sorted(os.listdir(source))  # noqa: PTH208 (as in _folders)
    except OSError:
        names = []
    for name in names:
        if name.lower().startswith(start.lower()) and name.endswith(".whl"):
            yield os.path.join(source, name)  # noqa: PTH118 (as in _folders)
