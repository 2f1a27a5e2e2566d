"""The plan of a build before any compilation; the recipe is tests/tinyvec, changed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build.compile import ObjectPlan, ObjectPlanner
from archsplit.build.context import BuildContext, identify, open_digests
from archsplit.cache import file_digests
from archsplit.errors import OutputError, RecipeError, StepError, ToolFailedError
from archsplit.nvcc.depfile import parse_depfile
from archsplit.recipe.load import load_recipe
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, check_outcome, run_graph
from archsplit.system.env import clean_environment
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import HostTools, Toolkit

TINYVEC = Path(__file__).parents[1] / "tinyvec"

pytestmark = pytest.mark.nvcc


class Bench:
    """A copy of the recipe, to be changed and planned."""

    def __init__(self, root: Path, toolkit: Toolkit, host: HostTools) -> None:
        self.root = Path(shutil.copytree(TINYVEC, root))
        self._toolkit, self._host = toolkit, host

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def include(self, name: str, line: str) -> None:
        path = self.root / "src" / name
        path.write_text(f"{line}\n{path.read_text()}")

    def site(self, private: str = "private") -> BuildContext:
        folder = self.root.parent / private
        folder.mkdir(exist_ok=True)
        return BuildContext(
            recipe=load_recipe(self.root),
            toolkit=self._toolkit,
            tried=(),
            host=self._host,
            environment=clean_environment(os.environ, temporary=folder, epoch=0),
            folder=folder,
            epoch=0,
        )

    def plan(self, site: BuildContext | None = None) -> ObjectPlan:
        site = site or self.site()
        return ObjectPlanner(context=site, runner=SubprocessRunner()).plan(
            site.recipe.targets.all, jobs=2
        )

    def refusal(self) -> str:
        with pytest.raises(RecipeError) as caught:
            self.plan()
        return str(caught.value)


@pytest.fixture
def bench(tmp_path: Path, toolkit: Toolkit, host: HostTools) -> Bench:
    return Bench(tmp_path / "tinyvec", toolkit, host)


def test_every_target_gets_an_object_of_each_source(bench: Bench) -> None:
    files = bench.plan().files
    assert {str(target): len(paths) for target, paths in files.items()} == {
        "sm_80": 3,
        "sm_90": 3,
        "compute_90": 3,
    }


def test_a_device_link_takes_the_sources_with_device_code(bench: Bench) -> None:
    assert set(bench.plan().relocatable.values()) == {()}
    text = (bench.root / "recipe.toml").read_text()
    bench.write("recipe.toml", text.replace("[compile]", "[compile]\nrdc = true"))
    objects = bench.plan(bench.site("again"))
    for target, paths in objects.relocatable.items():
        assert [path.parent.name for path in paths] == ["000-add", "002-scale"]
        linked = {path.name for path in objects.files[target]}
        # PTX is linked by the driver, so that it has to be in the library.
        assert linked == ({"host.o"} if str(target) != "compute_90" else {"host.o", f"{target}.o"})


@pytest.mark.parametrize("source", ["add.cu", "name.cpp"])
def test_macro_include_of_an_unlisted_file_is_refused(bench: Bench, source: str) -> None:
    bench.write("other folder/table #1.h", "")
    name = 'TABLE "../other folder/table #1.h"'
    bench.include(source, f"#define {name}\n#include TABLE")
    message = bench.refusal()
    text = "other folder/table #1.h is included, but not by a name that is written in a source"
    assert f"src/{source}: {text}\nhint: write the file's name" in message


def test_macro_include_from_outside_is_refused(bench: Bench) -> None:
    (bench.root.parent / "v.h").touch()
    bench.include("name.cpp", '#define V "../../v.h"\n#include V')
    assert "v.h is included, which is outside of" in bench.refusal()


def test_headers_of_toolkit_and_system_do_not_count_as_inputs(bench: Bench) -> None:
    bench.include("add.cu", "#include <cub/cub.cuh>\n#include <cuda_fp16.h>\n#include <vector>")
    bench.include("name.cpp", "#include <cuda_runtime.h>\n#include <string>")
    before = bench.site().recipe.input_files
    assert bench.plan().steps
    assert before == load_recipe(TINYVEC).input_files


def test_unreadable_source_fails_in_its_own_step(bench: Bench) -> None:
    bench.include("add.cu", "#error stop")
    assert bench.plan().steps


def test_a_missing_header_of_a_c_file_shows_before_anything_else(bench: Bench) -> None:
    bench.write("src/late.c", '#include "missing.h"\n')
    recipe = bench.root / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"src/*.cpp"', '"src/*.cpp", "src/*.c"'))
    steps = bench.plan().steps
    graph = Graph(steps=steps)
    ranks = graph.ranks([step.weight for step in steps])
    assert "late" in steps[0].name
    assert max(ranks) == ranks[0]
    with pytest.raises(StepError, match=r"missing\.h"):
        check_outcome(
            graph,
            run_graph(
                graph,
                RunOptions(
                    pool=LocalPool(1),
                    runner=SubprocessRunner(),
                    progress=SilentProgress(),
                    parallel=False,
                ),
            ),
        )
    assert not any(path.exists() for step in steps for path in step.writes)


def test_private_folder_unusable_for_nvcc_is_refused(bench: Bench) -> None:
    with pytest.raises(OutputError, match=r"nvcc can't work in .*a,b") as caught:
        bench.plan(bench.site("a,b"))
    assert caught.value.hint == "set TMPDIR to a folder without ',' in its path"


def test_recipe_in_a_folder_unusable_for_nvcc_is_refused(
    tmp_path: Path, toolkit: Toolkit, host: HostTools
) -> None:
    bench = Bench(tmp_path / "tiny$vec, too", toolkit, host)
    assert "hint: move it to a folder without '$' in its path" in bench.refusal()
    (tmp_path / "tiny$vec, too").rename(tmp_path / "tinyvec, too")
    bench.root = tmp_path / "tinyvec, too"
    assert bench.plan().steps


def build_id(site: BuildContext) -> str:
    return identify(site, version="1.0").build_id


def test_the_build_id_depends_on_all_inputs(bench: Bench, tmp_path: Path) -> None:
    bench.include("name.cpp", '#include "../common/v.h"')
    bench.write("common/v.h", "")
    site = bench.site()
    first = build_id(site)
    bench.write("include/dist/tinyvec.whl", "")
    assert build_id(bench.site("elsewhere")) == first
    assert build_id(replace(site, epoch=86400)) != first
    linker = replace(site.host, versions=(*site.host.versions[:-1], "GNU ld 9"))
    assert build_id(replace(site, host=linker)) != first
    bench.write("common/v.h", "// changed\n")
    assert build_id(bench.site()) != first


def test_only_the_first_build_hashes_the_toolkit(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored() -> BuildContext:
        return replace(bench.site(), digests=open_digests({"ARCHSPLIT_CACHE_DIR": str(tmp_path)}))

    first = stored()
    expected = build_id(bench.site())
    assert build_id(first) == expected
    first.digests.save()
    hashed: list[str] = []
    monkeypatch.setattr(file_digests, "file_digest", hashed.append)
    assert build_id(stored()) == expected
    assert hashed == []


def test_a_rule_for_make_is_read_back() -> None:
    rule = "listing: src/a.cu include/b\\ c.h \\\n  d\\#1.h $$x.h \\\n\n"
    assert parse_depfile(rule) == ("src/a.cu", "include/b c.h", "d#1.h", "$x.h")


def test_flags_refused_by_nvcc_fail_before_the_compile(bench: Bench) -> None:
    bench.write("recipe.toml", (bench.root / "recipe.toml").read_text().replace("-O2", "--no-such"))
    with pytest.raises(ToolFailedError, match="no-such"):
        bench.plan()
