"""Trials of the output: which libraries are loaded, and with which dependencies."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import DiskFullError
from archsplit.release.trial import Trial, trial_results
from archsplit.system.process import SubprocessRunner
from archsplit.wheels.filename import WheelName
from handmade_samples import THREE, Maker

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(runner=SubprocessRunner(), folder=tmp_path, environment=os.environ)


def test_a_library_loads(trial: Trial, maker: Maker) -> None:
    library = maker.library()
    assert trial.load(library, library) == "loads"


def test_library_unloadable_before_is_not_a_fault(trial: Trial, maker: Maker) -> None:
    maker.run("gcc", "-shared", "-x", "c", "/dev/null", "-o", "libneeded.so")
    flags = ("-Wl,--no-as-needed", "-L.", "-lneeded")
    library = Maker(folder=maker.folder, flags=flags).library()
    assert "couldn't be before: libneeded.so: cannot open" in trial.load(library, library)


def test_needed_library_is_found_by_search_paths_of_others(trial: Trial, maker: Maker) -> None:
    # Two steps away, and not where its own search path leads: as with PyTorch's extensions.
    place = maker.folder / "site"
    for name in ("first", "second"):
        (place / name / "lib").mkdir(parents=True)
    (maker.folder / "second.c").write_text("int two(void) { return 2; }")
    (maker.folder / "first.c").write_text("int two(void); int one(void) { return two() - 1; }")
    maker.run("gcc", "-shared", "-fPIC", "second.c", "-o", "site/second/lib/libsecond.so")
    link = ("-Wl,--no-as-needed", "-Lsite/second/lib", "-lsecond")
    maker.run("gcc", "-shared", "-fPIC", "first.c", "-o", "site/first/lib/libfirst.so", *link)
    flags = (
        "-Wl,--no-as-needed",
        "-Wl,--unresolved-symbols=ignore-all",
        "-Lsite/first/lib",
        "-lfirst",
    )
    library = Maker(folder=maker.folder, flags=flags).library()
    result = trial.load(library, library)
    assert result.startswith("can't be loaded here")
    assert trial_results({"a": result, "b": "loads"})[-1] == (
        "changed libraries that could not be tried here: 1 of 2"
    )
    assert replace(trial, places=(place,)).load(library, library) == "loads"


def test_library_crashing_before_is_not_a_fault(trial: Trial, maker: Maker) -> None:
    (maker.folder / "crash.c").write_text(
        "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"
    )
    library = maker.folder / "libcrash.so"
    maker.run("gcc", "-shared", "-fPIC", "crash.c", "-o", library.name)
    assert "couldn't be before: exit status -" in trial.load(library, library)


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


FAKE_PIP = """
import os, sys
words = sys.argv
assert os.environ["TMPDIR"] == os.path.dirname(words[words.index("--target") + 1])
sys.exit(f"ERROR: Could not install packages due to an OSError: {OSError(NUMBER, 'full')}")
"""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_of_pip_is_named(trial: Trial, tmp_path: Path, number: int) -> None:
    pip = tmp_path / "fake" / "pip" / "__main__.py"
    pip.parent.mkdir(parents=True)
    (pip.parent / "__init__.py").touch()
    pip.write_text(FAKE_PIP.replace("NUMBER", str(number)))
    poor = replace(trial, environment={**os.environ, "PYTHONPATH": str(tmp_path / "fake")})
    name = WheelName.parse("x-1-py3-none-any.whl")
    with pytest.raises(DiskFullError, match=f"no space left in {tmp_path} while pip installed x-1"):
        poor.install(tmp_path / str(name), name, tmp_path / "site")
