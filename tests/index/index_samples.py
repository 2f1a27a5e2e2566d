"""Small releases: a core, and a plugin for each target, as a build would make them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from archsplit.release.report import REPORT_FILE, BuildDetails, Release, ReleaseWheel
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.writer import WheelDraft, WheelMember, write_wheels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EPOCH = 1_795_219_200
"""2026-11-21 00:00:00 UTC."""
DAY = 86_400


def core(version: str, targets: Sequence[str], project: str = "toy") -> WheelDraft:
    pins = {target: (f"{project}-{target}=={version}",) for target in targets}
    everything = tuple(pin for one in pins.values() for pin in one)
    return plan(
        project,
        version,
        {f"{project}/__init__.py": f"VERSION = {version!r}\n".encode()},
        extras={**pins, "all": everything},
        requires_python=">=3.8",
    )


def plugin(version: str, target: str, size: int = 10, project: str = "toy") -> WheelDraft:
    # The content is of the version, so that no two releases are the same.
    content = hashlib.sha256(f"{version} {target}".encode()).digest() * size
    return plan(
        f"{project}-{target}",
        version,
        {f"{project}_plugins/cuda/{target}/lib{project}.so": content},
        requires=(f"{project}=={version}",),
    )


def plan(
    project: str,
    version: str,
    files: dict[str, bytes],
    *,
    requires: tuple[str, ...] = (),
    requires_python: str = "",
    extras: dict[str, tuple[str, ...]] | None = None,
) -> WheelDraft:
    return WheelDraft(
        name=WheelName(project=distribution_name(project), version=version, platforms=("any",)),
        metadata=CoreMetadata(
            name=project,
            version=version,
            summary="A toy.",
            requires=requires,
            requires_python=requires_python,
            extras=extras or {},
        ),
        generator="archsplit 0.1.0",
        members=tuple(WheelMember(name=name, content=content) for name, content in files.items()),
        purelib=True,
    )


def release(
    folder: Path, version: str, targets: Sequence[str] = ("sm80", "sm90"), project: str = "toy"
) -> list[Path]:
    """Write the wheels of a release, the core last."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = [plugin(version, target, project=project) for target in targets]
    return list(write_wheels(folder, [*plans, core(version, targets, project)], epoch=EPOCH))


def build_folder(folder: Path, version: str, targets: Sequence[str] = ("sm80", "sm90")) -> Path:
    """The same, with the report that a build leaves beside them."""
    wheels = tuple(
        ReleaseWheel(
            file=path.name,
            role="core" if path.name.startswith("toy-") else "plugin",
            distribution=path.name.partition("-")[0].replace("_", "-"),
            size=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in release(folder, version, targets)
    )
    report = Release(
        project="toy",
        version=version,
        build_id="0" * 64,
        interface_hash="0" * 64,
        build=BuildDetails(epoch=EPOCH, targets=tuple(targets)),
        wheels=wheels,
    )
    (folder / REPORT_FILE).write_text(report.as_json())
    return folder
