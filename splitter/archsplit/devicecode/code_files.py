"""Code that is shipped as files: a cubin, or LLVM bitcode, for one GPU each.

In: the path of a file below site-packages or in a wheel. Out: a plan that keeps the file, or leaves
an empty one. Emptied, not removed: RECORD keeps a row for it, and ``--undo`` restores it.

Cubins are listed only if their loader compares a digest before it gives the bytes to the driver, so
that an emptied file is never taken for code. Bitcode (``libnvshmem_device_sm_90.bc``) is read by a
compiler, which refuses an empty file. A GPU without bitcode of its own takes the next older one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.arch.target import Target
from archsplit.devicecode.edits import NewBytes
from archsplit.devicecode.file_forms import Form, window_form
from archsplit.devicecode.file_plan import FilePlan
from archsplit.devicecode.select import kept_bitcode
from archsplit.devicecode.units import cubin_unit
from archsplit.devicecode.unregistered import UnregisteredImage, is_unused_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.file_plan import FileEdit
    from archsplit.devicecode.select import Selection
    from archsplit.formats.reader import Window

_BITCODE = re.compile(r"(.*[_.-])(sm_[0-9]+[af]?)\.bc")


CUBIN_FOLDERS = ("flashinfer_cubin/cubins",)
"""Folders below site-packages of distributions whose cubins are files.

flashinfer-cubin: ``flashinfer.jit.cubin_loader.get_artifact`` compares the SHA-256. It downloads an
emptied file again, or raises RuntimeError if FLASHINFER_NO_DOWNLOAD is set.
"""


def cubin_folder(path: str) -> str | None:
    """Return the folder of a listed cubin below site-packages or in a wheel; None for others."""
    # Most files of an environment have other names.
    if not path.endswith(".cubin"):
        return None
    return next((one for one in CUBIN_FOLDERS if path.startswith(f"{one}/")), None)


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


def plan_code_file(window: Window, edit: FileEdit, *, bitcode: Target | None = None) -> FilePlan:
    """Plan a listed cubin, or bitcode: no bytes if no chosen GPU needs it, else the same.

    Args:
        window: the file.
        edit: the choice.
        bitcode: the target of bitcode that no GPU needs; None for a cubin.

    Raises:
        BinaryFormatError: it is damaged.
    """
    form = window_form(window)
    found: list[tuple[str, str]] = []
    # An earlier run may have emptied it.
    if bitcode is not None and len(window):
        found.append(("bitcode", str(bitcode)))
    elif form is Form.CUBIN:
        images = cubin_unit(window).images
        unused = (one for one in images if is_unused_code(one, edit.selection))
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
