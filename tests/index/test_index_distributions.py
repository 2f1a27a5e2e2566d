"""Source distributions, provenance and statuses in a static index."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from index_samples import EPOCH, release

from archsplit.cli.main import main
from archsplit.errors import InputError, UsageError, VerifyError, WheelError
from archsplit.index.static_folder import check_index, lock_folder, open_folder
from archsplit.index.static_model import ProjectStatus, RetentionLimits
from archsplit.index.static_update import IndexChange, IndexUpdate, update_index
from archsplit.system.fs import sha256
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.org/nightly/"


def update(
    root: Path,
    *add: Path,
    url: str | None = None,
    now: int = EPOCH,
    limits: RetentionLimits | None = None,
    remove: frozenset[str] = frozenset(),
) -> IndexUpdate:
    change = IndexChange(add=add, yank={}, grace=0, now=now, url=url, limits=limits, remove=remove)
    with lock_folder(root) as folder:
        return update_index(folder, change)


def status(root: Path, name: str, value: ProjectStatus, reason: str = "") -> None:
    named = {distribution_name(name): value}
    change = IndexChange(yank={}, grace=0, now=EPOCH, status=named, reason=reason)
    with lock_folder(root) as folder:
        update_index(folder, change)


def page(root: Path, project: str = "toy") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / project / "index.json").read_text())
    return content


PKG_INFO = "Metadata-Version: 2.4\nName: toy\nVersion: {}\nRequires-Python: >=3.8\n"


def sdist(folder: Path, version: str, *, name: str = "PKG-INFO", text: str = PKG_INFO) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"toy-{version}.tar.gz"
    content = text.format(version).encode()
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as to:
        header = tarfile.TarInfo(f"toy-{version}/{name}")
        header.size = len(content)
        to.addfile(header, io.BytesIO(content))
    return path


def attest(path: Path, digest: str | None = None, **changes: object) -> Path:
    """A provenance object as PyPI serves it; the signature is made up."""
    subject = {"name": path.name, "digest": {"sha256": digest or sha256(path)}}
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [subject]}
    attestation = {
        "version": 1,
        "verification_material": {"certificate": "", "transparency_entries": [{}]},
        "envelope": {
            "statement": b64encode(json.dumps(statement).encode()).decode(),
            "signature": "",
        },
    }
    publisher = {"kind": "GitHub", "repository": "someone/toy", "workflow": "release.yml"}
    bundle = {"publisher": publisher, "attestations": [attestation]}
    content = {"version": 1, "attestation_bundles": [bundle], **changes}
    place = path.with_name(f"{path.name}.provenance")
    place.write_text(json.dumps(content))
    return place


def test_a_source_distribution_is_served_beside_wheels(tmp_path: Path) -> None:
    root, dist = tmp_path / "index", tmp_path / "dist"
    release(dist, "1.0")
    sdist(dist, "1.0")
    assert "toy-1.0.tar.gz" in update(root, dist).added
    (source,) = (file for file in page(root)["files"] if file["filename"].endswith(".gz"))
    assert source["requires-python"] == ">=3.8"
    assert "core-metadata" not in source
    assert check_index(open_folder(root)) == 4
    # The newest of each kind stays: the older source goes with its release.
    for version in ("1.1", "1.2"):
        release(tmp_path / version, version)
        update(root, tmp_path / version, now=EPOCH + 1)
    update(root, limits=RetentionLimits(seconds=0), now=EPOCH + 9)
    assert (root / "toy" / "toy-1.0.tar.gz").exists()
    assert not (root / "toy" / "toy-1.1-py3-none-any.whl").exists()
    sdist(tmp_path / "1.2", "1.2")
    update(root, tmp_path / "1.2", now=EPOCH + 10)
    update(root, limits=RetentionLimits(seconds=0), now=EPOCH + 20)
    assert not (root / "toy" / "toy-1.0.tar.gz").exists()
    check_index(open_folder(root))


def test_pip_takes_the_source_where_no_wheel_fits(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, sdist(tmp_path / "dist", "1.0"))
    words = ("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--no-cache")
    # pip asks setuptools for the metadata, which is missing in this archive: the file was found.
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--index-url", root.as_uri(), "toy"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "toy-1.0.tar.gz" in done.stdout


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "PKG-INFO is missing"),
        ("damaged", "is damaged"),
        ("short", "is damaged"),
        ("folder", "is not a file of a usual size"),
    ],
)
def test_a_damaged_source_distribution_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = sdist(tmp_path, "1.0", name="setup.py")
    content = path.read_bytes()
    if text == "folder":
        with tarfile.open(path, "w:gz") as archive:
            header = tarfile.TarInfo("toy-1.0/PKG-INFO")
            header.type = tarfile.DIRTYPE
            archive.addfile(header)
    elif text:
        path.write_bytes(b"no archive" if text == "damaged" else content[: len(content) // 2])
    with pytest.raises(WheelError, match=fault):
        update(tmp_path / "index", path)
    assert not (tmp_path / "index" / "toy").exists()


def test_a_provenance_is_served_and_checked(tmp_path: Path) -> None:
    root, dist = tmp_path / "index", tmp_path / "dist"
    core = next(path for path in release(dist, "1.0") if path.name.startswith("toy-"))
    object_of_core = attest(core)
    with pytest.raises(UsageError, match="has to be an absolute address"):
        update(root, dist)
    update(root, dist, url=URL)
    (file,) = page(root)["files"]
    assert file["provenance"] == f"{URL}toy/{core.name}.provenance"
    served = root / "toy" / f"{core.name}.provenance"
    assert served.read_bytes() == object_of_core.read_bytes()
    # The address is remembered.
    update(root)
    assert check_index(open_folder(root)) == 3
    served.write_text("{}")
    with pytest.raises(VerifyError, match=r"provenance: has the SHA-256"):
        check_index(open_folder(root))
    update(root, dist)
    check_index(open_folder(root))
    update(root, limits=RetentionLimits(size=0), remove=frozenset((core.name,)))
    assert not served.exists()


def test_a_provenance_may_come_later(tmp_path: Path) -> None:
    root, dist = tmp_path / "index", tmp_path / "dist"
    core = next(path for path in release(dist, "1.0") if path.name.startswith("toy-"))
    update(root, dist)
    attest(core)
    update(root, dist, url=URL, now=EPOCH + 5)
    (file,) = page(root)["files"]
    assert (file["provenance"][:8], file["upload-time"][:10]) == ("https://", "2026-11-21")
    check_index(open_folder(root))


def test_a_provenance_of_something_else_is_refused(tmp_path: Path) -> None:
    root, dist = tmp_path / "index", tmp_path / "dist"
    core = next(path for path in release(dist, "1.0") if path.name.startswith("toy-"))
    place = attest(core, "00" * 32)
    with pytest.raises(VerifyError, match="is about another file"):
        update(root, dist, url=URL)
    attest(core, version=2)
    with pytest.raises(VerifyError, match=r"not a provenance object: .*version"):
        update(root, dist, url=URL)
    attest(core)
    changed = json.loads(place.read_text())
    changed["attestation_bundles"][0]["attestations"][0]["envelope"]["statement"] = "!"
    place.write_text(json.dumps(changed))
    with pytest.raises(VerifyError, match="a statement in it can't be read"):
        update(root, dist, url=URL)
    assert not (root / "toy").exists()


def test_status_covers_the_core_and_its_plugins(tmp_path: Path) -> None:
    root = tmp_path / "index"
    release(tmp_path / "1.0", "1.0")
    release(tmp_path / "other", "1.0", project="other")
    update(root, tmp_path / "1.0", tmp_path / "other")
    status(root, "toy", "archived", "use toy2")
    expected = {"status": "archived", "reason": "use toy2"}
    assert page(root)["project-status"] == page(root, "toy-sm90")["project-status"] == expected
    assert "project-status" not in page(root, "other")
    release(tmp_path / "1.1", "1.1")
    with pytest.raises(InputError, match=r"can't be added: toy.* is archived"):
        update(root, tmp_path / "1.1")
    check_index(open_folder(root))
    status(root, "toy", "active", "not written")
    assert "project-status" not in page(root)
    update(root, tmp_path / "1.1")
    with pytest.raises(InputError, match="absent is not in the index"):
        status(root, "absent", "archived")


def test_a_quarantine_ends_with_all_files(tmp_path: Path) -> None:
    root = tmp_path / "index"
    release(tmp_path / "1.0", "1.0")
    update(root, tmp_path / "1.0")
    before = page(root)
    status(root, "toy", "quarantined")
    assert page(root)["files"] == page(root, "toy-sm90")["files"] == []
    assert check_index(open_folder(root)) == 3
    status(root, "toy", "active")
    assert page(root) == before


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--status", "toy=gone"), "is not a status\nhint: give NAME=STATUS: active, archived"),
        (("--status", "=active"), "is not a status"),
        (("--reason", "x"), "no meaning without --yank or --status"),
        (("--prune", "age=14y"), "in units s, m (minutes), h, d, w; or size=20GB, in units B, kB"),
        (("--prune", "days=14"), "in units s, m (minutes), h, d, w"),
        (("--url", "example.org"), "is not an address, such as https://example.org/w/"),
    ],
)
def test_the_command_names_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fault: str
) -> None:
    update(tmp_path / "index", sdist(tmp_path, "1.0"))
    try:
        code = main(["index", str(tmp_path / "index"), *words])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert (code, fault in capsys.readouterr().err) == (2, True)


def test_the_command_sets_a_status(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, sdist(tmp_path, "1.0"))
    words = ("--status", "Toy=deprecated", "--reason", "use toy2", "--url", "https://example.org/w")
    assert main(["index", str(root), *words]) == 0
    assert page(root)["project-status"] == {"status": "deprecated", "reason": "use toy2"}
    assert json.loads((root / "index.json").read_text())["_url"] == "https://example.org/w/"
