"""Kernel names: what of them stays from build to build, and what a person reads.

Names are mangled by the Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html): each
identifier comes after its length, which is enough for all but a name's arguments. Those take a
demangler: LLVM's, in pycxxfilt, where it is installed.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Demangler = Callable[[str], str | None]

_IDENTIFIER = re.compile(r"(?<![0-9])([1-9][0-9]{0,3})(?=_GLOBAL__N_|(?:CUB|THRUST|_V)_[0-9])")
_HASH = re.compile(r"_[0-9a-f]{8}(?=_|$)|_[0-9]+(?=_|$)")
_LIBRARY = re.compile(r"(CUB|THRUST|_V)_[0-9]\w*")
"""CUB's own namespace, which has its version and the list of targets; ``_V`` since CCCL 3.2."""
_NESTED = re.compile(r"_ZN?[KVr]*")
_LENGTH = re.compile(r"[1-9][0-9]{0,3}")


def stable_name(name: str) -> str:
    """A kernel's name without what differs between two builds of the same source.

    nvcc puts hashes of the path and the content into the names of unnamed namespaces, and CUB puts
    its version and the list of targets into that of its own.
    """
    pieces = []
    end = 0
    for match in _IDENTIFIER.finditer(name):
        after = match.end() + int(match[1])
        if match.start() >= end and after <= len(name):
            stable = _stable(name[match.end() : after])
            pieces += [name[end : match.start()], f"{len(stable)}{stable}"]
            end = after
    return "".join((*pieces, name[end:]))


@cache
def demangler() -> Demangler | None:
    """LLVM's demangler; None where it isn't installed.

    It gives None for what is not mangled, and raises ValueError for what is mangled wrongly.
    """
    try:
        found: Demangler = importlib.import_module("pycxxfilt").itanium_demangle
    except ImportError:
        return None
    return found


def readable_name(name: str, demangle: Demangler | None = None) -> str:
    """``cub::DeviceReduceKernel<float>(float*)``, as it stands in the source.

    Without a demangler, ``cub::DeviceReduceKernel`` and the rest as it is mangled: arguments tell
    templates apart.
    """
    try:
        whole = None if demangle is None else demangle(name)
    except ValueError:
        whole = None
    return _path_and_rest(name) if whole is None else whole.removeprefix("void ")


def _path_and_rest(name: str) -> str:
    match = _NESTED.match(name)
    if match is None:
        return name
    parts, at = [], match.end()
    while length := _LENGTH.match(name, at):
        start = length.end()
        at = start + int(length[0])
        parts.append(name[start:at])
    if not parts or at > len(name):
        return name
    words = ["{unnamed}" if part.startswith("_GLOBAL__N_") else part for part in parts]
    return f"{'::'.join(words)} {name[at:]}".rstrip()


def _stable(identifier: str) -> str:
    library = _LIBRARY.fullmatch(identifier)
    return library[1] if library else _HASH.sub("", identifier)
