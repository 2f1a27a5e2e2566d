from __future__ import annotations

from pathlib import Path

import pytest
from nvcc_situations import SITUATIONS, TILE, TRANSCRIPTS, Situation, recorded

from archsplit.errors import TranscriptError
from archsplit.nvcc.dryrun import NvccStep, StepKind, Transcript, parse_dryrun
from archsplit.nvcc.step_order import relax_order

FOLDER, CWD = Path("/w"), Path("/src")
CONTAINER = FOLDER / "k.tile.fatbin"
RELEASES = sorted(path.name for path in TRANSCRIPTS.iterdir() if path.name[0].isdigit())
REFUSED = {
    "compile-run-too": "the program ./app",
    "define-dollar": "the shell syntax '$'",
    "define-backticks": "the shell syntax '`'",
    "define-substitution": "the shell syntax '$'",
    "define-host-only-dollar": "the shell syntax '$'",
    "lib-same-name": "that it writes k.",
    "inputs-same-name": "that it writes k.",
    "inputs-same-name-executable": "that it writes k.",
    "inputs-same-name-rdc": "that it writes k.",
    "depend-MD-same-name": "that it writes k.",
}
"""Situations that can't be planned with ``--keep``, with the reason; nvcc runs them itself."""


def planned(release: str) -> list[Situation]:
    """Return the situations of a release in which nvcc printed steps."""
    there = {path.stem for path in (TRANSCRIPTS / release).glob("*.txt")}
    return [
        one
        for one in SITUATIONS
        # Where files lie is asked in other ways, which archsplit takes off the command line.
        if one.name in there and not one.name.startswith("place-")
    ]


def read(release: str, name: str) -> Transcript | None:
    answer = recorded(release, name).at(TOOLKIT=Path("/t"), FOLDER=FOLDER, CWD=CWD)
    if answer.returncode != 0 or "#$ " not in answer.stderr:
        return None
    return parse_dryrun(answer.stderr, folder=FOLDER, cwd=CWD)


CASES = [(release, one.name) for release in RELEASES for one in planned(release)]


def test_there_are_transcripts_of_several_releases() -> None:
    assert {"11.8", "12.4", "13.0"} <= set(RELEASES)
    assert len(CASES) > 500


@pytest.mark.parametrize(("release", "name"), CASES)
def test_a_recorded_transcript_is_parsed_or_refused_for_its_reason(release: str, name: str) -> None:
    if name in REFUSED:
        with pytest.raises(TranscriptError) as caught:
            read(release, name)
        assert REFUSED[name] in str(caught.value)
        return
    transcript = read(release, name)
    if transcript is None:
        return
    assert_runnable(transcript.steps)
    loosened = relax_order(transcript, seed=str, templates={})
    assert_runnable(loosened.steps, given=set(loosened.texts))
    assert outputs(loosened.steps) >= outputs(transcript.steps) - set(loosened.texts)


@pytest.mark.parametrize("name", [situation.name for situation in TILE])
def test_steps_of_tile_kernels_are_parsed(name: str) -> None:
    transcript = read("tile", name)
    assert transcript is not None
    assert_runnable(transcript.steps)
    tile = [step for step in transcript.steps if step.kind is StepKind.TILEIRAS]
    assert {str(step.target) for step in tile} == (
        {"sm_80", "sm_90"} if name == "tile-two" else {"sm_100"}
    )
    (container,) = (path for step in transcript.steps for path in step.writes if path == CONTAINER)
    (host,) = (step for step in transcript.steps if step.kind is StepKind.HOST_COMPILE)
    assert container.with_suffix(".fatbin.c") in host.reads
    loosened = relax_order(transcript, seed=str, templates={})
    assert_runnable(loosened.steps, given=set(loosened.texts))


def test_stub_with_an_unknown_include_is_refused() -> None:
    answer = recorded("tile", "tile-two").at(TOOLKIT=Path("/t"), FOLDER=FOLDER, CWD=CWD)
    text = answer.stderr.replace('--include_alt_file_name "k.tile.', '--include_alt_file_name "x.')
    with pytest.raises(TranscriptError, match="the file that --include_file_name names"):
        parse_dryrun(text, folder=FOLDER, cwd=CWD)


def assert_runnable(steps: tuple[NvccStep, ...], given: set[Path] = frozenset()) -> None:  # type: ignore[assignment]
    """Check that earlier steps write all inputs, and that no output is written twice."""
    made = set(given)
    for step in steps:
        assert made.issuperset(step.reads), step
        assert made.isdisjoint(step.writes), step
        assert len(set(step.writes)) == len(step.writes), step
        made.update(step.writes)


def outputs(steps: tuple[NvccStep, ...]) -> set[Path]:
    return {path for step in steps for path in step.writes}


@pytest.mark.parametrize("release", RELEASES)
def test_last_step_writes_the_output_of_o(release: str) -> None:
    transcript = read(release, "compile-two")
    assert transcript is not None
    assert transcript.steps[-1].kind is StepKind.HOST_COMPILE
    assert transcript.steps[-1].writes == (CWD / "k.o",)
    targets = [str(step.target) for step in transcript.steps if step.kind is StepKind.PTXAS]
    assert sorted(targets) == ["sm_80", "sm_90"]


@pytest.mark.parametrize("release", RELEASES)
def test_cicc_waits_for_no_step_once_the_module_id_is_given(release: str) -> None:
    transcript = read(release, "compile-two")
    assert transcript is not None
    loosened = relax_order(transcript, seed=str, templates={})
    made_by = {path: step.kind for step in loosened.steps for path in step.writes}
    waits = {
        made_by[path]
        for step in loosened.steps
        if step.kind is StepKind.CICC
        for path in step.reads
    }
    assert waits == {StepKind.PREPROCESS}
    assert len(loosened.texts) == 1


def test_each_device_link_registers_in_a_file_of_its_own() -> None:
    transcript = read("13.0", "rdc-dlink-two")
    assert transcript is not None
    links = [
        step
        for step in relax_order(transcript, seed=str, templates={}).steps
        if step.kind is StepKind.NVLINK
    ]
    assert len(links) == 2
    assert not any(set(link.reads) & outputs(tuple(links)) for link in links)
    assert len({word for link in links for word in link.argv if "register" in word}) == 2
    assert len({path.name for link in links for path in link.writes if path.suffix == ".c"}) == 1
