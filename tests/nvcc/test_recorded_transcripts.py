"""The recorded transcripts are complete, and nvcc still prints the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nvcc_dependencies import CASES, recorded_run
from nvcc_situations import SHAPES, SITUATIONS, TRANSCRIPTS, recorded, repeated
from record_transcripts import repeated_texts, run_anywhere, shortened

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

RELEASES = ("11.8", "12.4", "13.0", "13.5")
PLACES = {"TOOLKIT": Path("/toolkit"), "FOLDER": Path("/private"), "CWD": Path("/cwd")}


@pytest.mark.parametrize("release", RELEASES)
def test_every_situation_is_recorded(release: str) -> None:
    wanted = SITUATIONS if release == "13.0" else SHAPES
    names = {path.stem for path in (TRANSCRIPTS / release).glob("*.txt")}
    assert names == {situation.name for situation in wanted}


def test_names_are_unique() -> None:
    assert len({situation.name for situation in SITUATIONS}) == len(SITUATIONS)
    assert {path.stem for path in (TRANSCRIPTS / "dependencies").glob("*.txt")} == {
        case.name for case in CASES
    }


@pytest.mark.parametrize("release", RELEASES)
def test_no_placeholder_is_left_and_no_folder_of_a_machine(release: str) -> None:
    for situation in SHAPES:
        answer = recorded(release, situation.name).at(**PLACES)
        assert "${" not in answer.stderr + answer.stdout
        assert "/tmp/tmp_" not in answer.stderr
        assert answer.returncode == 0 or "fatal " in answer.stderr


def test_recorded_run_has_nvccs_inputs_and_outputs() -> None:
    run = recorded_run("MMD-MP")
    assert run.returncode == 0
    assert list(run.markers) == ["p.ii"]
    assert run.files == {"p.d": "p.o : p.cpp \\\n    k.h \\\n    k2.h\n\nk.h:\n\nk2.h:\n"}


@pytest.mark.nvcc
def test_nvcc_still_prints_the_recorded_transcripts(toolkit: Toolkit) -> None:
    release = ".".join(toolkit.release.split(".")[:2])
    if release not in RELEASES:
        pytest.skip(f"nothing is recorded of {toolkit.release}")
    answers = {situation.name: run_anywhere(toolkit.nvcc, situation) for situation in SHAPES}
    shared = repeated_texts(answers[SHAPES[0].name].stderr)
    for name, answer in answers.items():
        then = shortened(recorded(release, name).stderr, repeated(release))
        assert shortened(answer.stderr, shared) == then, name
