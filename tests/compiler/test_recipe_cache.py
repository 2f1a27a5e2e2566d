"""The cache behind a recipe: what hits, and that nothing stale ever does."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recipe_project import SOURCE, Project, steps_that_ran
from wrapper_project import settle, toolkit_of_links

from archives import extract_tar
from archsplit.arch.target import Target
from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import decode_entry, encode_entry
from archsplit.cache.stats import MissLog
from archsplit.errors import RecipeError, VerifyError

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def begun(
    tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit, environment: dict[str, str]
) -> Project:
    """A project that was built once; not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    made = Project(
        folder=folder / "p", store=folder / "store", nvcc=toolkit.nvcc, environment=environment
    )
    made.lay_out()
    assert len([name for name in made.build().ran if "cicc" in name]) == 2
    return made


@pytest.fixture
def project(begun: Project, tmp_path: Path) -> Project:
    """A copy of it, elsewhere, that can be changed."""
    shutil.copytree(begun.store, tmp_path / "store")
    shutil.copytree(begun.folder, tmp_path / "here" / "p")
    settle()
    return replace(begun, folder=tmp_path / "here" / "p", store=tmp_path / "store")


@pytest.fixture
def empty(project: Project, tmp_path: Path) -> Project:
    """The same with a store that has nothing in it."""
    return replace(project, store=tmp_path / "empty")


def test_irrelevant_change_is_a_hit(project: Project, tmp_path: Path) -> None:
    first = project.build()
    assert first.is_known
    assert first.libraries == project.fresh()
    # Another order of what is read, another time, another umask, another number of jobs.
    for path in project.folder.rglob("*"):
        path.touch()
    archive = tmp_path / "p.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(project.folder.rglob("*"), reverse=True):
            tar.add(path, path.relative_to(project.folder), recursive=False)
    person = {"HOME": str(tmp_path), "USER": "other", "LOGNAME": "other"}
    other = replace(
        project.moved(tmp_path / "elsewhere" / "a b"),
        jobs=1,
        environment={**project.environment, **person},
    )
    mask = os.umask(0o077)
    try:
        with tarfile.open(archive) as tar:
            extract_tar(tar, other.folder)
        moved = other.build()
    finally:
        os.umask(mask)
    assert moved.is_known
    assert moved.libraries == first.libraries


def test_build_of_all_targets_reuses_the_one_built_before(empty: Project) -> None:
    project, one, other = empty, Target.parse("sm_80"), Target.parse("sm_90")
    project.build(one)
    assert project.build(one).is_known
    both = project.build()
    assert "ptxas sm_90" in steps_that_ran(both)
    assert not [name for name in steps_that_ran(both) if "80" in name]
    assert project.build().is_known
    assert project.build(other).is_known
    assert both.libraries == project.fresh()


def test_a_nightly_of_another_day_compiles_nothing(project: Project) -> None:
    def of(day: int) -> Project:
        return replace(project, environment={**project.environment, "SOURCE_DATE_EPOCH": str(day)})

    assert of(1_700_086_400).build().is_known
    project.edit("src/n.cpp", '"small"', '"small " __DATE__')
    of(1_700_000_000).build()
    assert of(1_700_000_000).build().is_known
    tomorrow = of(1_700_086_400)
    built = tomorrow.build()
    assert any("SOURCE_DATE_EPOCH" in line for line in built.told if line.startswith("n.cpp"))
    assert built.libraries == tomorrow.fresh()


def test_a_comment_or_a_host_function_runs_no_device_step(project: Project) -> None:
    project.edit("src/k.cu", '#include "api.h"', '// a comment\n#include "api.h"')
    built = project.build()
    assert "k.cu: src/k.cu has changed" in built.told
    written = MissLog(project.store).read_reasons(str(project.folder / "src" / "k.cu"))
    assert written[0] == ("", "src/k.cu has changed")
    assert set(steps_that_ran(built)) <= {"cudafe++", "host compile"}
    more = "#ifndef __CUDA_ARCH__\nint helper() { return 7; }\n#endif\n"
    project.write("src/k.cu", (project.folder / "src/k.cu").read_text() + more)
    built = project.build()
    assert set(steps_that_ran(built)) == {"cudafe++", "host compile"}
    project.edit("src/k.cu", "return VALUE;", "return VALUE + 1;")
    built = project.build()
    assert not [name for name in steps_that_ran(built) if name.startswith("ptxas")]
    assert built.libraries == project.fresh()


EDITS = {
    "only on the host": "#ifndef __CUDA_ARCH__\n#undef VALUE\n#define VALUE 1\n#endif\n",
    "only for one target": "#if __CUDA_ARCH__ >= 900\n#undef VALUE\n#define VALUE 1\n#endif\n",
    "in a header of one target": '#if __CUDA_ARCH__ >= 900\n#include "deep.h"\n#endif\n',
    "in a header of one target, by its macro": "#if __CUDA_ARCH__ == 800\n#include DEEP\n#endif\n",
}


@pytest.mark.parametrize(
    "name",
    [
        # What sees them is the same as for a command line of nvcc's, where each of them is tried.
        name if "macro" in name else pytest.param(name, marks=pytest.mark.stress)
        for name in EDITS
    ],
)
def test_no_edit_is_missed(project: Project, name: str) -> None:
    seen = []
    for value in ("1", "2"):
        project.write("second/deep.h", f"#undef VALUE\n#define VALUE {value}\n")
        include = '#include "value.h"\n#define DEEP "deep.h"\n'
        old = (project.folder / "src/k.cu").read_text().partition(include)[2]
        kernel = (
            "static __global__"
            + (old or (project.folder / "src/k.cu").read_text()).partition("static __global__")[2]
        )
        edit = EDITS[name].replace(" VALUE 1", f" VALUE {value}")
        project.write("src/k.cu", f'#include "api.h"\n{include}{edit}{kernel}')
        built = project.build()
        assert steps_that_ran(built)
        seen.append(built.libraries)
    assert seen[0] != seen[1] == project.fresh()


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_new_header_earlier_in_the_search_is_a_miss(project: Project) -> None:
    before = project.build().libraries
    project.write("first/value.h", "#define VALUE 2\n")
    built = project.build()
    assert any("first/value.h" in line for line in built.told if line.startswith("k.cu: "))
    assert built.libraries == project.fresh() != before
    (project.folder / "first/value.h").unlink()
    built = project.build()
    assert built.is_known
    assert built.libraries == before


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_new_header_of_has_include_is_a_miss(project: Project) -> None:
    text = '#if __has_include("maybe.h")\n#include "maybe.h"\n#endif\n'
    project.edit("src/n.cpp", '#include "api.h"\n', f'#include "api.h"\n{text}')
    project.edit("src/n.cpp", '"small"', "NAME")
    project.edit("second/api.h", "#pragma once\n", '#pragma once\n#define NAME "small"\n')
    project.build()
    assert project.build().is_known
    project.write("second/maybe.h", '#undef NAME\n#define NAME "other"\n')
    built = project.build()
    assert built.ran
    assert built.libraries == project.fresh()


@pytest.mark.parametrize("flag", ["-include=second/forced.h", "--pre-include=second/forced.h"])
def test_a_recipe_forces_no_include(project: Project, flag: str) -> None:
    # What could be one more file that is read has no place in a recipe.
    project.edit("recipe.toml", "nvcc-flags = []", f'nvcc-flags = ["{flag}"]')
    with pytest.raises(RecipeError, match="can't be set here"):
        project.build()


def test_changed_cpp_file_is_compiled_by_itself(project: Project) -> None:
    project.edit("src/n.cpp", '"small"', '"other"')
    built = project.build()
    assert {name.partition("/")[0] for name in built.ran} == {"001-n"}
    assert built.libraries == project.fresh()


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_another_host_compiler_is_seen(project: Project, tmp_path: Path) -> None:
    real = shutil.which("g++")
    wrapper = tmp_path / "bin" / "g++"
    wrapper.parent.mkdir()
    path = f"{wrapper.parent}:{project.environment['PATH']}"
    here = replace(project, environment={**project.environment, "PATH": path})
    wrapper.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    settle()
    here.build()
    assert here.build().is_known
    wrapper.write_text(f'#!/bin/sh\nexec {real} -fno-plt "$@"\n')
    built = here.build()
    assert any("g++" in line for line in built.told if line.startswith("k.cu: "))
    assert "host compile" in steps_that_ran(built)
    assert built.libraries == here.fresh()


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_another_libdevice_is_seen_and_another_build(project: Project, tmp_path: Path) -> None:
    here = replace(project, nvcc=toolkit_of_links(project.nvcc, tmp_path / "toolkit"))
    before = here.build()
    assert here.build().is_known
    name = "nvvm/libdevice/libdevice.10.bc"
    with (tmp_path / "toolkit" / name).open("ab") as file:
        file.write(b"\n")
    settle()
    built = here.build()
    assert any(Path(name).name in line for line in built.told if line.startswith("k.cu: "))
    # The build id is in the library: another build is another one.
    assert built.libraries == here.fresh() != before.libraries


def test_additional_target_runs_only_its_own_device_steps(project: Project) -> None:
    project.edit("recipe.toml", '"sm_90"', '"sm_90", "sm_120"')
    built = project.build()
    # CUB would have another namespace; here no source has asked for the list.
    device = [name for name in steps_that_ran(built) if name.startswith(("cicc", "ptxas"))]
    assert device == ["cicc compute_120", "ptxas sm_120"]
    assert built.libraries == project.fresh()


def test_with_a_host_pass_per_target_a_target_more_compiles_itself_alone(empty: Project) -> None:
    one = empty
    one.edit("recipe.toml", "[compile]\n", '[compile]\nhost-pass = "per-target"\n')
    one.edit("recipe.toml", '"sm_80", "sm_90"', '"sm_80"')
    one.build()
    one.edit("recipe.toml", '"sm_80"', '"sm_80", "sm_90"')
    built = one.build()
    assert {name.partition("/")[0] for name in built.ran} == {"000-k-sm_90", "001-n-sm_90"}


def test_another_flag_is_seen_and_named(project: Project) -> None:
    project.edit("recipe.toml", "defines = []", 'defines = ["MORE=1"]')
    built = project.build()
    assert any("-DMORE=1" in line for line in built.told if line.startswith("k.cu: "))


def test_file_no_longer_listed_by_the_recipe_is_still_a_fault(project: Project) -> None:
    project.write("third/macro.h", "#define MACRO 1\n")
    project.edit("recipe.toml", '"second"]', '"second", "third"]')
    project.edit("src/k.cu", '#include "value.h"', '#define M "../third/macro.h"\n#include M')
    project.edit("src/k.cu", "VALUE", "MACRO")
    project.build()
    project.edit("recipe.toml", ', "third"]', "]")
    for _ in range(2):
        with pytest.raises(RecipeError, match=r"third/macro\.h is included"):
            project.build()


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_strict_preprocesses_and_runs_no_step(project: Project) -> None:
    built = replace(project, settings={"strict": True}).build()
    assert any("preprocess" in name for name in built.ran)
    assert steps_that_ran(built) == []


@pytest.mark.stress  # As for a command line of nvcc's, where it is tried each time.
def test_debug_information_is_known_step_by_step(project: Project) -> None:
    project.edit("recipe.toml", "nvcc-flags = []", 'nvcc-flags = ["-g", "-lineinfo"]')
    project.build()
    strict = replace(project, settings={"strict": True})
    assert steps_that_ran(strict.build()) == []


def test_verify_runs_everything_and_names_differences(project: Project) -> None:
    checking = replace(project, settings={"mode": "verify"})
    assert "cudafe++" in steps_that_ran(checking.build())
    cache = Cache(Settings(folder=project.store), warn=pytest.fail)
    for key in list(cache.local.all_keys()):
        found = cache.local.get(key) or b""
        if b"ptx" in found[:0] or not _is_ptx(found):
            continue
        entry = decode_entry(found)
        files = {name: text + b"\n" for name, text in entry.files.items()}
        cache.local.put(key, encode_entry(entry._replace(files=files)))
    with pytest.raises(VerifyError, match=r"000-k/.* cicc compute_80"):
        checking.build()


def _is_ptx(blob: bytes) -> bool:
    try:
        return any(name.endswith(".ptx") for name in decode_entry(blob).files)
    except Exception:  # noqa: BLE001 - a manifest
        return False


def test_entry_with_a_path_outside_is_not_an_object(project: Project) -> None:
    first = project.build()
    cache = Cache(Settings(folder=project.store), warn=pytest.fail)
    for key in list(cache.local.all_keys()):
        blob = cache.local.get(key) or b""
        try:
            entry = decode_entry(blob)
        except Exception:  # noqa: BLE001 - a manifest
            continue
        if "object" in entry.notes:
            files = {f"../{name}": content for name, content in entry.files.items()}
            notes = {**entry.notes, "object": next(iter(files))}
            lying = entry._replace(files=files, notes=notes)
            cache.local.put(key, encode_entry(lying))
    built = project.build()
    assert built.libraries == first.libraries
    assert not built.is_known


def test_header_changed_during_a_compilation_is_a_miss(project: Project) -> None:
    value = project.folder / "second" / "value.h"
    value.write_text("#define VALUE 4\n")
    later = time.time() + 3600
    os.utime(value, (later, later))
    project.build()
    assert not project.build().is_known


_SHAPES = (
    SOURCE,
    SOURCE.replace("= VALUE;", "= twice(VALUE);").replace(
        "static", "namespace { __device__ int twice(int n) { return 2 * n; } }\nstatic"
    ),
    SOURCE.replace("VALUE; }\nS", "\n#if __CUDA_ARCH__ >= 900\n2 *\n#endif\nVALUE; }\nS"),
    SOURCE.replace("static", "#ifndef __CUDA_ARCH__\nint more() { return VALUE; }\n#endif\nstatic"),
    SOURCE.replace("static", '#if __has_include("maybe.h")\n#include "maybe.h"\n#endif\nstatic'),
    "// Changed.\n" + SOURCE,
)
_VALUES = ("first/value.h", "second/value.h", "src/value.h", "second/maybe.h")
_FLAGS = ("", '"-O1"', '"-lineinfo"', '"-g"', '"-maxrregcount=32"')


@pytest.mark.stress
@pytest.mark.parametrize("number", range(4))
def test_build_after_random_changes_equals_a_fresh_one(project: Project, number: int) -> None:
    chance = random.Random(number)
    recipe = (project.folder / "recipe.toml").read_text()
    for _ in range(15):
        what = chance.choice(["shape", "value", "gone", "flags", "targets", "elsewhere"])
        if what == "shape":
            project.write("src/k.cu", chance.choice(_SHAPES))
        elif what == "value":
            text = f"#undef VALUE\n#define VALUE {chance.randrange(3)}\n"
            project.write(chance.choice(_VALUES), text)
        elif what == "gone":
            name = chance.choice(_VALUES)
            if name != "second/value.h":
                (project.folder / name).unlink(missing_ok=True)
        elif what == "flags":
            changed = recipe.replace("nvcc-flags = []", f"nvcc-flags = [{chance.choice(_FLAGS)}]")
            project.write("recipe.toml", changed)
        elif what == "targets":
            more = chance.choice(['"sm_80"', '"sm_80", "sm_90"', '"sm_80", "sm_90", "sm_120"'])
            project.write("recipe.toml", recipe.replace('"sm_80", "sm_90"', more))
        else:
            # As another checkout, or the same one after it was moved.
            other = project.moved(project.folder.with_name(f"{project.folder.name}x"))
            shutil.copytree(project.folder, other.folder)
            shutil.rmtree(project.folder)
            project = other
            settle()
        built = project.build().libraries
        fresh = project.fresh()
        assert built == fresh
        assert project.build().is_known
