from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypi_simple import ProjectPage

from archsplit.errors import InputError, WheelError
from archsplit.index.static_model import (
    IndexEntry,
    IndexProject,
    IndexRelease,
    exact_pins,
    requirements_first,
)
from archsplit.index.static_pages import (
    is_page,
    parse_project,
    project_html,
    project_json,
    root_html,
    root_json,
)
from archsplit.wheels.filename import distribution_name

TOY = distribution_name("toy")

VERSIONS = ["1.0", "1.0.dev20261121", "1.0rc1", "1.0+cu130.2", "2!1.0", "1.0.post1"]
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
ENTRIES = st.builds(
    IndexEntry,
    file=st.sampled_from([f"toy-{version}-py3-none-any.whl" for version in VERSIONS]),
    sha256=st.sampled_from(["ab" * 32, "01" * 32]),
    metadata_sha256=st.sampled_from(["cd" * 32, "ab" * 32]),
    size=st.integers(0, 1 << 40),
    uploaded=st.integers(0, 1 << 32),
    requires_python=st.sampled_from(["", ">=3.8", '<4,>=3.8,!="x"']),
    yanked=st.none() | TEXTS,
    pins=st.lists(
        st.builds(
            IndexRelease,
            project=st.sampled_from([distribution_name(name) for name in ("toy-sm90", "a")]),
            version=st.sampled_from(VERSIONS),
        ),
        max_size=3,
    ).map(tuple),
)


def entry(file: str = "toy-1.0-py3-none-any.whl", **fields: object) -> IndexEntry:
    facts: dict[str, object] = {
        "sha256": "ab" * 32,
        "metadata_sha256": "cd" * 32,
        "size": 5,
        "uploaded": 1_795_219_200,
        **fields,
    }
    return IndexEntry(file=file, **facts)  # type: ignore[arg-type]


@given(st.lists(ENTRIES, max_size=4))
def test_a_page_is_read_as_it_was_written(entries: list[IndexEntry]) -> None:
    project = IndexProject.of(TOY, entries)
    page = project_json(project).encode()
    assert parse_project(page, where="here") == project


def test_pages_are_read_by_another_reader() -> None:
    project = IndexProject.of(TOY, [entry()])
    url = "https://example.org/nightly/toy/"
    pages = (
        ProjectPage.from_html("toy", project_html(project), url),
        ProjectPage.from_json_data(json.loads(project_json(project)), url),
    )
    for page in pages:
        assert page.repository_version == "1.4"
        (wheel,) = page.packages
        assert wheel.has_metadata
        assert wheel.url.startswith(f"{url}toy-1.0-py3-none-any.whl")


def test_page_of_another_website_is_not_an_index() -> None:
    assert is_page(root_html([TOY]).encode())
    assert not is_page(b"<title>Mine</title>")


def test_html_has_all_installer_fields() -> None:
    project = IndexProject.of(
        TOY,
        [entry("toy-1.0+cu130-py3-none-any.whl", requires_python=">=3.8", yanked='no "good" <>')],
    )
    assert (
        f'<a href="toy-1.0%2Bcu130-py3-none-any.whl#sha256={"ab" * 32}"'
        ' data-requires-python="&gt;=3.8"'
        f' data-core-metadata="sha256={"cd" * 32}" data-dist-info-metadata="sha256={"cd" * 32}"'
        ' data-yanked="no &quot;good&quot; &lt;&gt;">toy-1.0+cu130-py3-none-any.whl</a><br>'
    ) in project_html(project)
    assert "data-yanked" not in project_html(IndexProject.of(TOY, [entry()]))


def test_json_has_the_fields_of_pep_700() -> None:
    page = json.loads(
        project_json(IndexProject.of(TOY, [entry(), entry("toy-0.9-py3-none-any.whl")]))
    )
    assert page["meta"] == {"api-version": "1.4"}
    assert page["versions"] == ["0.9", "1.0"]
    assert page["files"][1] == {
        "filename": "toy-1.0-py3-none-any.whl",
        "url": "toy-1.0-py3-none-any.whl",
        "hashes": {"sha256": "ab" * 32},
        "size": 5,
        "upload-time": "2026-11-21T00:00:00Z",
        "yanked": False,
        "core-metadata": {"sha256": "cd" * 32},
        "dist-info-metadata": {"sha256": "cd" * 32},
        "_pins": [],
    }


def test_list_of_projects_is_written_as_html_and_json() -> None:
    assert '<a href="toy/">toy</a>' in root_html([TOY])
    assert json.loads(root_json([TOY]))["projects"] == [{"name": "toy"}]


def test_a_page_of_another_index_is_read_as_far_as_it_goes() -> None:
    page = json.loads(project_json(IndexProject.of(TOY, [entry()])))
    (file,) = page["files"]
    del file["_pins"], file["dist-info-metadata"], file["yanked"]
    file["upload-time"] = "2026-11-21T00:00:00.123456Z"
    assert parse_project(json.dumps(page).encode(), where="here").entries == (entry(),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sha256": "AB"}, "SHA-256"), ({"size": -1}, "negative"), ({"uploaded": -1}, "negative")],
)
def test_invalid_entry_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        entry("toy-1.0-py3-none-any.whl", **changes)
    with pytest.raises(WheelError):
        entry("toy.zip")


def test_moments_are_in_utc() -> None:
    page = json.loads(project_json(IndexProject.of(TOY, [entry(uploaded=0)])))
    assert page["files"][0]["upload-time"] == "1970-01-01T00:00:00Z"


def test_exact_pins_are_normalised_and_others_left_out() -> None:
    texts = ['Toy_SM90==1.0.0 ; extra == "sm90"', "a>=1,==2.0", "b==1.*", "c", "not a requirement!"]
    assert [str(pin) for pin in exact_pins(texts)] == ["a==2.0", "toy-sm90==1.0.0"]


def test_pack_of_a_dropped_extra_is_not_pinned() -> None:
    texts = [f'toy-sm90==1.1; extra == "{extra}"' for extra in ("all", "sm90", "sm91")]
    dropped = 'toy-sm70==1.1; extra == "sm70"'
    assert [str(pin) for pin in exact_pins([*texts, dropped])] == ["toy-sm90==1.1"]
    other = 'toy-sm70==1.1; extra == "old"'
    pins = [str(pin) for pin in exact_pins([*texts, other])]
    assert pins == ["toy-sm70==1.1", "toy-sm90==1.1"]
    # Another project's core may have extras of one pack, and none for all.
    assert [str(pin) for pin in exact_pins([dropped])] == ["toy-sm70==1.1"]


def test_order_of_projects_takes_time_in_step_with_their_number() -> None:
    def seconds(count: int) -> float:
        names = [distribution_name(f"project-{n // 10}-cc{n % 10}0") for n in range(count)]
        began = time.process_time()
        requirements_first(names)
        return time.process_time() - began

    few = min(seconds(1_000) for _ in range(3))
    # Sixteen times as many; 256 times the seconds if each name is compared with all others.
    assert seconds(16_000) < 80 * few


def test_plugins_come_before_their_core() -> None:
    names = [
        distribution_name(name) for name in ("toy", "a", "toy-sm90", "toy-sm90-extra", "toyer")
    ]
    assert requirements_first(names) == ["toy-sm90-extra", "toy-sm90", "a", "toy", "toyer"]
