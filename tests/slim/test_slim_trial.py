"""What is tried with the output, and what is not."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest
from slim_samples import THREE, Maker

from splitter.stages.trial import Trial
from splitter.system.run import SubprocessRunner
from splitter.wheels.names import WheelName

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(runner=SubprocessRunner(), folder=tmp_path, environment=os.environ)


def test_a_library_loads(trial: Trial, maker: Maker) -> None:
    library = maker.library()
    assert trial.load(library, library) == "loads"


def test_what_could_not_be_loaded_before_is_no_fault(trial: Trial, maker: Maker) -> None:
    maker.run("gcc", "-shared", "-x", "c", "/dev/null", "-o", "libneeded.so")
    flags = ("-Wl,--no-as-needed", "-L.", "-lneeded")
    library = Maker(folder=maker.folder, flags=flags).library()
    assert "as it couldn't before: libneeded.so: cannot open" in trial.load(library, library)


def test_what_crashes_as_before_is_no_fault(trial: Trial, maker: Maker) -> None:
    (maker.folder / "crash.c").write_text(
        "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"
    )
    library = maker.folder / "libcrash.so"
    maker.run("gcc", "-shared", "-fPIC", "crash.c", "-o", library.name)
    assert "as it couldn't before: exit status -" in trial.load(library, library)


def test_only_libraries_of_this_machine_are_loaded(trial: Trial, maker: Maker) -> None:
    wrapped, _ = maker.objects("object", THREE[:1])
    assert trial.load(wrapped, wrapped) == "not tried, because it is not a library"
    text = maker.folder / "text"
    text.write_text("text")
    assert trial.load(text, text) == "not tried, because it is not a library"
    foreign = maker.library()
    content = bytearray(foreign.read_bytes())
    content[18:20] = struct.pack("<H", 183)
    foreign.write_bytes(content)
    assert trial.load(foreign, foreign).startswith("not tried, because this machine is a")


def test_a_wheel_for_an_unknown_interpreter_is_left_to_pip(trial: Trial, tmp_path: Path) -> None:
    name = WheelName.parse("x-1-py-none-any.whl")
    with pytest.raises(Exception, match=r"pip can't install x-1"):
        trial.install(tmp_path / str(name), name, tmp_path / "site")
