"""Requirements of a release that only its index can meet, and targets that it lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from archsplit.index.client import Index, IndexFile, IndexPage
from archsplit.index.release import CORE, UploadRelease, read_release
from archsplit.index.requirements import (
    dropped_targets,
    install_requirement,
    missing_dependencies,
)
from changed_wheels import in_metadata, rewrite

if TYPE_CHECKING:
    from pathlib import Path


class FakeIndex:
    """An index with some pages, and one file's bytes."""

    address = "https://host/simple/"

    def __init__(self, content: bytes = b"", **files: str) -> None:
        self.content, self.files = content, files

    def project(self, name: str) -> IndexPage:
        file = self.files.get(name)
        names = (file,) if file else ()
        files = {each: IndexFile(name=each, url="", digests={}) for each in names}
        return IndexPage(name=name, exists=bool(file), files=files)

    def read(self, url: str) -> bytes:
        del url
        return self.content


def as_index(fake: FakeIndex) -> Index:
    return cast("Index", fake)


def release(made: Path, folder: Path, *lines: str) -> UploadRelease:
    """Return the sample release with more lines in the METADATA of its core."""
    found = read_release([made])
    (core,) = found.of(CORE)
    path = folder / core.path.name
    shutil.copy(core.path, path)
    text = "".join(f"{line}\n" for line in lines).encode()
    rewrite(path, in_metadata(b"Name: ", text + b"Name: "))
    others = tuple(one for one in found.artifacts if one.role != CORE)
    return replace(found, artifacts=(*others, replace(core, path=path)))


def test_dependency_missing_on_the_index_is_a_warning(made: Path, tmp_path: Path) -> None:
    lines = ("Requires-Dist: numpy>=1.20", "Requires-Dist: torch; extra == 'dev'")
    what = release(made, tmp_path, *lines)
    indexes = (FakeIndex(), FakeIndex(numpy="numpy-1.19.0.tar.gz"), FakeIndex(numpy="numpy-2.egg"))
    for each in indexes:
        (text,) = missing_dependencies(what, [as_index(each)])
        assert text.startswith("toyfat requires numpy>=1.20, which is not on https://host/simple/")
        assert "--extra-index-url" in text
    other = FakeIndex(numpy="numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    assert not list(missing_dependencies(what, [as_index(FakeIndex()), as_index(other)]))


def test_requirement_for_another_python_is_not_looked_for(made: Path, tmp_path: Path) -> None:
    what = release(made, tmp_path, "Requires-Dist: numpy; python_version < '3'")
    assert not list(missing_dependencies(what, [as_index(FakeIndex())]))


OLD = """\
Provides-Extra: cc70
Requires-Dist: toyfat-cc70==0.9; extra == 'cc70'
Provides-Extra: cc75
Requires-Dist: toyfat-cc70==0.9; extra == 'cc75'
"""


@pytest.mark.parametrize("has_metadata", [True, False])
def test_dropped_target_is_a_warning(made: Path, tmp_path: Path, *, has_metadata: bool) -> None:
    what = release(made, tmp_path)
    name = "toyfat-0.9-py3-none-manylinux_2_17_x86_64.whl"
    content = f"Metadata-Version: 2.4\nName: toyfat\nVersion: 0.9\n{OLD}".encode()
    served = IndexFile(
        name=name, url="u", digests={}, metadata={} if has_metadata else None, metadata_url="m"
    )
    page = IndexPage(name="toyfat", exists=True, files={name: served})
    what = release(made, tmp_path)
    found = list(dropped_targets(what, page, as_index(FakeIndex(content))))
    # The wheel itself may have gigabytes.
    if not has_metadata:
        (text,) = found
        assert text.startswith("toyfat 0.9 has no metadata on the index")
        return
    assert found[0].startswith("toyfat 0.9 on the index has cc70,cc75, and this release lacks it")
    # cc75 has no pack of its own: anybody could upload toyfat-cc75.
    assert "`archsplit split --dropped cc70`" in found[0]
    built = replace(what, reports={"": replace(next(iter(what.reports.values())), split=None)})
    (text,) = dropped_targets(built, page, as_index(FakeIndex(content)))
    assert text.endswith("`dropped` in the recipe keeps them at 0.9")
    kept = release(made, tmp_path, *OLD.replace("0.9", "1.0").splitlines())
    assert not list(dropped_targets(kept, page, as_index(FakeIndex(content))))


def test_first_release_and_newer_versions_have_no_dropped_targets(
    made: Path, tmp_path: Path
) -> None:
    what = release(made, tmp_path)
    name = "toyfat-2.0-py3-none-any.whl"
    page = IndexPage(
        name="toyfat", exists=True, files={name: IndexFile(name=name, url="", digests={})}
    )
    assert not list(dropped_targets(what, page, as_index(FakeIndex())))


def test_requirement_for_users_has_every_plugin(made: Path) -> None:
    assert install_requirement(read_release([made])) == "toyfat[all]==1.0"
