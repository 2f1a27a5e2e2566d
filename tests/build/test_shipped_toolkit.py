"""A toolkit that workers get: actions in empty folders, where this machine's toolkit is gone."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.build import engine
from archsplit.build.plan import BuildRequest, plan_build
from archsplit.errors import EngineRefusedError, UsageError
from archsplit.release.context import Effects
from archsplit.remote.action import ToolFile, action_spec
from archsplit.remote.dask_worker import (
    DaskAction,
    ToolkitFiles,
    find_shipped_folders,
    run_action,
    unpack_toolkit,
)
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.system.fs import sha256
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.remote.connect import ExecutorSettings
    from archsplit.scheduler.graph import Graph

TINYVEC = Path(__file__).parents[1] / "tinyvec"
TINYRDC = Path(__file__).parents[1] / "tinyrdc"
HEADER = """
static __device__ __host__ inline const char *header_names(bool as_macro) {
    return as_macro ? __FILE__ : __builtin_FILE();
}
"""
NAMES = """
#include <where.h>
static __global__ void device_names(const char **names) { names[0] = header_names(names[1]); }
[[gnu::used]] static const char *host_names(const char **names) {
    device_names<<<1, 1>>>(names);
    return header_names(names[1]);
}
"""


class Plan:
    """The settings of an executor that is never opened."""

    def __init__(self) -> None:
        self.graph: Graph
        self.settings: ExecutorSettings

    @contextlib.contextmanager
    def open(
        self,
        endpoint: object,
        graph: Graph,
        settings: ExecutorSettings,
        *,
        note: Callable[[str], None],
    ) -> Iterator[None]:
        del endpoint, note
        self.graph, self.settings = graph, settings
        yield


@pytest.mark.nvcc
def test_each_file_of_the_toolkit_that_a_command_names_is_a_tool(
    toolkit: Toolkit, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Plan()
    monkeypatch.setattr(engine, "open_executor", opened.open)
    choice = EngineChoice(endpoint=parse_endpoint("grpc://127.0.0.1:1"), jobs=1, ships_toolkit=True)
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2, engine=choice)
    order = BuildRequest(recipe=TINYRDC, nvcc=toolkit.nvcc)
    named = set()
    with plan_build(order, effects) as plan, engine.open_farm(plan, effects, choice):
        for step in opened.graph.steps:
            tools = {Path(tool.path).resolve() for tool in opened.settings["tools"](step)}
            for word in (word for part in step.parts or (step,) for word in part.command.argv[1:]):
                path = Path(word).resolve()
                if path.is_relative_to(toolkit.root.resolve()) and path.is_file():
                    assert path in tools, step.name
                    named.add(path.name)
                # nvlink writes the folders that it searches into the cubin.
                assert "nvlink" not in step.name or not word.startswith("-L")
    assert named == {"libcudadevrt.a", "link.stub"}


@pytest.mark.stress
@pytest.mark.nvcc
@pytest.mark.parametrize("recipe", [TINYVEC, TINYRDC], ids=["whole", "linked"])
def test_actions_bring_their_toolkit(
    recipe: Path,
    toolkit: Toolkit,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, away = tmp_path / "the toolkit", tmp_path / "away"
    shutil.copytree(toolkit.root, root, symlinks=True)
    shutil.copytree(recipe, tmp_path / "recipe")
    (root / "include/where.h").write_text(HEADER)
    source = min((tmp_path / "recipe/src").glob("*.cu"))
    source.write_text(source.read_text() + NAMES)
    opened = Plan()
    monkeypatch.setattr(engine, "open_executor", opened.open)
    choice = EngineChoice(endpoint=parse_endpoint("grpc://127.0.0.1:1"), jobs=1, ships_toolkit=True)
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2, engine=choice)
    order = BuildRequest(
        recipe=tmp_path / "recipe",
        targets=(Target.parse("sm_80"),),
        nvcc=root / "bin" / toolkit.nvcc.name,
    )
    with plan_build(order, effects) as plan:
        for path, text in plan.texts.items():
            path.write_text(text)
        with engine.open_farm(plan, effects, choice):
            settings = opened.settings
        paths, tools = settings["paths"], settings["tools"]
        files = ToolkitFiles(
            (tool for step in opened.graph.steps for tool in tools(step)), paths.shipped
        )
        specs = {step.name: action_spec(step, paths, tools(step)) for step in opened.graph.steps}
        unpack_toolkit(files.pack(), tmp_path / "toolkits")
        for position in plan.graph.order:
            step = plan.graph.steps[position]
            for path in step.writes:
                path.parent.mkdir(parents=True, exist_ok=True)
            assert SubprocessRunner().run(step.command).returncode == 0, step.name
        here = {path: path.read_bytes() for step in opened.graph.steps for path in step.writes}
        root.rename(away)
        made = {
            path: path.read_bytes()
            for step in opened.graph.steps
            for path in step.reads
            if path not in here
        }
        for position in opened.graph.order:
            step = opened.graph.steps[position]
            spec = specs[step.name]
            inputs = {str(name): made[path] for name, path in spec.inputs.items()}
            texts = {str(name): text for name, text in spec.texts.items()}
            done = run_action(
                DaskAction(
                    argv=list(spec.argv),
                    environment=dict(spec.environment),
                    files=inputs | texts,
                    inputs=[],
                    outputs=[str(name) for name in spec.outputs],
                    tools={},
                    toolkit=files.name,
                ),
                [],
                toolkits=tmp_path / "toolkits",
            )
            assert done["returncode"] == 0, f"{step.name}: {done['stdout']}{done['stderr']}"
            for name, path in spec.outputs.items():
                made[path] = done["files"][str(name)]
        assert {path.name for path in here if made[path] != here[path]} == set()
        for library in plan.libraries.values():
            assert len(made[library]) > 10_000
    # Hundreds of megabytes, which pytest would keep.
    shutil.rmtree(away)
    shutil.rmtree(tmp_path / "toolkits")


def test_a_toolkit_among_other_programs_is_not_shipped() -> None:
    with pytest.raises(UsageError, match="/usr, together with other programs") as caught:
        find_shipped_folders([Path("/usr/bin/..")])
    assert "--remote-toolkit named" in str(caught.value.hint)


def test_files_that_changed_on_their_way_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "toolkit"
    (root / "lib").mkdir(parents=True)
    (root / "lib64").symlink_to("lib")
    (root / "outside").symlink_to(tmp_path)
    library = root / "lib64/a.bc"
    library.write_text("text")
    shipped = find_shipped_folders([root])
    files = ToolkitFiles(
        [
            ToolFile(path=str(library), sha256=sha256(library)),
            ToolFile(path="/bin/sh", sha256="0" * 64),
        ],
        shipped,
    )
    packed = files.pack()
    unpack_toolkit(packed, tmp_path / "one")
    unpack_toolkit(packed, tmp_path / "one")
    inside = tmp_path / "one" / files.name / str(root).lstrip("/")
    assert sorted(path.name for path in inside.iterdir()) == ["lib", "lib64"]
    assert (inside / "lib64/a.bc").read_text() == "text"
    digests = dict.fromkeys(packed["digests"], "0" * 64)
    with pytest.raises(EngineRefusedError, match=r"a\.bc of a shipped toolkit has changed"):
        unpack_toolkit({**packed, "digests": digests}, tmp_path / "two")
    assert not list((tmp_path / "two").iterdir())
