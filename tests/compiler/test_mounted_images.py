"""Images with equal inodes, sizes and times, mounted one after the other at one place."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, Project, settle

from archsplit.system import mounts

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an image"),
]

FIXED = "1000000000"
MAKERS = {
    "squashfs": "mksquashfs {folder} {image} -noappend -quiet",
    "erofs": "mkfs.erofs -T 1000000000 -U 00000000-0000-0000-0000-000000000001 {image} {folder}",
    "iso9660": "genisoimage -quiet -R -o {image} {folder}",
    "ext4": "mkfs.ext4 -q -U 00000000-0000-0000-0000-000000000001 -d {folder} {image} 4M",
    "fuse": "mksquashfs {folder} {image} -noappend -quiet",
    "fuseiso": "genisoimage -quiet -R -o {image} {folder}",
    "overlay": "mksquashfs {folder} {image} -noappend -quiet",
}
PROGRAMS = {"fuse": "squashfuse", "fuseiso": "fuseiso"}
"""Programs that mount an image themselves; the kernel mounts the others."""


def run(words: str) -> None:
    program = words.split(maxsplit=1)[0]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": FIXED, "E2FSPROGS_FAKE_TIME": FIXED}
    done = subprocess.run(
        words.split(), capture_output=True, text=True, env=environment, check=False
    )
    # A container may have neither loop devices nor FUSE, and a kernel not every file system.
    if done.returncode and program in {"mount", *PROGRAMS.values()}:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


class Images:
    """Two images with another content of ``v.h``, and the place where they are mounted."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.place = folder / "mounted"
        self.place.mkdir()
        contents = [folder / "content-1", folder / "content-2"]
        for number, content in enumerate(contents, 1):
            content.mkdir()
            (content / "v.h").write_text(f"#define VALUE {number}\n")
        changed: set[int] = set()
        # An image of ext4 has the second of the last change.
        while len(changed) != 1:
            for path in (*(content / "v.h" for content in contents), *contents):
                os.utime(path, (int(FIXED), int(FIXED)))
            changed = {int((content / "v.h").stat().st_ctime) for content in contents}
        for number, content in enumerate(contents, 1):
            run(MAKERS[kind].format(folder=content, image=folder / str(number)))

    def mount(self, number: int) -> Path:
        """Mount an image; return the folder of its files."""
        image = self.folder / str(number)
        run(f"{PROGRAMS.get(self.kind, 'mount -o loop,ro')} {image} {self.place}")
        if self.kind != "overlay":
            return self.place
        over = self.folder / "over"
        for name in ("up", "work", "over"):
            (self.folder / name).mkdir(exist_ok=True)
        layers = f"lowerdir={self.place},upperdir={self.folder}/up,workdir={self.folder}/work"
        run(f"mount -t overlay overlay -o {layers} {over}")
        return over

    def unmount(self) -> None:
        for name in ("over", "mounted"):
            if (self.folder / name).is_mount():
                subprocess.run(["umount", str(self.folder / name)], check=True)


@pytest.mark.parametrize("base", ["", "{folder}"])
@pytest.mark.parametrize("kind", MAKERS)
def test_swapped_image_is_compiled_again(
    toolkit: Toolkit, tmp_path: Path, kind: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    images = Images(kind, tmp_path / "images")
    project = Project(
        folder=tmp_path / "one",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": base.format(folder=tmp_path)},
    )
    project.write("n.cpp", "#include <v.h>\nint n() { return VALUE; }\n")

    def compiled(number: int) -> tuple[str, ...]:
        place = images.mount(number)
        # Each call of the wrapper is a process of its own.
        monkeypatch.setattr(mounts, "_identities", {})
        settle()
        try:
            return project.compile(f"-I{place}", make="-c n.cpp")
        finally:
            monkeypatch.undo()
            stamps.append((place / "v.h").stat())
            images.unmount()

    stamps: list[os.stat_result] = []
    compiled(1)
    assert KNOWN[0] in compiled(1)
    before = (project.folder / "k.o").read_bytes()
    assert KNOWN[0] not in compiled(2)
    assert (project.folder / "k.o").read_bytes() != before
    same = {(each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in stamps}
    assert len(same) == 1, "the images differ in more than their content"
