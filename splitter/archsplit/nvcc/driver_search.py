"""Search for the compiler driver: candidates as text, best first; no program is run.

In: an option, the environment, site-packages; out: paths of nvcc. The wrapper itself may be a
candidate, as compiler caches are: a link, or a script, with the name nvcc. Such a candidate is
skipped, or the wrapper would start itself without end. Each hit of the wrapper needs this module,
so it imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

import os

from archsplit.system.env import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence


INSTALL_HINT = "pip install 'archsplit[nvcc]' brings a pinned toolkit; or name yours with --nvcc"
TRIED_VARIABLE = "ARCHSPLIT_NVCC_TRIED"
"""Variable with the scripts and links that a wrapper further up has started as nvcc."""
_NVCC, _WRAPPER = "nvcc", "archsplit-nvcc"
_LAUNCHERS = {"ccache", "sccache"}
_PROFILE = "nvcc.profile"
"""A file in the folder of every real nvcc."""
_CALLS_WRAPPER = rb"archsplit-nvcc(?=[\s\"';]|$)|archsplit\s+nvcc\s"
_HEAD_BYTES = 4096


def candidate_paths(
    *, explicit: str | None, environment: Mapping[str, str], site_folders: Sequence[str]
) -> tuple[tuple[str, str | None], ...]:
    """Return the origin and the path of each candidate, best first; with ``--nvcc``, only that.

    Args:
        explicit: the value of ``--nvcc``: the program, or a toolkit's root folder.
        environment: ``CUDA_HOME``, ``CUDA_PATH`` and ``PATH`` are read.
        site_folders: site-packages folders, which may have the index's ``nvidia-*`` wheels.
    """
    if explicit is not None:
        is_root = os.path.isdir(explicit)
        return (("--nvcc", os.path.join(explicit, "bin", _NVCC) if is_root else explicit),)
    candidates: list[tuple[str, str | None]] = [
        (name, os.path.join(environment[name], "bin", _NVCC))
        for name in ("CUDA_HOME", "CUDA_PATH")
        if environment.get(name)
    ]
    # A source without a path stays in the list, for the message about a failed search.
    candidates += _search_path(environment) or [("PATH", None)]
    in_wheels = [("index wheels", nvcc) for folder in site_folders for nvcc in _nvcc_wheels(folder)]
    candidates += in_wheels or [("index wheels", None)]
    return tuple(candidates)


def split_launcher(argv: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Split a compiler launcher's command line into compiler and arguments.

    Returns:
        The compiler as spelled, or None without one, and nvcc's arguments.
    """
    words = tuple(argv)
    # One cache is enough: another one before the compiler is left out.
    if words and os.path.basename(words[0]) in _LAUNCHERS and _is_compiler(words[1:]):
        words = words[1:]
    return (words[0], words[1:]) if _is_compiler(words) else (None, words)


def find_real_nvcc(
    named: str | None, *, wrapper: str, environment: Mapping[str, str], site_folders: Sequence[str]
) -> str:
    """Find the nvcc behind the wrapper, never the wrapper itself.

    Args:
        named: a program or a toolkit's folder; the bare name ``nvcc`` is searched on the PATH.
        wrapper: the path by which the wrapper was started. If the name is nvcc, or if the first
            nvcc on the PATH starts the wrapper, the next one on the PATH comes first.
        environment: as for `candidate_paths`; `TRIED_VARIABLE` is read, too.
        site_folders: as for `candidate_paths`.

    Raises:
        ToolNotFoundError: nvcc was not found; the message lists all candidates.
    """
    tried = {os.path.realpath(wrapper), *_split_paths(environment.get(TRIED_VARIABLE, ""))}
    explicit = None if named in {None, _NVCC} else named
    candidates = candidate_paths(
        explicit=explicit, environment=environment, site_folders=site_folders
    )
    on_path = _search_path(environment)
    is_masqueraded = any(_starts_wrapper(nvcc, tried) for _, nvcc in on_path[:1])
    if explicit is not None and _starts_wrapper(candidates[0][1], tried):
        # --nvcc names the wrapper: the user means the nvcc behind it.
        others = candidate_paths(explicit=None, environment=environment, site_folders=site_folders)
        candidates = (*candidates, *on_path, *others)
    elif explicit is None and (named or os.path.basename(wrapper) == _NVCC or is_masqueraded):
        # A masqueraded nvcc: the next one on the PATH is the one without the wrapper.
        candidates = (*on_path, *candidates)
    for _, nvcc in candidates:
        if nvcc is not None and os.path.isfile(nvcc) and not _starts_wrapper(nvcc, tried):
            return nvcc
    from archsplit.errors import ToolNotFoundError  # 1 ms that a hit can do without

    lines = dict.fromkeys(f"{origin}: {_describe(nvcc, tried)}" for origin, nvcc in candidates)
    raise ToolNotFoundError("no nvcc; tried\n  " + "\n  ".join(lines), hint=INSTALL_HINT)


def tried_paths(nvcc: str, environment: Mapping[str, str]) -> str:
    """Return the value of `TRIED_VARIABLE` for programs that the wrapper starts."""
    tried = _split_paths(environment.get(TRIED_VARIABLE, ""))
    # The real nvcc is left out: a program that was compiled and run may call the wrapper again.
    is_real = os.path.isfile(os.path.join(os.path.dirname(os.path.realpath(nvcc)), _PROFILE))
    return os.pathsep.join(tried if is_real else [*tried, _absolute(nvcc)])


def _absolute(path: str) -> str:
    # Without `normpath`: behind a link, ".." is another folder. The working folder may be gone.
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _split_paths(text: str) -> list[str]:
    return [path for path in text.split(os.pathsep) if path]


def _is_compiler(words: Sequence[str]) -> bool:
    return bool(words) and os.path.basename(words[0]) in {_NVCC, _WRAPPER}


def _search_path(environment: Mapping[str, str]) -> list[tuple[str, str | None]]:
    folders = environment.get("PATH", "").split(os.pathsep)
    paths = (find_program(_NVCC, folder or os.curdir) for folder in dict.fromkeys(folders))
    return [("PATH", nvcc) for nvcc in paths if nvcc]


def _nvcc_wheels(folder: str) -> Iterator[str]:
    """Yield the nvcc of each toolkit in a site-packages folder; the newest first."""
    parent = os.path.join(folder, "nvidia")
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in sorted(names, reverse=True):
        nvcc = os.path.join(parent, name, "bin", _NVCC)
        if os.path.exists(nvcc):
            yield nvcc


def _starts_wrapper(nvcc: str | None, tried: Container[str]) -> bool:
    """Return True if a program is the wrapper, or starts the wrapper."""
    if nvcc is None or not os.path.isfile(nvcc):
        return False
    if os.path.realpath(nvcc) in tried or _absolute(nvcc) in tried:
        return True
    try:
        with open(nvcc, "rb", buffering=0) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if not head.startswith(b"#!") or b"archsplit" not in head:
        return False
    import re  # 2 ms, and nearly every nvcc is an executable

    return re.search(_CALLS_WRAPPER, head) is not None


def _describe(nvcc: str | None, tried: Container[str]) -> str:
    if nvcc is None:
        return "not found"
    return f"{nvcc}: it starts {_WRAPPER} again" if _starts_wrapper(nvcc, tried) else nvcc
