"""Search for the compiler driver: candidates as data, best first; no program is run.

In: an option, the environment, site-packages; out: paths of nvcc. The wrapper itself may be a
candidate, as compiler caches are: a link, or a script, with the name nvcc. Such a candidate is
skipped, or the wrapper would start itself without end. A module of its own, because each hit of the
wrapper needs it and must import little.
"""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import ToolNotFoundError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence


INSTALL_HINT = "pip install 'archsplit[nvcc]' brings a pinned toolkit; or name yours with --nvcc"
TRIED_VARIABLE = "ARCHSPLIT_NVCC_TRIED"
"""Variable with the scripts and links that a wrapper further up has started as nvcc."""
_NVCC, _WRAPPER = "nvcc", "archsplit-nvcc"
_LAUNCHERS = {"ccache", "sccache"}
_PROFILE = "nvcc.profile"
"""A file beside every real nvcc."""
_CALLS_WRAPPER = re.compile(rb"archsplit-nvcc(?=[\s\"';]|$)|archsplit\s+nvcc\s")
_HEAD_BYTES = 4096


class NvccCandidate(NamedTuple):
    """A path where nvcc may be.

    Attributes:
        origin: source of the path, for messages: ``--nvcc``, ``CUDA_HOME``, ``PATH``, ``index
            wheels``.
        nvcc: the program's path, or None if the source has no path.
    """

    origin: str
    nvcc: Path | None


def nvcc_candidates(
    *, explicit: Path | None, environment: Mapping[str, str], site_folders: Sequence[Path]
) -> tuple[NvccCandidate, ...]:
    """Return all candidates, best first; with ``--nvcc``, its value alone.

    Args:
        explicit: the value of ``--nvcc``: the program, or a toolkit's root folder.
        environment: ``CUDA_HOME``, ``CUDA_PATH`` and ``PATH`` are read.
        site_folders: site-packages folders, which may have the index's ``nvidia-*`` wheels.
    """
    if explicit is not None:
        nvcc = explicit / "bin" / _NVCC if explicit.is_dir() else explicit
        return (NvccCandidate(origin="--nvcc", nvcc=nvcc),)
    candidates = [
        NvccCandidate(origin=name, nvcc=Path(environment[name]) / "bin" / _NVCC)
        for name in ("CUDA_HOME", "CUDA_PATH")
        if environment.get(name)
    ]
    # A source without a path stays in the list, for the message about a failed search.
    candidates.extend(_search_path(environment) or [NvccCandidate(origin="PATH", nvcc=None)])
    in_wheels = [
        NvccCandidate(origin="index wheels", nvcc=nvcc)
        for folder in site_folders
        for nvcc in sorted(folder.glob("nvidia/*/bin/nvcc"), reverse=True)
    ]
    candidates.extend(in_wheels or [NvccCandidate(origin="index wheels", nvcc=None)])
    return tuple(candidates)


def split_launcher(argv: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Split a compiler launcher's command line into compiler and arguments.

    Returns:
        The compiler as spelled, or None without one, and nvcc's arguments.
    """
    words = tuple(argv)
    # One cache is enough: another one before the compiler is left out.
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
    """Find the nvcc behind the wrapper, never the wrapper itself.

    Args:
        named: a program or a toolkit's folder; the bare name ``nvcc`` is searched on the PATH.
        wrapper: the path by which the wrapper was started. If the name is nvcc, or if the first
            nvcc on the PATH starts the wrapper, the next one on the PATH comes first.
        environment: as for `nvcc_candidates`; `TRIED_VARIABLE` is read, too.
        site_folders: as for `nvcc_candidates`.

    Raises:
        ToolNotFoundError: there is no nvcc; the message lists all candidates.
    """
    tried = {wrapper.resolve(), *map(Path, _split_paths(environment.get(TRIED_VARIABLE, "")))}
    explicit = None if named in {None, _NVCC} else Path(named or "")
    search = partial(nvcc_candidates, environment=environment, site_folders=site_folders)
    candidates = search(explicit=explicit)
    on_path = _search_path(environment)
    is_masked = any(_starts_wrapper(candidate.nvcc, tried) for candidate in on_path[:1])
    if explicit is not None and _starts_wrapper(candidates[0].nvcc, tried):
        # --nvcc names the wrapper: the user means the nvcc behind it.
        candidates = (*candidates, *on_path, *search(explicit=None))
    elif explicit is None and (named or wrapper.name == _NVCC or is_masked):
        # A masqueraded nvcc: the next one on the PATH is the one without the wrapper.
        candidates = (*on_path, *candidates)
    for candidate in candidates:
        nvcc = candidate.nvcc
        if nvcc is not None and nvcc.is_file() and not _starts_wrapper(nvcc, tried):
            return nvcc
    lines = dict.fromkeys(f"{one.origin}: {_describe(one.nvcc, tried)}" for one in candidates)
    raise ToolNotFoundError("no nvcc; tried\n  " + "\n  ".join(lines), hint=INSTALL_HINT)


def tried_paths(nvcc: Path, environment: Mapping[str, str]) -> str:
    """Return the value of `TRIED_VARIABLE` for programs that the wrapper starts."""
    tried = _split_paths(environment.get(TRIED_VARIABLE, ""))
    # The real nvcc is left out: a program that was compiled and run may call the wrapper again.
    is_real = nvcc.resolve().with_name(_PROFILE).is_file()
    return os.pathsep.join(tried if is_real else [*tried, str(nvcc.absolute())])


def _split_paths(text: str) -> list[str]:
    return [path for path in text.split(os.pathsep) if path]


def _is_compiler(words: Sequence[str]) -> bool:
    return bool(words) and Path(words[0]).name in {_NVCC, _WRAPPER}


def _search_path(environment: Mapping[str, str]) -> list[NvccCandidate]:
    folders = environment.get("PATH", "").split(os.pathsep)
    paths = (shutil.which(_NVCC, path=folder or os.curdir) for folder in dict.fromkeys(folders))
    return [NvccCandidate(origin="PATH", nvcc=Path(nvcc)) for nvcc in paths if nvcc]


def _starts_wrapper(nvcc: Path | None, tried: Container[Path]) -> bool:
    """Return True if a program is the wrapper, or starts the wrapper."""
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


def _describe(nvcc: Path | None, tried: Container[Path]) -> str:
    if nvcc is None:
        return "not found"
    return f"{nvcc}: it starts {_WRAPPER} again" if _starts_wrapper(nvcc, tried) else str(nvcc)
