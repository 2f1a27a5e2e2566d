from __future__ import annotations

import email
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wheel_samples import core_plan

from archsplit.errors import WheelError
from archsplit.wheels.metadata import (
    CoreMetadata,
    MetadataAuthor,
    WheelInfo,
    decode_metadata,
    decode_upstream_metadata,
    edit_wheel_info,
    encode_metadata,
    read_name_and_version,
)

texts = st.text(max_size=20)
fields = st.fixed_dictionaries(
    {},
    optional={
        "summary": texts,
        "description": st.text(max_size=60),
        "keywords": st.lists(texts, max_size=3).map(tuple),
        "classifiers": st.lists(texts, max_size=3).map(tuple),
        "authors": st.lists(st.builds(MetadataAuthor, name=texts), max_size=2).map(tuple),
        "urls": st.dictionaries(texts, texts, max_size=2),
        "license_files": st.lists(texts, max_size=2).map(tuple),
    },
)


def test_metadata_is_spelled_and_ordered_as_in_the_specification() -> None:
    assert encode_metadata(core_plan().metadata).decode() == (
        "Metadata-Version: 2.4\n"
        "Name: VecSort\n"
        "Version: 1.2.3\n"
        "Summary: Sört on a GPU.\n"
        "Keywords: cuda,sort\n"
        "Author: The authors\n"
        "Author-email: Zoë <zoe@example.org>\n"
        "License-Expression: Apache-2.0\n"
        "License-File: LICENSE\n"
        "License-File: third_party/NOTICE\n"
        "Classifier: Environment :: GPU :: NVIDIA CUDA\n"
        "Project-URL: Homepage, https://example.org/vecsort\n"
        "Requires-Python: >=3.10\n"
        'Requires-Dist: vecsort-sm90==1.2.3; extra == "all"\n'
        'Requires-Dist: vecsort-sm90==1.2.3; extra == "sm90"\n'
        "Provides-Extra: all\n"
        "Provides-Extra: sm90\n"
        "Description-Content-Type: text/markdown\n"
        "\n"
        "# VecSort\n\nSörts.\n"
    )


def test_every_field_reads_back() -> None:
    core = core_plan().metadata
    read = decode_metadata(encode_metadata(core))
    assert (read.name, str(read.version)) == (core.name, core.version)
    assert read.description == core.description
    assert read.license_files == [*core.license_files]
    assert read.project_urls == core.urls
    assert read.provides_extra == ["all", "sm90"]
    assert read_name_and_version(encode_metadata(core)) == ("VecSort", "1.2.3")


def test_extras_join_existing_markers() -> None:
    core = CoreMetadata(
        name="a",
        version="1",
        requires=("numpy >=2",),
        extras={"B_c": ("d; python_version < '3.11' or os_name == 'nt'",), "empty": ()},
    )
    read = decode_metadata(encode_metadata(core))
    assert read.provides_extra == ["b-c", "empty"]
    assert [str(requirement) for requirement in read.requires_dist or ()] == [
        "numpy>=2",
        'd; (python_version < "3.11" or os_name == "nt") and extra == "b-c"',
    ]


def test_line_ends_of_a_description_become_ours() -> None:
    core = CoreMetadata(name="a", version="1", description="one\r\ntwo\rthree\n")
    assert decode_metadata(encode_metadata(core)).description == "one\ntwo\nthree\n"


@given(fields)
def test_text_reads_back_or_is_refused(changes: dict[str, Any]) -> None:
    try:
        core = CoreMetadata(name="a", version="1", **changes)
    except WheelError:
        return
    read = decode_metadata(encode_metadata(core))
    assert read.summary == (core.summary or None)
    assert read.description == (re.sub("\r\n?", "\n", core.description) or None)
    assert read.keywords == ([*core.keywords] or None)
    assert read.classifiers == ([*core.classifiers] or None)
    assert read.project_urls == (core.urls or None)
    assert read.license_files == ([*core.license_files] or None)
    assert read.requires_dist is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "-"}, "'name'"),
        ({"version": "one"}, "'version'"),
        ({"summary": "a\nb"}, "single line"),
        ({"keywords": ("a,b",)}, "keywords"),
        ({"keywords": ("a\nName: b",)}, "keywords"),
        ({"urls": {"a,b": "c"}}, "project_urls"),
        ({"classifiers": (" a",)}, "classifiers"),
        ({"authors": (MetadataAuthor(email="someone"),)}, "'someone' is not an e-mail address"),
        ({"authors": (MetadataAuthor(email="@"),)}, "'@' is not an e-mail address"),
        ({"license_expression": "Apache"}, "license-expression"),
        ({"license_files": ("../LICENSE",)}, "license-file"),
        ({"requires_python": "three"}, "requires-python"),
        ({"requires": ("a b",)}, "'a b' is not a requirement"),
        ({"extras": {"a b": ()}}, "not a project name"),
        ({"extras": {'a"': ("b",)}}, "not a project name"),
        ({"description_content_type": "text/html"}, "description-content-type"),
        ({"description": "\ud800"}, "not valid Unicode"),
        ({"summary": "\ud800"}, "not valid Unicode"),
    ],
)
def test_invalid_core_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        CoreMetadata(**{"name": "a", "version": "1", **changes})


def test_all_faults_are_listed() -> None:
    with pytest.raises(WheelError) as caught:
        CoreMetadata(name="-", version="one", license_expression="Apache")
    assert str(caught.value).count("is invalid") == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"Metadata-Version: 2.4\nName: a\n",
        b"Metadata-Version: 2.4\nName: a\nName: b\nVersion: 1\n",
        b"Metadata-Version: 2.4\nName: a\nVersion: 1\nFavourite-Colour: blue\n",
        b"Metadata-Version: 2.1\nName: a\nVersion: 1\nLicense-File: LICENSE\n",
        b"Metadata-Version: 2.4\nName: a\nVersion: 1\nSummary: \xff\n",
    ],
)
def test_metadata_of_others_is_read_strictly(content: bytes) -> None:
    with pytest.raises(WheelError, match="not valid"):
        decode_metadata(content)


def test_license_files_of_old_metadata_are_left_out_as_by_twine() -> None:
    old = b"Metadata-Version: 2.2\nName: a\nVersion: 1\nLicense-File: LICENSE\n"
    found = decode_upstream_metadata(old)
    assert (found.name, found.license_files) == ("a", None)
    new = old.replace(b"2.2", b"2.4")
    assert decode_upstream_metadata(new).license_files == ["LICENSE"]
    with pytest.raises(WheelError, match="not valid"):
        decode_upstream_metadata(old.replace(b"Version: 1", b"Version: one"))
    with pytest.raises(WheelError, match="not valid"):
        decode_upstream_metadata(b"Colour: blue\n" + old)


@given(st.binary(max_size=100))
def test_any_bytes_are_metadata_or_refused(content: bytes) -> None:
    read_name_and_version(content)
    try:
        decode_metadata(content)
    except WheelError:
        return


def test_identity_needs_no_valid_metadata() -> None:
    assert read_name_and_version(
        b"Name: a\nVersion: 1\nLicense-File: x\nFavourite-Colour: blue\n"
    ) == ("a", "1")
    assert read_name_and_version(b"Name: a\nName: b\n") == ("", "")


infos = st.builds(
    WheelInfo,
    generator=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9),
    tags=st.sets(
        st.builds("{}-none-{}".format, st.sampled_from(["py3", "cp312"]), st.sampled_from("abc")),
        min_size=1,
    ).map(lambda tags: tuple(sorted(tags))),
    purelib=st.booleans(),
    build=st.sampled_from(["", "1", "02b"]),
)


@given(infos)
def test_wheel_reads_back(info: WheelInfo) -> None:
    assert WheelInfo.decode(info.encode()) == info


@given(infos)
def test_the_email_module_reads_the_same(info: WheelInfo) -> None:
    message = email.message_from_bytes(info.encode())
    assert message.get_all("Tag") == [*info.tags]
    assert message["Wheel-Version"] == "1.0"
    assert message["Root-Is-Purelib"] == ("true" if info.purelib else "false")


SOUND = "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: True\nTag: c-b-a\nTag: a-b-c\n"


def test_wheel_file_of_another_tool_is_read() -> None:
    expected = WheelInfo(generator="a", tags=("a-b-c", "c-b-a"), purelib=True)
    assert WheelInfo.decode(SOUND.encode()) == expected
    assert WheelInfo.decode(SOUND.replace("\n", "\r\n").encode()) == expected
    assert WheelInfo.decode(SOUND.replace("1.0", "1.9").encode()) == expected


def test_the_first_of_two_roots_counts_as_for_pip() -> None:
    twice = SOUND.replace("True\n", "False\nRoot-Is-Purelib: true\n")
    info = WheelInfo.decode(twice.encode())
    assert not info.purelib
    assert info.notes == (
        "WHEEL has 2 lines Root-Is-Purelib; the first one counts, as for pip: False",
    )
    new = edit_wheel_info(twice.encode(), tags=info.tags, build="0split")
    assert WheelInfo.decode(new) == replace(info, build="0split")
    assert new.count(b"Root-Is-Purelib") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.0", "2.0", "format version '2.0'"),
        ("Wheel-Version: 1.0\n", "", "0 lines Wheel-Version"),
        ("Generator: a\n", "", "0 lines Generator"),
        ("Root-Is-Purelib: True\n", "", "0 lines Root-Is-Purelib"),
        ("Generator: a", "Generator: ", "needs a generator"),
        ("Generator: a", "Generator: a\x01", "printable ASCII"),
        ("Generator: a", "Generator: ä", "not ASCII"),
        ("True", "maybe", "expected true or false"),
        ("Tag: c-b-a\nTag: a-b-c\n", "", "needs a sorted set of tags"),
        ("Tag: c-b-a", "Build: 1\nBuild: 2", "2 lines Build"),
    ],
)
def test_invalid_wheel_file_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        WheelInfo.decode(SOUND.replace(old, new).encode())


def test_wheel_gets_other_tags_and_one_root() -> None:
    text = b"Wheel-Version: 1.0\nTag: py2-none-any\nBuild: 1\n"
    new = b"Wheel-Version: 1.0\nTag: py3-none-any\n"
    assert edit_wheel_info(text, tags=["py3-none-any"], build="") == new
    root = b"Root-Is-Purelib: false\n"
    twice = edit_wheel_info(text + root + root, tags=["py3-none-any"], build="2")
    assert twice == b"Wheel-Version: 1.0\n" + root + b"Tag: py3-none-any\nBuild: 2\n"
