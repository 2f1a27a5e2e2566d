"""Small wheels for the tests: sound ones by our writer, and any kind by the standard library."""

from __future__ import annotations

import base64
import hashlib
import platform
import stat
import zipfile
from typing import TYPE_CHECKING

from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, MetadataAuthor
from archsplit.wheels.writer import WheelDraft, WheelMember, wheel_members

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.wheels.zip_writer import PackedContent

PLATFORMS = (f"manylinux2014_{platform.machine()}", f"manylinux_2_17_{platform.machine()}")
EPOCH = 1_700_000_000
TOY_NAME = "toy-1.0-py3-none-any.whl"
TOY_FILES = {
    "toy/__init__.py": b"ANSWER = 42\n",
    "toy/text, with a comma.txt": b"x" * 300,
    "toy-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
    "toy-1.0.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
}
RECORD = "toy-1.0.dist-info/RECORD"


def core_plan() -> WheelDraft:
    """A core wheel of ``vecsort`` with everything that metadata can have."""
    return WheelDraft(
        name=WheelName(project=distribution_name("vecsort"), version="1.2.3", platforms=PLATFORMS),
        metadata=CoreMetadata(
            name="VecSort",
            version="1.2.3",
            summary="Sört on a GPU.",
            description="# VecSort\n\nSörts.\n",
            description_content_type="text/markdown",
            license_expression="Apache-2.0",
            license_files=("LICENSE", "third_party/NOTICE"),
            authors=(
                MetadataAuthor(name="The authors"),
                MetadataAuthor(name="Zoë", email="zoe@example.org"),
            ),
            keywords=("cuda", "sort"),
            classifiers=("Environment :: GPU :: NVIDIA CUDA",),
            urls={"Homepage": "https://example.org/vecsort"},
            requires_python=">=3.10",
            extras={"sm90": ("vecsort-sm90==1.2.3",), "all": ("vecsort-sm90==1.2.3",)},
        ),
        generator="archsplit 0.1.0",
        members=(
            WheelMember(name="vecsort/__init__.py", content=b"VERSION = '1.2.3'\n"),
            WheelMember(name="vecsort/_archsplit/libloader.so", content=bytes(5000), mode=0o755),
            WheelMember(name="vecsort/ünï, 'cödé'.txt", content=b""),
        ),
        licenses=wheel_members({"LICENSE": b"Apache\n", "third_party/NOTICE": b"None\n"}),
    )


def plugin_plan(library: bytes | Path | PackedContent = b"code") -> WheelDraft:
    """The wheel of ``vecsort``'s plugin for one GPU."""
    project = distribution_name("vecsort-sm90")
    path = "vecsort_plugins/cuda/sm_90/libvecsort.so"
    return WheelDraft(
        name=WheelName(project=project, version="1.2.3", platforms=PLATFORMS),
        metadata=CoreMetadata(
            name=project,
            version="1.2.3",
            summary="Device code for sm_90.",
            description="Install vecsort[sm90].\n",
            description_content_type="text/plain",
            requires=("vecsort==1.2.3",),
        ),
        generator="archsplit 0.1.0",
        members=(WheelMember(name=path, content=library),),
    )


def record_of(files: Mapping[str, bytes]) -> bytes:
    """Return RECORD as another tool would write it."""
    rows = [f'"{name}",{hash_of(content)},{len(content)}\n' for name, content in files.items()]
    return "".join([*rows, f"{RECORD},,\n"]).encode()


def hash_of(content: bytes) -> str:
    """Return RECORD's second column as another tool would write it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha256={digest.rstrip('=')}"


def toy_wheel(
    folder: Path,
    changes: Mapping[str, bytes | None] | None = None,
    *,
    record: bytes | None = None,
    name: str = TOY_NAME,
) -> Path:
    """Write a wheel with zipfile; ``changes`` add, replace or (None) drop members."""
    merged = {**TOY_FILES, **(changes or {})}
    files = {path: content for path, content in merged.items() if content is not None}
    if record is None:
        record = record_of(files)
    members = [(zipfile.ZipInfo(path), content) for path, content in files.items()]
    return zipped(folder / name, [*members, (zipfile.ZipInfo(RECORD), record)])


def zipped(path: Path, members: list[tuple[zipfile.ZipInfo, bytes]]) -> Path:
    """Write a zip file; members without a method of their own are deflated."""
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in members:
            info.external_attr = info.external_attr or (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content, info.compress_type or zipfile.ZIP_DEFLATED)
    return path
