from __future__ import annotations

import pytest
from nvcc_dependencies import CASES, recorded_run
from nvcc_situations import KEPT

from archsplit.nvcc.cmdline import CommandLine
from archsplit.nvcc.depfile import depfile_text, has_other_outputs
from archsplit.nvcc.dryrun import NvccStep, StepKind, Transcript

HOST = b"""# 0 "k.cu"
# 0 "<built-in>"
# 1 "/usr/include/stdc-predef.h" 1 3 4
# 0 "<command-line>" 2
# 1 "./cuda_runtime.h" 1
# 1 "k.cu" 2
# 1 "sub folder/z.h" 1
# 3 "gen.y" 1
# 1 "back\\\\slash \\"q\\".h" 1
# 1 "h\\303\\244.h" 1
# 2 "k.cu" 2
"""
DEVICE = b'# 0 "k.cu"\n# 1 "k.cu"\n# 1 "only80.h" 1\n'


def test_names_of_all_passes_come_once_in_their_order() -> None:
    text = depfile_text([DEVICE, HOST], command=CommandLine(["-o", "out/k.o"]), has_outputs=True)
    assert text.decode() == (
        "out/k.o : k.cu \\\n    only80.h \\\n    /usr/include/stdc-predef.h \\\n"
        "    ./cuda_runtime.h \\\n    sub\\ folder/z.h \\\n"
        '    back/slash\\ "q".h \\\n    hä.h\n'
    )


def test_system_headers_can_be_left_out() -> None:
    text = depfile_text([HOST], command=CommandLine(["-MMD"]), has_outputs=True)
    assert b"stdc-predef" not in text
    assert text.startswith(b"k.o : k.cu \\\n    ./cuda_runtime.h")


def test_each_header_can_have_a_rule_of_its_own() -> None:
    text = depfile_text([DEVICE], command=CommandLine(["-MP"]), has_outputs=True)
    assert text == b"k.o : k.cu \\\n    only80.h\n\nonly80.h:\n"


@pytest.mark.parametrize(
    ("argv", "has_outputs", "target"),
    [
        (("-MT", "a b$c", "-o", "x.o"), True, "a b$c"),
        (("--dependency-target-name=t",), True, "t"),
        (("-o", "x.ptx"), True, "x.ptx"),
        (("-M", "-o", "rules.d"), False, "k.o"),
        (("-odir", "sub"), True, "sub/k.o"),
        ((), False, "k.o"),
    ],
)
def test_dependency_rule_names_the_expected_target(
    argv: tuple[str, ...], has_outputs: bool, target: str
) -> None:
    text = depfile_text([DEVICE], command=CommandLine(argv), has_outputs=has_outputs)
    assert text.startswith(f"{target} : k.cu".encode())


def test_a_text_without_markers_has_no_files() -> None:
    assert (
        depfile_text([b"int x;\n"], command=CommandLine(["-o", "x.o"]), has_outputs=True)
        == b"x.o : \n"
    )


SINGLE = [
    case
    for case in CASES
    if recorded_run(case.name).returncode == 0
    and "inputs" not in case.name
    and "without-markers" not in case.name
]
"""Recorded runs of nvcc: the preprocessed texts and the depfile of one source."""


@pytest.mark.parametrize("name", [case.name for case in SINGLE])
def test_a_depfile_is_the_one_of_nvcc(name: str) -> None:
    argv = next(case for case in SINGLE if case.name == name).arguments[len(KEPT) :]
    run = recorded_run(name)
    made = not {"-M", "-MM"} & set(argv)
    texts = [text.encode() for text in run.markers.values()]
    if name in {"MMD-lib", "MMD-shared"}:
        # Each input overwrites the rule of the one before it.
        texts = texts[-1:]
    written = list(run.files.values()) or [run.stdout]
    assert [depfile_text(texts, command=CommandLine(argv), has_outputs=made).decode()] == written


@pytest.mark.parametrize(
    ("kinds", "other"),
    [
        ((StepKind.PREPROCESS,), False),
        ((StepKind.PREPROCESS, StepKind.CICC), True),
    ],
)
def test_preprocessing_run_has_no_other_outputs(kinds: tuple[StepKind, ...], other: bool) -> None:
    steps = tuple(NvccStep(kind=kind, argv=(), reads=(), writes=()) for kind in kinds)
    transcript = Transcript(
        environment={}, steps=steps, images={}, module_id_files=(), depfiles=(), diagnostics=()
    )
    assert has_other_outputs(transcript) is other
