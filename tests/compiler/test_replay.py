"""Records of the commands of a compilation, written and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from archsplit.compiler.replay import Recording, decode_recording, encode_recording
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command

OLD, NEW = Path("/tmp/.archsplit-old"), Path("/tmp/.archsplit-new")
CWD = Path("/home/me/project")
SECRETS = {"AWS_SECRET_ACCESS_KEY": "secret", "ARCHSPLIT_CACHE_REMOTE": "http://me:secret@host/x"}


def step(name: str, *argv: str, reads: tuple[Path, ...], writes: tuple[Path, ...]) -> Step:
    environment = {"PATH": "/bin", "LC_ALL": "C", "CPATH": "/i", **SECRETS}
    command = Command(argv=argv, cwd=CWD, env=environment, undecodable="surrogateescape")
    return Step(
        name=name, command=command, reads=reads, writes=writes, parallel_flags=("-j{cores}",)
    )


def done(*, output: str = "k.o") -> Recording:
    text, code = OLD / "k.ii", OLD / "k.ptx"
    return Recording(
        subject="k.cu",
        steps=(
            step("read", "gcc", "-E", "k.cu", "-o", str(text), reads=(), writes=(text,)),
            step("make", "cicc", str(text), f"--out={code}", reads=(text,), writes=(code,)),
            step("other", "x", "-o", "other.o", reads=(), writes=(CWD / "other.o",)),
            step("pack", "as", str(code), f"-o={output}", reads=(code,), writes=(CWD / "k.o",)),
        ),
        cached=frozenset({"make"}),
        cores={"make": 3},
        texts={OLD / "k.module_id": f"_\udcff{OLD}"},
        precise=False,
        spread=True,
        wholes={"ab" * 32: {"<output>": CWD / "k.o"}},
    )


def test_what_was_written_down_is_read_for_another_folder() -> None:
    found = decode_recording(encode_recording(done(), private=OLD), private=NEW)
    assert found is not None
    assert found.texts == {NEW / "k.module_id": f"_\udcff{NEW}"}
    assert found.steps[1].command.argv == ("cicc", str(NEW / "k.ii"), f"--out={NEW / 'k.ptx'}")
    assert found.steps[1].reads == (NEW / "k.ii",)
    assert found.steps[1].parallel_flags == ("-j{cores}",)
    again = decode_recording(encode_recording(found, private=NEW), private=OLD)
    assert again is not None
    assert replace(again, steps=()) == replace(done(), steps=())


def test_only_variables_that_count_are_written_down() -> None:
    found = decode_recording(encode_recording(done(), private=OLD), private=NEW)
    assert found is not None
    environment = found.steps[0].command.env
    assert environment == {"PATH": "/bin", "LC_ALL": "C", "CPATH": "/i", "TMPDIR": str(NEW)}


@pytest.mark.parametrize("blob", [b"", b"x" * 100, encode_recording(done(), private=OLD)[:-1]])
def test_what_is_damaged_is_nothing(blob: bytes) -> None:
    assert decode_recording(blob, private=NEW) is None


def test_only_what_leads_to_a_step_is_run() -> None:
    assert [each.name for each in done().leading_to("make").steps] == ["read", "make"]
    assert [each.name for each in done().leading_to("pack").steps] == ["read", "make", "pack"]


def test_what_is_made_is_made_elsewhere() -> None:
    assert done().outputs(OLD) == (CWD / "other.o", CWD / "k.o")
    places = {CWD / "other.o": NEW / "0/other.o", CWD / "k.o": NEW / "1/k.o"}
    moved = done().written_to(places)
    assert moved is not None
    assert moved.steps[3].command.argv == ("as", str(OLD / "k.ptx"), f"-o={NEW / '1/k.o'}")
    assert moved.steps[3].writes == (NEW / "1/k.o",)
    assert moved.wholes == {"ab" * 32: {"<output>": NEW / "1/k.o"}}
    # What no argument names would be written over.
    assert done(output="else.o").written_to(places) is None


def test_results_have_names() -> None:
    assert done().called("make") == "make of k.cu"
    assert done().called("") == "the whole of k.cu"
