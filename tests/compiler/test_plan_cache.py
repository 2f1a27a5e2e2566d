"""A second plan of a recipe: nothing is queried again, and no change is missed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recipe_project import Project
from wrapper_project import settle, toolkit_of_links

from archsplit.build.plan import BuildRequest, plan_build
from archsplit.cache.config import Settings
from archsplit.compiler.plan_cache import without_search_path
from archsplit.release.context import Effects
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.system.process import Command, CompletedProcess

pytestmark = pytest.mark.nvcc

BOTH = [("dry run", "k.cu"), ("dry run", "n.cpp"), ("listing", "k.cu"), ("listing", "n.cpp")]
LISTED = BOTH[2:]


class Recorder(SubprocessRunner):
    """The real runner, which notes the queries about sources."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[tuple[str, str]] = []

    def run(self, command: Command) -> CompletedProcess:
        source = next((Path(word).name for word in command.argv if word.startswith("src/")), "")
        if source:
            kind = "dry run" if "--dryrun" in command.argv else "listing"
            self.queries.append((kind, source))
        return super().run(command)


@dataclass(frozen=True)
class Planned:
    """A plan: what was queried, and the steps, without the names of private folders."""

    queries: list[tuple[str, str]]
    steps: list[object]
    warnings: tuple[str, ...] = field(default=())


def plan(project: Project, *, cached: bool = True) -> Planned:
    runner = Recorder()
    settings: dict[str, object] = {"folder": project.store, **project.settings}
    effects = Effects(
        progress=SilentProgress(),
        environment=project.environment,
        jobs=2,
        cache=Settings(**settings) if cached else None,  # type: ignore[arg-type]
        runner=runner,
    )
    order = BuildRequest(recipe=project.folder, nvcc=project.nvcc)
    with plan_build(order, effects, keeps_text=False) as made:
        described = json.dumps(
            [
                (
                    step.name,
                    step.command.argv,
                    sorted(step.command.env.items()),
                    [str(path) for path in step.reads],
                    [str(path) for path in step.writes],
                )
                for step in made.graph.steps
            ]
        )
        steps = json.loads(described.replace(str(made.site.folder), "$BUILD"))
        return Planned(sorted(runner.queries), steps, made.warnings)


def queried(project: Project) -> list[tuple[str, str]]:
    """Return what a plan queries."""
    return plan(project).queries


def is_fresh(project: Project) -> bool:
    """Return True if a plan without queries has the steps of one without a cache."""
    known, fresh = plan(project), plan(project, cached=False)
    assert (known.queries, fresh.queries) == ([], BOTH)
    return known == replace(fresh, queries=[])


@pytest.fixture
def project(tmp_path: Path, toolkit: Toolkit, environment: dict[str, str]) -> Project:
    """A project that was planned once."""
    made = Project(
        folder=tmp_path / "p",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        environment={**environment, "PATH": os.environ["PATH"]},
    )
    made.lay_out()
    assert plan(made).queries == BOTH
    return made


def test_a_second_plan_queries_nothing(project: Project, tmp_path: Path) -> None:
    assert is_fresh(project)
    # pip and pyenv put folders on the PATH that are new in each call.
    search = f"{tmp_path}/bin:{project.environment['PATH']}"
    assert is_fresh(replace(project, environment={**project.environment, "PATH": search}))
    # Nothing is written, and nothing is missed.
    assert plan(replace(project, settings={"mode": "read-only"})).queries == []
    # These ask for all that could be known.
    assert plan(replace(project, settings={"mode": "verify"})).queries == BOTH
    assert plan(replace(project, settings={"strict": True})).queries == BOTH


def test_a_store_of_fifos_and_folders_is_written_again(project: Project) -> None:
    for number, path in enumerate([each for each in project.store.rglob("*") if each.is_file()]):
        path.unlink()
        make_irregular = os.mkfifo if number % 2 else os.mkdir
        make_irregular(path)
    assert queried(project) == BOTH
    assert is_fresh(project)


def test_what_a_source_includes_is_listed_again_after_a_change(project: Project) -> None:
    project.edit("second/value.h", "VALUE 1", "VALUE 2")
    assert queried(project) == [("listing", "k.cu")]
    project.write("first/api.h", (project.folder / "second/api.h").read_text())
    assert queried(project) == LISTED
    assert is_fresh(project)
    (project.folder / "first/api.h").unlink()
    settle()
    assert queried(project) == []
    project.edit("src/n.cpp", "\n", "\n#if __has_include(<maybe.h>)\n#include <maybe.h>\n#endif\n")
    assert queried(project) == [("listing", "n.cpp")]
    project.write("first/maybe.h", "")
    assert queried(project) == [("listing", "n.cpp")]
    assert is_fresh(project)
    # Another time of the same bytes is no change.
    os.utime(project.folder / "second/value.h")
    settle()
    assert queried(project) == []


def test_a_listing_with_unknown_inputs_is_made_each_time(project: Project) -> None:
    project.edit("src/n.cpp", "\n", "\nconst char *when = __TIMESTAMP__;\n")
    assert plan(project).queries == [("listing", "n.cpp")]
    assert plan(project).queries == [("listing", "n.cpp")]


def test_another_command_or_tool_is_seen(project: Project, tmp_path: Path) -> None:
    project.edit("recipe.toml", "defines = []", 'defines = ["MORE=1"]')
    assert queried(project) == BOTH
    # Another order of folders is another search.
    project.edit("recipe.toml", '["first", "second"]', '["second", "first"]')
    assert queried(project) == BOTH
    assert is_fresh(project)
    epoch = {**project.environment, "SOURCE_DATE_EPOCH": "1700000000"}
    assert queried(replace(project, environment=epoch)) == BOTH
    linked = replace(project, nvcc=toolkit_of_links(project.nvcc, tmp_path / "toolkit"))
    assert queried(linked) == BOTH
    with (tmp_path / "toolkit/bin/nvcc.profile").open("a") as file:
        file.write('\nINCLUDES += "-I/nowhere" $(_SPACE_)\n')
    settle()
    assert queried(linked) == BOTH
    assert is_fresh(linked)


def test_another_host_compiler_is_seen(project: Project, tmp_path: Path) -> None:
    real = shutil.which("g++")
    script = tmp_path / "bin" / "g++"
    script.parent.mkdir()
    search = f"{script.parent}:{project.environment['PATH']}"
    here = replace(project, environment={**project.environment, "PATH": search})
    script.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    script.chmod(0o755)
    settle()
    assert queried(here) == BOTH
    script.write_text(f'#!/bin/sh\nexec {real} -D__STRICT_ANSI__ "$@"\n')
    settle()
    assert queried(here) == BOTH


def test_a_build_after_a_plan_has_the_same_libraries(project: Project) -> None:
    assert plan(project).queries == []
    assert project.build().libraries == project.fresh()


def test_a_reply_without_the_given_path_is_not_kept() -> None:
    reply = "#$ TOP=/t\n#$ PATH=/t/bin:/usr/bin:/bin\n#$ gcc -E\n"
    kept = without_search_path(reply, "/usr/bin:/bin")
    assert kept is not None
    assert "/usr/bin" not in kept
    assert "/t/bin:" in kept
    # A toolkit that sets its own would hide what a step sees.
    assert without_search_path(reply, "/other") is None
    assert without_search_path("#$ gcc -E\n", "/usr/bin") is None
    assert without_search_path(reply, "") is None
