"""The drop-in beside nvcc: a line of each kind always, two hundred random ones when asked for."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from stress import Field, Verdict, judged
from stress_facts import facts_of, normal
from stress_lines import Line, line, lines

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

TWO = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90"
LINES = (
    f"-c k.cu -o sub/k.o {TWO} -MD -MP -MF sub/k.d",
    f"r.o s.o -o app -L${{LIBRARIES}} {TWO}",
    "-c k.cu -DSHELL=`echo\\ 1` -arch=sm_80",
)
"""A line of each kind: an object with its depfile, a link, and a fallback."""

MORE_LINES = (
    "-c k.cu w.cu c.c p.cpp -odir sub -arch=sm_90a",
    "-c n.cu -lineinfo -gencode arch=compute_80,code=[sm_80,compute_80] --keep --keep-dir sub",
    f"-c w.cu assembly90.cu k.cu {TWO}",
    "-c 'two words.cu' '-DTEXT=\"a b\"' -Xcompiler -fPIC,-Wall -arch=sm_80",
    f"-dc d.cu u.cu {TWO}",
    "-ptx w.cu -o w.ptx -arch=sm_90",
    f"-fatbin k.cu {TWO}",
    "-lib d.cu c.c -rdc=true -o l.a -arch=sm_80",
    f"-c only90.cu {TWO} -MMD",
)
"""Lines of which `test_standing_in` has one alike."""

pytestmark = pytest.mark.nvcc


@pytest.fixture
def peer() -> str:
    program = "from archsplit.cli.nvcc import launcher; raise SystemExit(launcher())"
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {{nvcc}}"


def verdicts_on(whole_toolkit: Toolkit, peer: str, texts: tuple[str, ...]) -> list[Verdict]:
    some = tuple(Line(name=str(number), words=words) for number, words in enumerate(texts))
    verdicts = judged(whole_toolkit.nvcc, peer, some, jobs=2)
    assert {one.line.words: one.faults for one in verdicts if one.faults} == {}
    return verdicts


@pytest.mark.stress
def test_wrapper_equals_nvcc(whole_toolkit: Toolkit, peer: str) -> None:
    """Exit code, output and files, with and without the cache."""
    verdicts = verdicts_on(whole_toolkit, peer, LINES)
    assert [one.line.words for one in verdicts if one.fell_back] == [LINES[-1]]


@pytest.mark.stress
def test_more_kinds_of_lines_do_not_fall_back(whole_toolkit: Toolkit, peer: str) -> None:
    assert not [one for one in verdicts_on(whole_toolkit, peer, MORE_LINES) if one.fell_back]


@pytest.mark.stress
def test_random_command_lines_compile_as_with_nvcc(whole_toolkit: Toolkit, peer: str) -> None:
    seed = int(os.environ.get("STRESS_SEED", "1"))
    count = int(os.environ.get("STRESS_COUNT", "200"))
    verdicts = judged(whole_toolkit.nvcc, peer, lines(seed, count), jobs=2)
    assert {one.line.name: one.faults for one in verdicts if one.faults} == {}


@pytest.mark.stress
def test_a_difference_is_found(tmp_path: Path, whole_toolkit: Toolkit) -> None:
    program = "import os, sys; os.execv(sys.argv[1], [*sys.argv[1:], '-G'])"
    different = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {{nvcc}}"
    field = Field(tmp_path, whole_toolkit.nvcc, different)
    (fault, *_) = field.verdict(Line(name="0", words="-cubin k.cu -arch=sm_80")).faults
    assert fault.startswith("k.cubin: ")
    (fault, *_) = field.verdict(Line(name="1", words="-ptx k.cu -o k.ptx -arch=sm_80")).faults
    assert fault.startswith("k.ptx: text")


def test_a_line_is_drawn_again_by_its_name() -> None:
    assert line(7, 12) == lines(7, 20)[12]
    assert len({one.words for one in lines(7, 200)}) > 195


def test_normal_form_hides_random_names() -> None:
    assert normal(b"tmpxft_00006d84_00000000-6_k.cudafe1.cpp") == b"k.cudafe1.cpp"
    one, other = b"x_60e3ff2f_4_k_cu_274ff36a__y", b"x_e6778d81_4_k_cu_11111111__y"
    assert normal(one) == normal(other) != one
    assert normal(b"f(_e6778d81_4_k_cu__Z3usePi)") == b"f(_unit_k_cu)"
    assert normal(b"_ZN39_INTERNAL_6aca3851_4_n_cu_05b2a4a6_72492goE") == normal(
        b"_ZN38_INTERNAL_6aca3851_4_n_cu_05b2a4a6_7242goE"
    )
    assert normal(b"0.123 ms") == b"0 ms"


def test_facts_of_a_text_are_its_text() -> None:
    assert facts_of("k.ptx", b"ret;\n") == {"text (0)": b"ret;\n"}
