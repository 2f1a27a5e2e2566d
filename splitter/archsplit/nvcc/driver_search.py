"""Search for the nvcc that is meant: candidates as data, best first; no program is run.

The wrapper itself may stand at one of these places, as compiler caches do: as a link, or a script,
that is called nvcc. Such a place is passed over, or the wrapper would start itself without end.
A module of its own, because each hit of the wrapper needs it and imports little.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import ToolNotFoundError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence


INSTALL_HINT = "pip install 'archsplit[nvcc]' brings a pinned toolkit; or name yours with --nvcc"


TRIED_VARIABLE = "ARCHSPLIT_NVCC_TRIED"
"""Names the scripts and links that the wrapper has started as nvcc, for a wrapper behind them."""


_NVCC, _WRAPPER = "nvcc", "archsplit-nvcc"


_LAUNCHERS = {"ccache", "sccache"}


_PROFILE = "nvcc.profile"
"""Lies beside every real nvcc."""


_CALLS_WRAPPER = re.compile(rb"archsplit-nvcc(?=[\s\"';]|$)|archsplit\s+nvcc\s")


_HEAD_BYTES = 4096


class NvccCandidate(NamedTuple):
    """A place where nvcc may be.

    Attributes:
        origin: what led there, for messages: ``--nvcc``, ``CUDA_HOME``, ``PATH``, ``index wheels``.
        nvcc: the program's path, or None where nothing leads anywhere.
    """

    origin: str
    nvcc: Path | None


def nvcc_candidates(
    *, explicit: Path | None, environment: Mapping[str, str], site_folders: Sequence[Path]
) -> tuple[NvccCandidate, ...]:
    """All places to look at, best first; what a user names with ``--nvcc`` is the only one.

    Args:
        explicit: what ``--nvcc`` says: the program, or a toolkit's root folder.
        environment: ``CUDA_HOME``, ``CUDA_PATH`` and ``PATH`` are read.
        site_folders: the site-packages folders where the index's ``nvidia-*`` wheels may lie.
    """
    if explicit is not None:
        nvcc = explicit / "bin" / _NVCC if explicit.is_dir() else explicit
        return (NvccCandidate(origin="--nvcc", nvcc=nvcc),)
    found = [
        NvccCandidate(origin=name, nvcc=Path(environment[name]) / "bin" / _NVCC)
        for name in ("CUDA_HOME", "CUDA_PATH")
        if environment.get(name)
    ]
    found.extend(_on_path(environment) or [NvccCandidate(origin="PATH", nvcc=None)])
    in_wheels = [
        NvccCandidate(origin="index wheels", nvcc=nvcc)
        for folder in site_folders
        for nvcc in sorted(folder.glob("nvidia/*/bin/nvcc"), reverse=True)
    ]
    found.extend(in_wheels or [NvccCandidate(origin="index wheels", nvcc=None)])
    return tuple(found)


def split_launcher(argv: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Split the compiler that a launcher is given from nvcc's arguments.

    Another compiler cache before the compiler is left out: one cache is enough.

    Returns:
        The compiler as it was spelled, None where there is none, and nvcc's arguments.
    """
    words = tuple(argv)
    if words and Path(words[0]).name in _LAUNCHERS and _is_compiler(words[1:]):
        words = words[1:]
    return (words[0], words[1:]) if _is_compiler(words) else (None, words)


def find_real_nvcc(
    named: str | None,
    *,
    wrapper: Path,
    environment: Mapping[str, str],
    site_folders: Sequence[Path],
) -> Path:
    """Find the nvcc that the wrapper stands in for, which never leads back to the wrapper.

    Args:
        named: a program or a toolkit's folder; the bare name ``nvcc`` is looked for on the PATH.
        wrapper: the path by which the wrapper was started. Where that is called nvcc, or the first
            nvcc on the PATH leads to the wrapper, the wrapper stands in for the next one there.
        environment: as for `nvcc_candidates`; `TRIED_VARIABLE` is read, too.
        site_folders: as for `nvcc_candidates`.

    Raises:
        ToolNotFoundError: there is none; lists every place.
    """
    tried = {wrapper.resolve(), *map(Path, _split_paths(environment.get(TRIED_VARIABLE, "")))}
    explicit = None if named in {None, _NVCC} else Path(named or "")
    places = nvcc_candidates(explicit=explicit, environment=environment, site_folders=site_folders)
    on_path = _on_path(environment)
    is_masked = any(_leads_back(place.nvcc, tried) for place in on_path[:1])
    if explicit is not None and _leads_back(places[0].nvcc, tried):
        others = nvcc_candidates(explicit=None, environment=environment, site_folders=site_folders)
        places = (*places, *on_path, *others)
    elif explicit is None and (named or wrapper.name == _NVCC or is_masked):
        places = (*on_path, *places)
    for place in places:
        nvcc = place.nvcc
        if nvcc is not None and nvcc.is_file() and not _leads_back(nvcc, tried):
            return nvcc
    lines = dict.fromkeys(f"{place.origin}: {_said_of(place.nvcc, tried)}" for place in places)
    raise ToolNotFoundError("no nvcc; tried\n  " + "\n  ".join(lines), hint=INSTALL_HINT)


def tried_paths(nvcc: Path, environment: Mapping[str, str]) -> str:
    """Return the value of `TRIED_VARIABLE` for programs that the wrapper starts.

    The real nvcc is never in it: a program that was compiled and run may call the wrapper again.
    """
    tried = _split_paths(environment.get(TRIED_VARIABLE, ""))
    is_real = nvcc.resolve().with_name(_PROFILE).is_file()
    return os.pathsep.join(tried if is_real else [*tried, str(nvcc.absolute())])


def _split_paths(text: str) -> list[str]:
    return [path for path in text.split(os.pathsep) if path]


def _is_compiler(words: Sequence[str]) -> bool:
    return bool(words) and Path(words[0]).name in {_NVCC, _WRAPPER}


def _on_path(environment: Mapping[str, str]) -> list[NvccCandidate]:
    folders = environment.get("PATH", "").split(os.pathsep)
    found = (shutil.which(_NVCC, path=folder or os.curdir) for folder in dict.fromkeys(folders))
    return [NvccCandidate(origin="PATH", nvcc=Path(nvcc)) for nvcc in found if nvcc]


def _leads_back(nvcc: Path | None, tried: Container[Path]) -> bool:
    """Tell if a program is the wrapper, or starts the wrapper."""
    if nvcc is None or not nvcc.is_file():
        return False
    if nvcc.resolve() in tried or nvcc.absolute() in tried:
        return True
    try:
        with nvcc.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(b"#!") and _CALLS_WRAPPER.search(head) is not None


def _said_of(nvcc: Path | None, tried: Container[Path]) -> str:
    if nvcc is None:
        return "not found"
    return f"{nvcc}: it starts {_WRAPPER} again" if _leads_back(nvcc, tried) else str(nvcc)
