"""A toolkit that workers get: actions in empty folders, where this machine's toolkit is gone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build import engine
from archsplit.build.plan import BuildRequest, plan_build
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.remote.farm_executor import ExecutorSettings
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
def test_toolkit_file_in_a_command_is_a_tool(
    toolkit: Toolkit, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Plan()
    monkeypatch.setattr(engine, "open_executor", opened.open)
    choice = EngineChoice(endpoint=parse_endpoint("grpc://127.0.0.1:1"), jobs=1)
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2, engine=choice)
    order = BuildRequest(recipe=load_recipe(TINYRDC), nvcc=(toolkit.nvcc,))
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
