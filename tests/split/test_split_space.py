"""The disk space that a split needs beside its input."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from split_samples import container, fat_wheel, image, library, split

from archsplit.system.resources import SystemMemory

if TYPE_CHECKING:
    from archsplit.release.context import Effects

HOST = 12 << 20
NO_STACK = '.note.GNU-stack,"",%progbits'
TARGETS = ("sm_50", "sm_60", "sm_70", "sm_80", "sm_90", "sm_100", "sm_120")


class Sampler(threading.Thread):
    """Measures the space of a folder until it is stopped.

    Attributes:
        peak: the most bytes at a time.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.peak = 0
        self._folder, self._end = folder, threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.002):
            # Folders come and go, which rglob doesn't stand.
            paths = (Path(at, name) for at, _, names in os.walk(self._folder) for name in names)
            self.peak = max(self.peak, sum(map(_blocks, paths)))

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.peak


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    heavy = container(*(image(target, 2 << 20) for target in TARGETS))
    # Host code, which packs well: unpacked, it is most of what a split could save.
    (folder / "host.bin").write_bytes(bytes(range(1, 256)) * (HOST // 255))
    (folder / "host.S").write_text(f'.data\n.incbin "{folder}/host.bin"\n.section {NO_STACK}\n')
    liba = library(folder, "liba", 0, str(folder / "host.S"), others=((heavy, 1),))
    return fat_wheel(folder / "fat", {"toyfat/lib/liba.so": liba, "toyfat/__init__.py": b""})


def test_a_split_needs_little_space(
    big: Path, tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    unpacked = 1 + HOST / big.stat().st_size
    # With little memory: the unpacked library, and never a second one.
    for name, memory, most in (("memory", 4 << 30, 1.5), ("disk", 0, unpacked + 0.3)):
        root = tmp_path / name
        root.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        monkeypatch.setattr(SystemMemory, "available", lambda _self, memory=memory: memory)
        sampler = Sampler(root)
        sampler.start()
        out = split(big, root / "out", effects)
        peak = sampler.stop()
        assert big.stat().st_size < peak < most * big.stat().st_size, name
        wheels = sorted(out.glob("*.whl"))
        digests.append([hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels])
    assert digests[0] == digests[1]
    assert len(digests[0]) > len(TARGETS)
