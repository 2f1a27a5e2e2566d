"""Steps of a dry run as a graph: places of outputs, and names in debug information."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import cast

import pytest

from archsplit.cache.config import Settings
from archsplit.compiler.invocation import Invocation, PooledRunner, ReportFiles, WrapperContext
from archsplit.compiler.keys import with_depfile
from archsplit.compiler.wrapper_cache import WrapperCache, _has_known_reads
from archsplit.compiler.wrapper_graph import Compilation, DryRunResult, plan_compilation
from archsplit.nvcc.cmdline import CommandLine
from archsplit.nvcc.dryrun import NvccStep, StepKind, Transcript
from archsplit.nvcc.step_order import RelaxedPlan
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.scheduler.graph import Graph
from archsplit.system.process import SubprocessRunner

FARM = EngineChoice(endpoint=parse_endpoint("grpc://127.0.0.1:1"), jobs=3)


def planned(
    folder: Path, *steps: NvccStep, words: tuple[str, ...] = (), farm: EngineChoice | None = None
) -> Compilation:
    """Plan steps, as after a dry run, in a private folder."""
    transcript = Transcript(
        environment={},
        steps=steps,
        images={},
        module_id_files=(),
        depfiles=(),
        diagnostics=(),
    )
    invocation = Invocation(
        nvcc=Path("/cuda/bin/nvcc"),
        command=CommandLine(words),
        cwd=folder,
        environment={},
        reports=ReportFiles(),
    )
    dryrun = DryRunResult(
        invocation=invocation,
        folder=folder / "private",
        transcript=transcript,
        plan=RelaxedPlan(steps=steps, texts={}),
        environment={},
        numbered=False,
    )
    context = WrapperContext(
        runner=SubprocessRunner(),
        graph_runner=cast("PooledRunner", None),
        stdout=io.BytesIO(),
        stderr=io.BytesIO(),
        warn=print,
        farm=farm,
    )
    (folder / "private").mkdir(parents=True)
    return plan_compilation(dryrun, context)


def cicc(folder: Path, *words: str) -> NvccStep:
    """Return a step that writes the output of ``-ptx``."""
    text, ptx = folder / "private" / "k.ii", folder / "k.ptx"
    argv = ("cicc", *words, str(text), "-o", str(ptx))
    return NvccStep(kind=StepKind.CICC, argv=argv, reads=(text,), writes=(ptx,))


def gcc(folder: Path, *words: str) -> NvccStep:
    """Return a step that compiles a source without preprocessed text."""
    argv = ("gcc", "-c", *words, "a.cpp", "-o", str(folder / "a.o"))
    return NvccStep(kind=StepKind.HOST_COMPILE, argv=argv, reads=(), writes=(folder / "a.o",))


def test_output_of_a_step_on_a_farm_is_made_in_the_private_folder(tmp_path: Path) -> None:
    private = tmp_path / "private" / "output-0" / "k.ptx"
    found = planned(tmp_path, cicc(tmp_path), farm=FARM)
    assert found.staged == {private: tmp_path / "k.ptx"}
    assert found.graph.steps[0].command.argv[-1] == str(private)


def test_output_of_a_step_on_this_machine_stays_in_its_place(tmp_path: Path) -> None:
    found = planned(tmp_path, cicc(tmp_path))
    assert found.staged == {}
    assert found.graph.steps[0].writes == (tmp_path / "k.ptx",)


@pytest.mark.parametrize("reproducible", [True, False])
def test_only_steps_of_reproducible_calls_share_results_with_one_core(
    tmp_path: Path, *, reproducible: bool
) -> None:
    found = planned(tmp_path, cicc(tmp_path))
    invocation = found.invocation._replace(reproducible=reproducible)
    settings = Settings(folder=tmp_path / "cache", strict=True)
    with contextlib.closing(WrapperCache(invocation, found.context, settings)) as cache:
        assert cache.begin(found)[1]._multicore is not reproducible


@pytest.mark.parametrize(
    ("words", "prefix"),
    [(("--keep", "--keep-dir", "kept"), "kept/"), (("--keep",), ""), ((), None)],
)
def test_debug_information_names_kept_files(
    tmp_path: Path, words: tuple[str, ...], prefix: str | None
) -> None:
    (step,) = planned(tmp_path, gcc(tmp_path), words=words).graph.steps
    flag = [] if prefix is None else [f"-ffile-prefix-map={tmp_path}/private/={prefix}"]
    assert step.command.argv[5:] == (*flag,)


def test_reads_of_a_source_without_a_text_are_known_if_it_lists_them(tmp_path: Path) -> None:
    assert _has_known_reads(planned(tmp_path, cicc(tmp_path)))
    plain = planned(tmp_path / "plain", gcc(tmp_path))
    assert not _has_known_reads(plain)
    (step,) = plain.graph.steps
    graph = Graph(steps=(with_depfile(step, plain.folder),))
    assert _has_known_reads(plain._replace(graph=graph))


def test_reads_of_links_and_of_numbered_files_are_unknown(tmp_path: Path) -> None:
    found = planned(tmp_path, cicc(tmp_path))
    numbered = found.dryrun._replace(numbered=True)
    assert not _has_known_reads(found._replace(dryrun=numbered))
    link = cicc(tmp_path)._replace(kind=StepKind.HOST_LINK)
    assert not _has_known_reads(planned(tmp_path / "linked", link))
