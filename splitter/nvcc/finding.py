"""Where nvcc may be: the places as data, best first; nothing is run here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INSTALL_HINT = "pip install 'archsplit[nvcc]' brings a pinned toolkit; or name yours with --nvcc"


class Candidate(NamedTuple):
    """A place where nvcc may be.

    Attributes:
        origin: what led there, for messages: ``--nvcc``, ``CUDA_HOME``, ``PATH``, ``index wheels``.
        nvcc: the program's path, or None where nothing leads anywhere.
    """

    origin: str
    nvcc: Path | None


def candidates(
    *, explicit: Path | None, environment: Mapping[str, str], site_folders: Sequence[Path]
) -> tuple[Candidate, ...]:
    """All places to look at, best first; what a user names with ``--nvcc`` is the only one.

    Args:
        explicit: what ``--nvcc`` says: the program, or a toolkit's root folder.
        environment: ``CUDA_HOME``, ``CUDA_PATH`` and ``PATH`` are read.
        site_folders: the site-packages folders where the index's ``nvidia-*`` wheels may lie.
    """
    if explicit is not None:
        nvcc = explicit / "bin" / "nvcc" if explicit.is_dir() else explicit
        return (Candidate(origin="--nvcc", nvcc=nvcc),)
    found = [
        Candidate(origin=name, nvcc=Path(environment[name]) / "bin" / "nvcc")
        for name in ("CUDA_HOME", "CUDA_PATH")
        if environment.get(name)
    ]
    on_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    found.append(Candidate(origin="PATH", nvcc=Path(on_path) if on_path else None))
    in_wheels = [
        Candidate(origin="index wheels", nvcc=nvcc)
        for folder in site_folders
        for nvcc in sorted(folder.glob("nvidia/*/bin/nvcc"), reverse=True)
    ]
    found.extend(in_wheels or [Candidate(origin="index wheels", nvcc=None)])
    return tuple(found)
