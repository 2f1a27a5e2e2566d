"""Images with zstd frames, and pretended drivers of a CUDA version."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_packs import Image, SplitSite, images, split_site
from loader_stubs import Workbench, compile_c

from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from pathlib import Path

LIBCUDA = """
int cuInit(unsigned flags) { (void)flags; __builtin_trap(); }
int cuDriverGetVersion(int *version) { *version = CUDA; return 0; }
"""
NEEDED = 12040


@dataclass(frozen=True, slots=True, kw_only=True)
class ZstdImage(Image):
    """An image whose payload is a zstd frame, padded to the size of the plain one."""

    is_damaged: bool = False

    @property
    def content(self) -> bytes:
        frame = zstd.compress(self.letter.encode() * 64)
        size = 65 if self.is_damaged else 64
        head = struct.pack(
            "<HHIQIIIIIIQQQ", 2, 0x101, 64, 64, len(frame), 0, 0, 90, 0, 0, 0x8011, 0, size
        )
        return head + frame.ljust(64, b"\0")


def zstd_images(*, contained: str, is_damaged: bool = False) -> tuple[tuple[Image, ...], ...]:
    return tuple(
        tuple(
            ZstdImage(
                number=each.number, target=each.target, letter=each.letter, is_damaged=is_damaged
            )
            for each in container
        )
        for container in images(contained=contained)
    )


def make_driver(folder: Path, cuda: int) -> str:
    """Compile a driver for a CUDA version; return its folder for the library path."""
    folder.mkdir()
    (folder / "libcuda.c").write_text(LIBCUDA)
    shared = ("-shared", "-fPIC", f"-DCUDA={cuda}", str(folder / "libcuda.c"))
    compile_c(folder / "libcuda.so.1", *shared)
    return str(folder)


def make_core(
    workbench: Workbench, site: Path, loader: Path | None = None, *, is_damaged: bool = False
) -> SplitSite:
    """Install a split core, and a pack for 9.0 whose images are zstd frames."""
    core = split_site(workbench, site, loader=loader)
    whole = zstd_images(contained="all", is_damaged=is_damaged)
    core.table(containers=whole)
    held = zstd_images(contained="sm_90", is_damaged=is_damaged)
    core.add("cc90", "sm_90", containers=held, whole=whole, driver=NEEDED)
    return core
