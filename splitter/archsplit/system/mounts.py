"""Identities of file systems: a file's times count only within one mounted image.

Most file systems set a file's ctime themselves, so a changed file has other times. An image
(squashfs, erofs, iso9660, cramfs) brings its times along, and so does FUSE: another image at the
same mount point may have files with equal inodes, sizes and times. Its block device has a sequence
number (``diskseq``), which Linux changes with each image. Without one, times mean nothing.

Each hit of the compiler wrapper needs this module, so it imports nothing that Python's start hasn't
imported.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNTS = "/proc/self/mountinfo"
_BLOCK_DEVICES = "/sys/dev/block"
_BOOT = "/proc/sys/kernel/random/boot_id"
_IMAGES = {"squashfs", "erofs", "iso9660", "cramfs", "romfs", "udf"}
_FUSE = "fuse"
"""Beginning of the types ``fuse``, ``fuseblk`` and ``fuse.NAME``; the times are a program's."""
_OVERLAY = "overlay"
_LOOP = 7
"""Major number of loop devices: an ext4 image may be swapped, too."""
_POSITIVE = (1 << 62) - 1

_identities: dict[int, int] = {}


def device_identity(device: int) -> int:
    """Return the identity of a mounted file system, from process to process.

    A negative number is valid in this process only: times of files on the device prove nothing to
    another process.

    Args:
        device: the ``st_dev`` of a file.
    """
    known = _identities.get(device)
    if known is None:
        # Known before it is computed: overlays that name each other as layers would never end.
        _identities[device] = device
        known = _identities[device] = _identify(device)
    return known


def _identify(device: int) -> int:
    kinds, layers = _mounted(device)
    if layers:
        return _combine(device, *map(device_identity, sorted(layers)))
    if any(kind.startswith(_FUSE) for kind in kinds):
        return _process_identity()
    if kinds.isdisjoint(_IMAGES) and os.major(device) != _LOOP:
        return device
    number = _read(f"{_BLOCK_DEVICES}/{os.major(device)}:{os.minor(device)}/diskseq")
    # Sequence numbers begin again at each boot.
    boot = _read(_BOOT).partition("-")[0]
    if not number or not boot:
        return _process_identity()
    return _combine(device, int(number), int(boot, 16))


def _mounted(device: int) -> tuple[set[str], set[int]]:
    """Return a device's types of file systems, and the devices of an overlay's layers."""
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds: set[str] = set()
    layers: set[int] = set()
    for line in _read(_MOUNTS).splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.partition(" ")
        if name in mount.split(" ", 3)[:3]:
            kinds.add(kind)
        if kind == _OVERLAY:
            layers.update(_layer_devices(options))
    # A file of a layer has a device that no mount has, whichever overlay it is in.
    return kinds, layers if kinds <= {_OVERLAY} else set()


def _layer_devices(options: str) -> Iterator[int]:
    """Yield the devices of an overlay's read-only layers, if this process can see them."""
    for option in options.split(" ", 1)[-1].split(","):
        name, _, value = option.partition("=")
        # A colon of a path is `\\:`, whose backslash the kernel escapes once more.
        folders = value.replace(r"\134:", r"\072").split(":")
        for folder in folders if name.startswith("lowerdir") else ():
            # A container doesn't see its layers: they are on a disk of the host.
            if folder.startswith("/"):
                try:
                    yield os.stat(_unescape(folder)).st_dev
                except OSError:
                    continue


def _unescape(text: str) -> str:
    """Decode the characters that the kernel writes as octal numbers; the backslash is last."""
    for character in " \t\n,:\\":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text


def _combine(*numbers: int) -> int:
    if min(numbers) < 0:
        return _process_identity()
    return hash(numbers) & _POSITIVE


def _process_identity() -> int:
    return -1 - int.from_bytes(os.urandom(7), "big")


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
