"""Inventory of a file, wheel, folder or installed package.

In goes a path or a name; out comes an `Inventory` with the device code of all files. In folders,
packages and wheels a damaged file becomes a problem of its own; a single damaged file is an error.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from archsplit.devicecode.file_forms import HEAD_SIZE, Form, detect_form, file_form, window_form
from archsplit.devicecode.model import File, Inventory, drop_placeholders
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError, InputError, WheelError
from archsplit.formats.descriptor import read_descriptor
from archsplit.formats.device_pack import read_pack
from archsplit.formats.elf import Elf
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import Window, open_file
from archsplit.inspect.breakdown import sum_build_files
from archsplit.release.identity import IDENTITY_ENDING
from archsplit.system.fs import input_errors, output_errors, read_file, sha256
from archsplit.system.worker_processes import WorkerProcesses, map_in_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from zipfile import ZipInfo

    from archsplit.devicecode.model import CodeForm, Unit
    from archsplit.devicecode.units import WheelShare
    from archsplit.wheels.zip_reader import Archive

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_WHEEL = ".whl"
_FILES_OF_TASK = 256
_ROOM = 2
"""Free bytes of the temporary folder for each byte that processes unpack."""
_FILE_WORK = 1 << 14
"""Bytes of a library: reading them takes as long as opening a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    """Subject of an inspection, and the level of detail.

    Attributes:
        subject: a path, or the name of an installed package.
        site_folders: folders with installed packages.
        digest: True to compute the file's SHA-256, which takes longer than all else.
        kernels: True to read kernels, for which machine code is decompressed.
        zstd: True to estimate zstd frames, which split makes, by some images of each file.
        workers: permission to use processes; None for threads only.
    """

    subject: str
    site_folders: tuple[Path, ...] = ()
    digest: bool = False
    kernels: bool = False
    zstd: bool = False
    workers: WorkerProcesses | None = field(default=None, repr=False, compare=False)


def read_inventory(request: InspectRequest) -> Inventory:
    """Read the device code of a subject.

    Raises:
        InputError: the subject does not exist, or can't be read.
        BinaryFormatError: it is a single file that is damaged, or can't hold device code.
        WheelError: it is a wheel, and a damaged archive.
    """
    path = Path(request.subject)
    if path.is_dir():
        return _inventory(request, _in_folder(path), str(path))
    if not path.exists():
        return _package(request)
    is_wheel = path.suffix == _WHEEL
    files = tuple(_in_wheel(path, request)) if is_wheel else (_single_file(path, request),)
    return Inventory(
        path=str(path),
        files=drop_placeholders(files),
        sha256=sha256(path) if request.digest else None,
        size=path.stat().st_size,
        is_wheel=is_wheel,
        other_files=sum_build_files(_download_sizes(path)) if is_wheel else (),
    )


def _download_sizes(wheel: Path) -> Iterator[tuple[str, int]]:
    """Yield the members of a wheel with their packed bytes."""
    from archsplit.wheels.zip_reader import open_archive  # noqa: PLC0415

    with open_archive(wheel) as archive:
        for info in archive.members.values():
            yield info.filename, info.compress_size


def _single_file(path: Path, request: InspectRequest) -> File:
    window = open_file(path)
    if window_form(window) is None:
        raise BinaryFormatError(
            f"{path} can't hold device code: it begins with {window.data[:8].tobytes()!r}",
            hint="inspect a .so, .a, .o, .fatbin, .cubin, .pack or .whl file, a folder or a"
            " package",
        )
    return _file(window, path.name, request)


def _inventory(request: InspectRequest, paths: Mapping[str, str], name: str) -> Inventory:
    """Return the inventory of files by their shown names; wheels are opened.

    Paths are texts, because an environment has a hundred thousand of them.

    If all inputs are wheels, their download counts; with loose files, the files that they install.
    """
    wheels = {label: Path(path) for label, path in paths.items() if label.endswith(_WHEEL)}
    others = {label: path for label, path in paths.items() if label not in wheels}
    # Only files with the magic number of a form can hold device code.
    rows = list(others.values())
    # A task for each of 100,000 files would take longer than its work.
    tasks = [rows[start : start + _FILES_OF_TASK] for start in range(0, len(rows), _FILES_OF_TASK)]
    looks = map_in_processes(
        _forms_and_sizes, tasks, lambda task: _FILE_WORK * len(task), request.workers
    )
    found = dict(zip(others, chain.from_iterable(looks), strict=True))
    sizes = {label: size for label, (_, size) in found.items()}
    loose = sorted(label for label, (has_form, _) in found.items() if has_form)
    in_download = bool(wheels) and not loose
    files = map_in_processes(
        lambda label: _file_or_problem(open_file(Path(others[label])), label, request),
        loose,
        sizes.__getitem__,
        request.workers,
    )
    # Each worker has one wheel, and unpacks one member of it at a time.
    single = replace(request, workers=request.workers if len(wheels) == 1 else None)
    files += chain.from_iterable(
        _map_with_room(
            lambda one: _wheel_or_problem(one[1], one[0], single, in_download=in_download),
            sorted(wheels.items()),
            lambda one: _installed_size(one[1]),
            None if len(wheels) == 1 else request.workers,
        )
    )
    if in_download:
        sizes |= {label: path.stat().st_size for label, path in wheels.items()}
    installed = 0 if in_download else sum(map(_installed_size, wheels.values()))
    size = sum(sizes.values()) + installed
    return Inventory(
        path=name,
        sha256=None,
        size=size,
        is_wheel=in_download,
        files=drop_placeholders(tuple(files)),
        other_files=sum_build_files(sizes.items()),
    )


def _forms_and_sizes(paths: Iterable[str]) -> list[tuple[bool, int]]:
    """Return of each file whether it can hold device code, and its size."""
    return [(_form(path) is not None, os.stat(path).st_size) for path in paths]  # noqa: PTH116


def _form(path: str) -> Form | None:
    try:
        return file_form(path)
    except OSError:
        # Only now: a `Path` for each of 100,000 files would take longer than their reads.
        with input_errors(Path(path)):
            raise


def _wheel_or_problem(
    path: Path, label: str, request: InspectRequest, *, in_download: bool
) -> list[File]:
    """Return the files of a wheel in a folder, below its name."""
    try:
        files = _in_wheel(path, request, in_download=in_download)
    except WheelError as error:
        size = path.stat().st_size
        wheel_bytes = size if in_download else None
        return [File(path=label, size=size, wheel_bytes=wheel_bytes, units=(), problem=str(error))]
    return [replace(file, path=f"{label}/{file.path}") for file in files]


def _installed_size(wheel: Path) -> int:
    """Return the bytes of a wheel's files; of the wheel itself, if it is damaged."""
    from archsplit.wheels.zip_reader import open_archive  # noqa: PLC0415

    try:
        with open_archive(wheel) as archive:
            return sum(info.file_size for info in archive.members.values())
    except WheelError:
        return wheel.stat().st_size


def _in_folder(folder: Path) -> Mapping[str, str]:
    """Return all regular files of a folder tree.

    Symbolic links are left out, because their targets are there too.
    """
    files: dict[str, str] = {}
    waiting = [(str(folder), "")]
    while waiting:
        path, prefix = waiting.pop()
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, f"{prefix}{entry.name}/"))
            elif entry.is_file(follow_symlinks=False):
                files[f"{prefix}{entry.name}"] = entry.path
    return files


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, which have their kinds: no file is asked for its status."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        # Without this folder, a report would have too little code, and a gate would pass.
        raise InputError(f"can't read {folder}: {error.strerror}") from error


def _package(request: InspectRequest) -> Inventory:
    """Read an installed package; a core is read with its plugins and packs.

    A plugin of another build is a problem: the loader refuses it.
    """
    paths = _installed_files(request, request.subject)
    if not paths:
        raise InputError(
            f"no such file or installed package: {request.subject}",
            hint="name the folder that it is installed in with --site-packages",
        )
    core = next((path for name, path in paths.items() if name.endswith(IDENTITY_ENDING)), None)
    build, plugins = (None, ()) if core is None else _named_plugins(core)
    added: dict[str, Path] = {}
    for distribution in plugins:
        added |= _installed_files(request, distribution)
    # A file that two packages list belongs to the core.
    everything = {name: str(path) for name, path in {**added, **paths}.items()}
    inventory = _inventory(request, everything, request.subject)
    files = (
        _check_build(file, added[file.path], build) if build and file.path in added else file
        for file in inventory.files
    )
    return replace(inventory, files=tuple(files))


def _installed_files(request: InspectRequest, distribution: str) -> dict[str, Path]:
    # Only for packages: 40 ms.
    from importlib.metadata import distributions  # noqa: PLC0415

    folders = [str(folder) for folder in request.site_folders]
    installed = next(iter(distributions(name=distribution, path=folders)), None)
    if installed is None or installed.files is None:
        return {}
    located = {str(file): Path(str(file.locate())) for file in installed.files}
    return {name: path for name, path in located.items() if path.is_file()}


def _named_plugins(core: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the build id in a ``core.json``, and the distributions of its plugins and packs.

    An unreadable file names nothing here; the loader and `archsplit verify` refuse it.
    """
    try:
        content = json.loads(read_file(core))
        packs = [pack["distribution"] for pack in content.get("packs", {}).values()]
        return content["build_id"], (*content["targets"].values(), *packs)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, ()


def _check_build(file: File, path: Path, build: str) -> File:
    """Return a plugin's file, without its device code if its core is of another build."""
    if file.problem is not None:
        return file
    plugin_build = _build_id(path)
    if plugin_build == build:
        return file
    problem = f"its build is {(plugin_build or 'unknown')[:16]}, and its core's {build[:16]}"
    return replace(file, units=(), kernels=(), problem=f"{problem}: the loader refuses it")


def _build_id(path: Path) -> str | None:
    window, form = open_file(path), _form(str(path))
    if form is Form.DEVICE_PACK:
        return read_pack(window).descriptor.build_id.hex()
    descriptor = read_descriptor(Elf(window)) if form is Form.ELF else None
    return None if descriptor is None else descriptor.build_id.hex()


def _map_with_room(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    unpacked: Callable[[_Item], int],
    workers: WorkerProcesses | None,
) -> list[_Result]:
    """Return the results of a function that unpacks into the temporary folder, in order.

    One after the other, unless there is room for all items at the same time.
    """
    if workers is not None:
        folder = Path(tempfile.gettempdir())
        with output_errors(folder):
            free = shutil.disk_usage(folder).free
        # Other programs need room too.
        if _ROOM * sum(map(unpacked, items)) <= free:
            return map_in_processes(function, items, unpacked, workers)
    return [function(item) for item in items]


def _in_wheel(path: Path, request: InspectRequest, *, in_download: bool = True) -> list[File]:
    # Only for wheels: 17 ms, longer than reading most libraries takes.
    from archsplit.wheels.zip_reader import open_archive, read_head  # noqa: PLC0415

    with open_archive(path) as archive:
        members = [
            info
            for info in archive.members.values()
            if detect_form(read_head(archive, info, HEAD_SIZE)) is not None
        ]
        return _map_with_room(
            lambda info: _member(archive, info, request, in_download=in_download),
            members,
            lambda info: info.file_size,
            request.workers,
        )


def _member(archive: Archive, info: ZipInfo, request: InspectRequest, *, in_download: bool) -> File:
    from archsplit.wheels.zip_reader import unpack_with_offsets  # noqa: PLC0415

    with unpack_with_offsets(archive, info) as (file, positions):
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        window = Window(memoryview(mapping), source=f"{archive.path}: {info.filename}")
        return _file_or_problem(
            window,
            info.filename,
            request,
            wheel_share=positions.packed_size if in_download else None,
            wheel_bytes=info.compress_size if in_download else None,
        )


def _file_or_problem(
    window: Window,
    name: str,
    request: InspectRequest,
    *,
    wheel_share: WheelShare = None,
    wheel_bytes: int | None = None,
) -> File:
    try:
        return _file(window, name, request, wheel_share=wheel_share, wheel_bytes=wheel_bytes)
    except BinaryFormatError as error:
        return File(
            path=name, size=len(window), wheel_bytes=wheel_bytes, units=(), problem=str(error)
        )


def _file(
    window: Window,
    name: str,
    request: InspectRequest,
    *,
    wheel_share: WheelShare = None,
    wheel_bytes: int | None = None,
) -> File:
    contents = read_contents(window, wheel_share)
    file = File(
        path=name,
        size=len(window),
        wheel_bytes=wheel_bytes,
        units=contents.units,
        problem=contents.problem,
    )
    if request.zstd:
        # The libraries of a wheel may have copies of each other's containers.
        units = tuple(_with_checksums(window, file.units, is_alone=wheel_bytes is None))
        file = replace(file, units=units, zstd=_zstd_shares(window) if units else {})
    return _with_kernels(window, file) if request.kernels else file


def _with_checksums(window: Window, units: tuple[Unit, ...], *, is_alone: bool) -> Iterator[Unit]:
    """Yield units with checksums, if split moves them and a copy is possible.

    Args:
        is_alone: True for a library outside of wheels, whose copies it has itself.
    """
    # Only for this question, with the library.
    from isal.isal_zlib import crc32  # noqa: PLC0415

    counts = Counter(map(_images_size, units))
    for unit in units:
        size = _images_size(unit)
        if not unit.is_registered or not size or (is_alone and counts[size] == 1):
            yield unit
        else:
            start = unit.images[0].offset
            yield unit._replace(checksum=crc32(window.data[start : start + size]))
            release_pages(window)


def _images_size(unit: Unit) -> int:
    ends = (image.offset + image.file_bytes - unit.images[0].offset for image in unit.images)
    return max(ends, default=0)


def _zstd_shares(window: Window) -> dict[CodeForm, float]:
    """Estimate the share of bytes that images keep as zstd frames."""
    # Only for this question: 20 ms, with the libraries that compress.
    from archsplit.devicecode.edits import is_for_driver  # noqa: PLC0415
    from archsplit.devicecode.file_plan import container_holders  # noqa: PLC0415
    from archsplit.devicecode.recompress import estimate_shares  # noqa: PLC0415

    try:
        return estimate_shares(
            (container, entry)
            for holder in container_holders(window)
            for section, container in holder.containers()
            # A linker can't read zstd: its input stays as it is.
            if is_for_driver(section)
            for entry in container.entries()
        )
    except BinaryFormatError:
        return {}


def _with_kernels(window: Window, file: File) -> File:
    # Only for kernels: 30 ms, with the libraries that decompress.
    from archsplit.devicecode.kernels import read_kernels  # noqa: PLC0415

    kernels = read_kernels(window, file.units)
    return replace(file, kernels=kernels.rows, problem=file.problem or kernels.problem)
