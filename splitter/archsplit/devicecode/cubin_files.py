"""Wheels that ship cubins as files, in place of fatbins in libraries: a rule for each family.

A cubin is one image, so a file is kept or emptied as a whole. Emptied, not removed: RECORD keeps a
row for it, and ``--undo`` restores it. Only families are listed whose loader compares a digest
before it gives the bytes to the driver, so that an emptied file is never taken for code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import NewBytes
from archsplit.devicecode.file_plan import FilePlan
from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import HEAD_SIZE, Form, cubin_unit, detect_form
from archsplit.devicecode.unregistered import UnregisteredImage, is_unused_code
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FileEdit


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
    place = PurePosixPath(path)
    if place.suffix != ".cubin":
        return None
    return next((one for one in CUBIN_FAMILIES if place.is_relative_to(one.folder)), None)


def plan_cubin_file(path: Path, edit: FileEdit) -> FilePlan:
    """Plan a cubin of a family: no bytes if no chosen GPU can run it, else the same bytes.

    Raises:
        InputError: it can't be read.
        BinaryFormatError: it is damaged.
    """
    window = open_file(path)
    form = detect_form(window.data[:HEAD_SIZE].tobytes())
    unused: tuple[UnregisteredImage, ...] = ()
    # An earlier run may have emptied it.
    if form is Form.CUBIN:
        unit = cubin_unit(window, None, section=None, place=Place.EXECUTABLE)
        unused = tuple(
            UnregisteredImage(
                kind=image.kind_name, target=str(image.target), start=0, end=len(window)
            )
            for image in unit.images
            if is_unused_code(image, edit.selection)
        )
    return FilePlan(
        window=window,
        form=form,
        containers=(),
        pieces=(NewBytes(content=b""),) if unused else (),
        unregistered=unused,
    )
