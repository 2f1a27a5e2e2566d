"""A wheel of a mirror: downloaded, then slimmed, split, or kept with the reason.

A download is written to ``NAME.part`` in the folder of downloads, and renamed when its digest is
the expected one. So a killed run loses nothing, and a file without ``.part`` is complete.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from archsplit import __version__
from archsplit.arch.gpu_list import parse_gpu_targets
from archsplit.arch.target import Capability
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import (
    BinaryFormatError,
    InputError,
    NothingToDoError,
    TargetError,
    ToolFailedError,
    VerifyError,
    WheelError,
)
from archsplit.index.client import check_status, request_failure
from archsplit.index.retry import RetryableError
from archsplit.mirror.model import MirroredFile, MirroredWheel, OriginalWheel
from archsplit.slim.request import SlimRequest
from archsplit.slim.wheel import slim_wheel
from archsplit.split.model import SplitRequest
from archsplit.split.split import split_wheel
from archsplit.system.fs import input_errors, output_errors, sha256
from archsplit.system.units import BLOCK
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests
    from packaging.metadata import RawMetadata

    from archsplit.index.retry import RetryPolicy
    from archsplit.mirror.model import MirrorEdit, ResolvedWheel
    from archsplit.release.context import Effects
    from archsplit.release.report import Release

_TIMEOUTS = (10.0, 60.0)
"""Seconds to connect, and between two packets."""
_CHUNK = 1 << 16
"""Bytes of a transfer that are lost when the connection breaks, at most."""
_PARTIAL = 206
_NO_SUCH_RANGE = 416


def public_url(url: str) -> str:
    """Return an address without credentials and query, for files that others read."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloader:
    """Fetches wheels into a folder; several threads may call it for different wheels.

    Attributes:
        retry: for connections that fail or break.
    """

    folder: Path
    retry: RetryPolicy = field(repr=False)

    def fetch(self, wheel: ResolvedWheel) -> Path:
        """Return the path of a wheel, downloaded unless it is there.

        Raises:
            VerifyError: the file has another digest than the resolution.
            InputError: a local file can't be read.
            IndexUnreachableError: the index can't be reached, or failed until the time limit.
            IndexRefusedError: the index refuses the file.
            OutputError: the file can't be written.
        """
        target = self.folder / wheel.file
        # Without a digest, an old file may differ from the one on the index.
        if target.exists() and wheel.sha256 and sha256(target) == wheel.sha256:
            return target
        part = self.folder / f"{wheel.file}.part"
        parts = urlsplit(wheel.url)
        if parts.scheme == "file":
            _copy_local(Path(unquote(parts.path)), part)
        elif parts.scheme in {"http", "https"}:
            self._download(wheel, part)
        else:
            raise InputError(
                f"{wheel.file}: {public_url(wheel.url)} is not the address of a wheel",
                hint="an address begins with https://, http:// or file://",
            )
        self._check(wheel, part)
        with output_errors(target):
            part.replace(target)
        return target

    def _check(self, wheel: ResolvedWheel, part: Path) -> None:
        found = sha256(part)
        if wheel.sha256 in {"", found}:
            return
        # Removed: it would be resumed, and could never become the right file.
        _remove(part)
        raise VerifyError(
            f"{wheel.file} from {public_url(wheel.url)} has the SHA-256 {found}, expected"
            f" {wheel.sha256}",
            hint="the index or the lock was changed: lock again, if you trust the new file",
        )

    def _download(self, wheel: ResolvedWheel, part: Path) -> None:
        # Without a digest, the part may be of another file of that name.
        if not wheel.sha256:
            _remove(part)
        resumed = part.exists()
        what = f"downloading {public_url(wheel.url)}"
        self.retry.keep_trying(what, lambda: self._receive(wheel.url, part))
        # The part was of another file of that name: download the whole file.
        if resumed and sha256(part) != wheel.sha256:
            _remove(part)
            self.retry.keep_trying(what, lambda: self._receive(wheel.url, part))

    def _receive(self, url: str, part: Path) -> None:
        """Download the rest of a file.

        Raises:
            RetryableError: the connection failed or broke; the received bytes are kept.
            IndexRefusedError: the server refuses the file.
        """
        import requests  # noqa: PLC0415 - an extra

        have = part.stat().st_size if part.exists() else 0
        # A range counts bytes of the file, not of a compressed transfer.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        try:
            with requests.get(url, headers=headers, timeout=_TIMEOUTS, stream=True) as reply:
                # The part was complete: no bytes are left to send.
                if have and reply.status_code == _NO_SUCH_RANGE:
                    return
                check_status(reply, public_url(url), self.retry)
                # A server that doesn't support ranges sends the whole file.
                _write_body(reply, part, append=reply.status_code == _PARTIAL)
        except requests.RequestException as error:
            raise request_failure(error, public_url(url)) from None


def _remove(part: Path) -> None:
    with output_errors(part):
        part.unlink(missing_ok=True)


def _copy_local(source: Path, part: Path) -> None:
    with input_errors(source):
        old = source.open("rb")
    with old, output_errors(part), part.open("wb") as new:
        shutil.copyfileobj(old, new, BLOCK)


def _write_body(reply: requests.Response, part: Path, *, append: bool) -> None:
    expected, size = reply.headers.get("Content-Length", ""), 0
    with output_errors(part):
        # Without a buffer, which closing would try to write to a full disk once more.
        file = part.open("ab" if append else "wb", buffering=0)
    with file:
        for block in reply.iter_content(_CHUNK):
            rest = memoryview(block)
            # Around the write only: an error of the connection is an OSError too.
            with output_errors(part):
                while rest:
                    rest = rest[file.write(rest) :]
            size += len(block)
    if expected.isdecimal() and size != int(expected):
        raise RetryableError(f"received {size} of {expected} bytes")


NO_CODE_FOR_GPU = "it has no code for the GPU"
"""Beginning of the reason why a wheel of another GPU stays as it is."""

_PROPRIETARY = re.compile(r"proprietary|\bNVIDIA\b.*\b(EULA|agreement|license)\b", re.IGNORECASE)
_CLASSIFIER = "License :: "
_LICENSE_WORDS = 80
_NOTHING = "no device code can be removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedWheel:
    """A wheel of a mirror, and its files in a private folder.

    Attributes:
        paths: of `MirroredWheel.files`, in their order.
    """

    wheel: MirroredWheel
    paths: tuple[Path, ...] = field(repr=False)


def change_ban(raw: RawMetadata) -> str:
    """Return the licence in METADATA that forbids changes, or "".

    The names of proprietary licences are recognized: NVIDIA's licence of the CUDA toolkit forbids
    to modify its parts. A licence without such a name is not judged.
    """
    classifiers = (
        text.removeprefix(_CLASSIFIER)
        for text in raw.get("classifiers", [])
        if text.startswith(_CLASSIFIER)
    )
    texts = (raw.get("license_expression", ""), raw.get("license", ""), *classifiers)
    for text in texts:
        # `License` may be the whole text of a licence; its first line has the name.
        line = next(iter(text.strip().splitlines()), "")
        if _PROPRIETARY.search(line):
            return line[:_LICENSE_WORDS]
    return ""


def describe_original(path: Path, resolved: ResolvedWheel) -> OriginalWheel:
    """Return the record of an original.

    Raises:
        WheelError: the file is not a sound wheel.
    """
    # Wheels of others have small faults, which the edit judges, not this record.
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        license_name = change_ban(wheel.raw_metadata)
    # For an index without digests: the state names the bytes that were edited.
    digest = resolved.sha256 or sha256(path)
    return OriginalWheel(
        file=resolved.file,
        url=public_url(resolved.url),
        sha256=digest,
        size=path.stat().st_size,
        license=license_name,
    )


def edit_wheel(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    """Edit a wheel into ``out``; a wheel that can't be edited stays as it is.

    Args:
        path: the original, under its own name.
        out: a folder for only this wheel.

    Raises:
        OutputError: the output can't be written.
        ToolNotFoundError: a split needs a program that is missing.
    """
    try:
        if edit.kind == "slim":
            return _slim(path, original, edit, out, effects)
        if edit.kind == "split":
            return _split(path, original, edit, out, effects)
        reason = f"its licence forbids changes: {original.license}"
    except NothingToDoError:
        reason = _NOTHING
    except TargetError as error:
        reason = f"{NO_CODE_FOR_GPU}: {error.message}"
    # The wheel is as its index has it; a fault that a user could live with stays as it is.
    except (BinaryFormatError, ToolFailedError, VerifyError, WheelError) as error:
        reason = f"{edit.kind} fails: {error.message}"
    return _unchanged(path, original, edit, " ".join(reason.split()))


def _slim(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    request = SlimRequest(
        source=path,
        out=out,
        selection=Selection(
            devices=frozenset(map(Capability.parse, edit.devices)), ptx=PtxPolicy(edit.ptx)
        ),
        zeroes_unregistered={"zero": True, "keep": False}.get(edit.unregistered),
        recompress=edit.recompress,
    )
    report = slim_wheel(request, effects)
    # The slim report has the reason, for example that all images are needed.
    if report.output is None:
        reason = next(iter(report.notes), _NOTHING)
        return _unchanged(path, original, edit, " ".join(reason.split()))
    new = Path(report.output)
    return _edited(original, edit, (_mirrored_file(new),), (new,))


def _split(
    path: Path, original: OriginalWheel, edit: MirrorEdit, out: Path, effects: Effects
) -> EditedWheel:
    targets = parse_gpu_targets(",".join(edit.devices))
    request = SplitRequest(source=path, out=out, targets=targets, recompress=edit.recompress)
    release = split_wheel(request, effects)
    files = tuple(_release_files(release, edit.devices))
    return _edited(original, edit, files, tuple(out / file.file for file in files))


def _release_files(release: Release, devices: tuple[str, ...]) -> Iterator[MirroredFile]:
    needs = {} if release.split is None else release.split.needs
    for wheel in release.wheels:
        users = tuple(one for one in devices if wheel.label in needs.get(one, ()))
        # A pack that no GPU of the mirror needs would only take space.
        if wheel.role == "plugin" and not users:
            continue
        yield MirroredFile(
            name=wheel.distribution,
            version=release.version,
            file=wheel.file,
            sha256=wheel.sha256,
            size=wheel.size,
            role="plugin" if wheel.role == "plugin" else "core",
            devices=users,
        )


def _edited(
    original: OriginalWheel,
    edit: MirrorEdit,
    files: tuple[MirroredFile, ...],
    paths: tuple[Path, ...],
) -> EditedWheel:
    name = WheelName.parse(original.file)
    wheel = MirroredWheel(
        name=name.project,
        version=name.version,
        original=original,
        edit=edit,
        files=files,
        tool=__version__,
    )
    return EditedWheel(wheel=wheel, paths=paths)


def _unchanged(path: Path, original: OriginalWheel, edit: MirrorEdit, reason: str) -> EditedWheel:
    file = replace(_mirrored_file(path), sha256=original.sha256)
    edited = _edited(original, edit, (file,), (path,))
    return replace(edited, wheel=replace(edited.wheel, unchanged=reason))


def _mirrored_file(path: Path) -> MirroredFile:
    name = WheelName.parse(path.name)
    return MirroredFile(
        name=name.project,
        version=name.version,
        file=path.name,
        sha256=sha256(path),
        size=path.stat().st_size,
    )
