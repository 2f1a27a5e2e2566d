"""Rewriting of wheels: edited METADATA, renamed folders, a RECORD that fits."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from wheel_samples import RECORD, TOY_FILES, TOY_NAME, record_of, zipped

from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import edit_metadata, read_extras
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import WheelRewrite, new_dist_info
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "Metadata-Version: 2.1\nName: Vec.Sort\nVersion: 1.0\nProvides-Extra: All\n"
SLIM_HEAD = HEAD.replace("1.0", "1.0+slim")
REQUIRES = "Requires-Dist: a==1\nRequires-Dist: b==2\n"
CRLF_HEAD = HEAD.replace("\n", "\r\n")
# The expected texts are literal: output bytes of earlier releases, that must not change.
WITH_FIELDS = (
    (
        HEAD + "\n# Vec\n\nVersion: 9\n\n",
        HEAD + REQUIRES + "\n# Vec\n\nVersion: 9\n\n",
    ),
    (
        HEAD,
        HEAD + REQUIRES,
    ),
    (
        HEAD + "\n",
        HEAD + REQUIRES + "\n",
    ),
    (
        HEAD.rstrip(),
        HEAD + REQUIRES,
    ),
    (
        CRLF_HEAD + "\r\nText\r\n",
        CRLF_HEAD.rstrip() + "\n" + REQUIRES.rstrip() + "\r\n\r\nText\r\n",
    ),
)
WITH_VERSION_AND_NOTE = (
    (
        HEAD + "\n# Vec\n\nVersion: 9\n\n",
        SLIM_HEAD + "\n# Vec\n\nVersion: 9\n\nNOTE\n",
    ),
    (
        HEAD,
        SLIM_HEAD + "\nNOTE\n",
    ),
    (
        CRLF_HEAD + "\r\nText\r\n",
        SLIM_HEAD.replace("\n", "\r\n", 2) + "\nText\n\nNOTE\n",
    ),
    (
        HEAD.lower() + "\nText",
        SLIM_HEAD.lower().replace("version: 1", "Version: 1") + "\nText\n\nNOTE\n",
    ),
    (
        HEAD + "Version: 2\nName: b\n\nx",
        SLIM_HEAD + "Version: 2\nName: b\n\nx\n\nNOTE\n",
    ),
    (
        HEAD + "\n\n  x\n",
        SLIM_HEAD + "\n\n  x\n\nNOTE\n",
    ),
    (
        HEAD + "Description: one\n  two\n",
        SLIM_HEAD + "Description: one\n  two\n",
    ),
    (
        HEAD + "Description: one\n\nbody \n\n",
        SLIM_HEAD + "Description: one\n\nbody \n\n",
    ),
    (
        HEAD + "Description: one\n\n",
        SLIM_HEAD + "Description: one\n",
    ),
    (
        CRLF_HEAD + "Description: one\r\n\r\nbody\r\n",
        SLIM_HEAD.replace("\n", "\r\n", 2).rstrip() + "\r\nDescription: one\n\nbody\r\n",
    ),
)


@pytest.mark.parametrize(("before", "after"), WITH_FIELDS)
def test_fields_come_at_the_end_of_the_header(before: str, after: str) -> None:
    fields = ["Requires-Dist: a==1", "Requires-Dist: b==2"]
    assert edit_metadata(before.encode(), fields=fields).decode() == after


@pytest.mark.parametrize(("before", "after"), WITH_VERSION_AND_NOTE)
def test_a_note_comes_at_the_end_of_the_description(before: str, after: str) -> None:
    edited = edit_metadata(before.encode(), version="1.0+slim", note="NOTE")
    assert edited.decode() == after


def test_new_name_replaces_only_the_first_one() -> None:
    before = HEAD + "\nName: a text\n"
    after = HEAD.replace("Vec.Sort", r"vec\1") + "\nName: a text\n"
    assert edit_metadata(before.encode(), name=r"vec\1").decode() == after


def test_without_edits_the_bytes_stay() -> None:
    before = f"{CRLF_HEAD}\r\nText\r\n".encode()
    assert edit_metadata(before) == before


def test_extras_are_read_only_from_the_header() -> None:
    text = HEAD + "provides-extra: sm_90\n\nProvides-Extra: none\n"
    assert read_extras(text.encode()) == {"all", "sm-90"}


def test_an_unusual_spelling_of_the_own_folder_stays_the_only_one(tmp_path: Path) -> None:
    names = {name: name.replace("toy-1.0.dist", "Toy-1.0.dist") for name in (*TOY_FILES, RECORD)}
    files = {names[name]: content for name, content in TOY_FILES.items()}
    files[names[RECORD]] = record_of(files).replace(RECORD.encode(), names[RECORD].encode())
    (tmp_path / "old").mkdir()
    source = zipped(
        tmp_path / "old" / TOY_NAME,
        [(zipfile.ZipInfo(name), content) for name, content in files.items()],
    )
    with open_wheel(source) as wheel:
        for name, folder in (
            ("toy-1.0-0split-py3-none-any.whl", "Toy-1.0.dist-info"),
            ("toy-1.0+a-py3-none-any.whl", "Toy-1.0+a.dist-info"),
            ("toy_core-1.0-py3-none-any.whl", "toy_core-1.0.dist-info"),
        ):
            new = WheelName.parse(name)
            assert new_dist_info(wheel, new) == folder
            own = wheel.dist_info
            text = edit_metadata(
                wheel.read(f"{own}/METADATA"), name=new.project, version=new.version
            )
            # A member may still be packed when the wheel begins.
            with ThreadPoolExecutor(1) as worker, (tmp_path / name).open("wb") as file:
                rewrite = WheelRewrite(
                    wheel=wheel,
                    name=new,
                    changed={f"{own}/METADATA": worker.submit(pack, text)},
                    added={"toy/new.py": pack(b"")},
                )
                rewrite.write(file)
            with open_wheel(tmp_path / name, same_tags=False) as rewritten:
                assert rewritten.dist_info == folder
                assert rewritten.names[-2:] == ("toy/new.py", f"{folder}/RECORD")
                rewritten.check_contents()
