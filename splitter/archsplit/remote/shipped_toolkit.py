"""A toolkit as one archive, for workers that get it once.

In: the files of the tools of a build that are in the shipped folders. Out: an archive whose name is
the digest of the list of these files. `unpack_toolkit` compares each file with that list, so that a
folder with this name has these bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from archsplit.errors import EngineRefusedError, UsageError
from archsplit.remote.action import TOOLKIT_FOLDER, ShippedFolders
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.remote.action import ToolFile

_SYSTEM_FOLDERS = {Path("/"), Path("/usr"), Path("/usr/local"), Path("/opt")}
# More saves a tenth of the bytes, and takes ten times as long.
_LEVEL = 1


class PackedToolkit(TypedDict):
    """A packed toolkit, as plain data.

    Attributes:
        name: the digest of the list of its files.
        digests: of its files by their names in the archive.
        archive: a tar archive, compressed by gzip.
    """

    name: str
    digests: dict[str, str]
    archive: bytes


class ToolkitFiles:
    """The shipped files of the tools of one build.

    Args:
        tools: files of the tools; those in no shipped folder are left out.
        shipped: the folders.

    Attributes:
        name: the digest of the list of the files; "" for none.
    """

    def __init__(self, tools: Iterable[ToolFile], shipped: ShippedFolders) -> None:
        named = {shipped.name(tool.path): tool for tool in tools if shipped.has(tool.path)}
        self._links = {
            str(name.relative_to(TOOLKIT_FOLDER)): to
            for name, to in shipped.used_links(named).items()
        }
        self._files = {str(name.relative_to(TOOLKIT_FOLDER)): tool for name, tool in named.items()}
        self._digests = {name: tool.sha256 for name, tool in sorted(self._files.items())}
        rows = (*self._digests.items(), *sorted(self._links.items()))
        text = "".join(f"{digest}  {name}\n" for name, digest in rows)
        encoded = text.encode(errors="surrogateescape")
        self.name = hashlib.sha256(encoded).hexdigest() if named else ""

    def pack(self) -> PackedToolkit:
        """Return the archive of the files."""
        blob = io.BytesIO()
        with tarfile.open(fileobj=blob, mode="w:gz", compresslevel=_LEVEL) as archive:
            for name, tool in sorted(self._files.items()):
                # The file itself, wherever a link leads to it.
                archive.add(Path(tool.path).resolve(), name)
            for name, target in sorted(self._links.items()):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)
        return {"name": self.name, "digests": self._digests, "archive": blob.getvalue()}


def find_shipped_folders(folders: Iterable[Path]) -> ShippedFolders:
    """Return the folders of a toolkit that workers get.

    Args:
        folders: those of the toolkit, and of other packages with headers and libraries of CUDA.

    Raises:
        UsageError: other programs are in one of them.
    """
    places = {Path(os.path.normpath(folder)) for folder in folders}
    # As named and as resolved: commands may have both.
    places |= {folder.resolve() for folder in places}
    if system := sorted(places & _SYSTEM_FOLDERS):
        raise UsageError(
            f"the toolkit is in {system[0]}, together with other programs, and can't be shipped",
            hint="use the toolkit of the index (pip install 'nvidia-cuda-nvcc'), or"
            " --remote-toolkit named",
        )
    outer = sorted(each for each in places if places.isdisjoint(each.parents))
    links = {}
    for root in outer:
        for folder, folders_inside, _ in os.walk(root):
            for name in folders_inside:
                path = Path(folder, name)
                # A link out of the toolkit has no meaning on a worker.
                if path.is_symlink() and path.resolve().is_relative_to(root.resolve()):
                    links[str(path)] = os.path.relpath(path.resolve(), path.parent.resolve())
    return ShippedFolders(paths=tuple(map(str, outer)), links=links)


def unpack_toolkit(toolkit: PackedToolkit, folder: Path) -> None:
    """Unpack a toolkit into a folder of its name, if there is none.

    Args:
        toolkit: the toolkit.
        folder: the folder of all toolkits.

    Raises:
        EngineRefusedError: a file is another one than the list has.
    """
    target = folder / toolkit["name"]
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        inside = Path(place, "toolkit")
        with tarfile.open(fileobj=io.BytesIO(toolkit["archive"])) as archive:
            # No name leads out of the folder. Python 3.10.11 and older have no filters.
            more = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(inside, **more)  # type: ignore[arg-type] # noqa: S202 - as said
        _compare(inside, toolkit["digests"])
        try:
            inside.rename(target)
        # Another worker with this folder was faster.
        except OSError:
            if not target.exists():
                raise


def _compare(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            raise EngineRefusedError(f"{name} of a shipped toolkit has changed on its way")
