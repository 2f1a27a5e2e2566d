"""Lock files of a mirror; pure.

A lock (``pylock.toml`` of PEP 751, or requirements with hashes) names every wheel that a machine
installs, with its new digest. Paths are relative to the lock, so the folder may be mounted or
copied; with an address the lock is enough.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.pylock import Pylock

from archsplit.arch.target import Capability
from archsplit.devicecode.partition import capability_extra
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from archsplit.mirror.model import MirroredFile, MirroredWheel, MirrorRequest

__pure__ = True

_TITLE = "# archsplit mirror"
_CREATOR = 'created-by = "archsplit"'


def is_own_lock(text: bytes) -> bool:
    """Return True for a lock file of any mirror."""
    return text.startswith(_TITLE.encode()) or _CREATOR.encode() in text.splitlines()[:2]


def lock_texts(request: MirrorRequest, wheels: Sequence[MirroredWheel]) -> dict[str, str]:
    """Return the text of each lock file by its name."""
    texts: dict[str, str] = {}
    for name, devices in lock_devices(request).items():
        text = pylock_text if name.endswith(".toml") else requirements_text
        texts[name] = text(installed_files(wheels, devices), devices=devices, url=request.url)
    return texts


def lock_devices(request: MirrorRequest) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of each lock file by its name.

    Split wheels need a lock for each GPU, because installers don't choose by the GPU.
    """
    machines = {"": request.edit.devices}
    if request.split:
        machines = {capability_extra(Capability.parse(one)): (one,) for one in machines[""]}
    found: dict[str, tuple[str, ...]] = {}
    for machine, devices in machines.items():
        label = "-".join(filter(None, (request.lock_name, machine)))
        names = ("pylock", label, "toml"), ("requirements", label, "txt")
        found |= {".".join(filter(None, name)): devices for name in names}
    return found


def installed_files(
    wheels: Iterable[MirroredWheel], devices: Iterable[str]
) -> tuple[MirroredFile, ...]:
    """Return the files that a machine with some GPUs installs, sorted by name."""
    wanted = tuple(devices)
    found = {
        file.file: file
        for wheel in wheels
        for file in wheel.files
        if any(file.serves(device) for device in wanted)
    }
    return tuple(sorted(found.values(), key=lambda file: (file.name, file.file)))


def pylock_text(files: Iterable[MirroredFile], *, devices: Iterable[str], url: str = "") -> str:
    """Return a lock (PEP 751) of some files of the index.

    Args:
        url: the address of the index, for addresses in place of paths.
    """
    lines = ['lock-version = "1.0"', _CREATOR, ""]
    for file in files:
        place = {"url": _address(url, file)} if url else {"path": f"{file.name}/{file.file}"}
        wheel = _table(
            {"name": file.file, **place, "size": file.size, "hashes": {"sha256": file.sha256}}
        )
        lines += ["[[packages]]", f"name = {json.dumps(file.name)}"]
        lines += [f"version = {json.dumps(file.version)}", f"wheels = [{wheel}]", ""]
    lines += ["[tool.archsplit]", f"devices = {json.dumps(list(devices))}"]
    text = "\n".join(lines) + "\n"
    # The reader of the field, so that a lock that no installer reads is never written.
    Pylock.from_dict(loads(text))
    return text


def _table(content: Mapping[str, object]) -> str:
    """Return an inline table; JSON's strings and numbers are TOML's too."""
    parts = (
        f"{key} = {_table(value) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in content.items()
    )
    return f"{{ {', '.join(parts)} }}"


def _address(url: str, file: MirroredFile) -> str:
    return f"{url.rstrip('/')}/{file.name}/{quote(file.file)}"


def requirements_text(
    files: Iterable[MirroredFile], *, devices: Iterable[str], url: str = ""
) -> str:
    """Return requirements with hashes, for installers that don't read PEP 751."""
    lines = [f"{_TITLE}: for the GPUs {', '.join(devices)}"]
    # pip reads the index of a requirement file; the others get it on their command line.
    lines += [f"--index-url {url.rstrip('/')}/"] if url else []
    for file in files:
        lines += [f"{file.name}=={file.version} \\", f"    --hash=sha256:{file.sha256}"]
    return "\n".join(lines) + "\n"
