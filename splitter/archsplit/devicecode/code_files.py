"""Code that is shipped as files: a cubin, or LLVM bitcode, for one GPU each.

In: the path of a file below site-packages or in a wheel. Out: a plan that keeps the file, or leaves
an empty one. Emptied, not removed: RECORD keeps a row for it, and ``--undo`` restores it.

Of cubins, only families are listed whose loader compares a digest before it gives the bytes to the
driver, so that an emptied file is never taken for code. Bitcode (``libnvshmem_device_sm_90.bc``) is
read by a compiler, which refuses an empty file. A GPU without bitcode of its own takes the next
older one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.arch.target import Target
from archsplit.devicecode.edits import NewBytes
from archsplit.devicecode.file_plan import FilePlan
from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import HEAD_SIZE, Form, cubin_unit, detect_form
from archsplit.devicecode.select import kept_bitcode
from archsplit.devicecode.unregistered import UnregisteredImage, is_unused_code
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.devicecode.file_plan import FileEdit
    from archsplit.devicecode.select import Selection

_BITCODE = re.compile(r"(.*[_.-])(sm_[0-9]+[af]?)\.bc")


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinFamily:
    """A distribution whose cubins are files.

    Attributes:
        folder: the folder of the cubins below site-packages.
        loader: the function that compares digests, and its reply to an emptied file.
    """

    distribution: str
    folder: str
    loader: str


CUBIN_FAMILIES = (
    CubinFamily(
        distribution="flashinfer-cubin",
        folder="flashinfer_cubin/cubins",
        loader="flashinfer.jit.cubin_loader.get_artifact compares the SHA-256: it downloads the"
        " file again, or raises RuntimeError where FLASHINFER_NO_DOWNLOAD is set",
    ),
)
"""All families, by distribution."""


def cubin_family(path: str) -> CubinFamily | None:
    """Return the family of a file below site-packages or in a wheel; None for other files."""
    # Most files of an environment have other names.
    if not path.endswith(".cubin"):
        return None
    place = PurePosixPath(path)
    return next((one for one in CUBIN_FAMILIES if place.is_relative_to(one.folder)), None)


def bitcode_target(path: str) -> Target | None:
    """Return the target of a file of bitcode; None for other files."""
    # Most files of an environment have other names.
    match = _BITCODE.fullmatch(path) if path.endswith(".bc") else None
    return None if match is None else Target.parse(match[2])


def unused_bitcode(paths: Iterable[str], selection: Selection) -> frozenset[str]:
    """Return the files of bitcode that no chosen GPU needs; of each library by itself."""
    families: dict[str, dict[str, Target]] = {}
    for path in paths:
        target = bitcode_target(path)
        if target is not None:
            families.setdefault(path.removesuffix(f"{target}.bc"), {})[path] = target
    return frozenset(
        path
        for family in families.values()
        for path, target in family.items()
        if target not in kept_bitcode(family.values(), selection)
    )


def plan_code_file(path: Path, edit: FileEdit, *, bitcode: Target | None = None) -> FilePlan:
    """Plan a cubin of a family, or bitcode: no bytes if no chosen GPU needs it, else the same.

    Args:
        path: the file.
        edit: the choice.
        bitcode: the target of bitcode that no GPU needs; None for a cubin.

    Raises:
        InputError: it can't be read.
        BinaryFormatError: it is damaged.
    """
    window = open_file(path)
    form = detect_form(window.data[:HEAD_SIZE].tobytes())
    found: list[tuple[str, str]] = []
    # An earlier run may have emptied it.
    if bitcode is not None and len(window):
        found.append(("bitcode", str(bitcode)))
    elif form is Form.CUBIN:
        unit = cubin_unit(window, None, section=None, place=Place.EXECUTABLE)
        unused = (one for one in unit.images if is_unused_code(one, edit.selection))
        found += [(one.kind_name, str(one.target)) for one in unused]
    return FilePlan(
        window=window,
        form=form,
        containers=(),
        pieces=(NewBytes(content=b""),) if found else (),
        unregistered=tuple(
            UnregisteredImage(kind=kind, target=target, start=0, end=len(window))
            for kind, target in found
        ),
    )
