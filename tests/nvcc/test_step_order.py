from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nvcc_situations import recorded

from archsplit.nvcc.dryrun import StepKind, parse_dryrun
from archsplit.nvcc.step_order import empty_container_commands, relax_order, seeded_module_id

if TYPE_CHECKING:
    from archsplit.nvcc.dryrun import NvccStep, Transcript

FOLDER = Path("/w")
EMPTY = (
    'asm(\n".section .nv_fatbin, \\"a\\"\\n"\n".align 8\\n"\n"fatbinData:\\n"\n'
    '".quad 0x00100001ba55ed50, 0x0000000000000000\\n"\n".text\\n");\n'
)


def compiled(name: str = "compile-two", folder: Path = FOLDER, release: str = "13.0") -> Transcript:
    answer = recorded(release, name).at(TOOLKIT=Path("/t"), FOLDER=folder, CWD=Path("/src"))
    return parse_dryrun(answer.stderr, folder=folder, cwd=Path("/src"))


def kinds(steps: tuple[NvccStep, ...]) -> list[StepKind]:
    return [step.kind for step in steps]


def test_unawaited_module_id_stays_nvccs() -> None:
    transcript = compiled("device-ptx")
    own = relax_order(transcript, seed=str, templates={}, everywhere=False)
    assert (own.steps, own.texts) == (transcript.steps, {})
    assert set(relax_order(transcript, seed=str, templates={}).texts) == set(
        transcript.module_id_files
    )


def test_the_host_compile_waits_for_no_container() -> None:
    transcript = compiled()
    templates = dict.fromkeys(empty_container_commands(transcript), EMPTY)
    loosened = relax_order(transcript, seed=str, templates=templates)
    *_, to_assembly, assembled = loosened.steps
    assert to_assembly.kind is StepKind.HOST_ASSEMBLY
    assert "-S" in to_assembly.argv
    assert not any("fatbin" in path.name for path in to_assembly.reads)
    assert assembled.kind is StepKind.ASSEMBLE
    assert FOLDER / "k.fatbin" in assembled.reads
    assert assembled.writes == (Path("/src/k.o"),)
    assert assembled.argv[assembled.argv.index("-x") + 1] == "assembler"
    text = loosened.texts[FOLDER / "k.fatbin.c"]
    assert '".incbin \\"/w/k.fatbin\\"\\n"' in text
    assert ".quad" not in text


@pytest.mark.parametrize(
    ("name", "containers"),
    [
        ("tile-two", ["k.fatbin", "k.tile.fatbin"]),
        ("tile-rdc", ["k.fatbin", "k.tile.fatbin"]),
        ("tile-only", ["k.tile.fatbin"]),
    ],
)
def test_host_compile_waits_for_no_container_of_tile_kernels(
    name: str, containers: list[str]
) -> None:
    transcript = compiled(name, release="tile")
    templates = dict.fromkeys(empty_container_commands(transcript), EMPTY)
    loosened = relax_order(transcript, seed=str, templates=templates)
    *_, to_assembly, assembled = loosened.steps
    assert not any("fatbin" in path.name for path in to_assembly.reads)
    assert [path.name for path in assembled.reads] == [to_assembly.writes[0].name, *containers]
    assert {path.name for path in loosened.texts} == {
        "k.module_id",
        *(f"{container}.c" for container in containers),
    }


def test_container_without_a_known_shape_is_awaited_by_the_assembly() -> None:
    transcript = compiled("tile-two", release="tile")
    templates = {
        path: "no data" if "tile" in path.name else EMPTY
        for path in empty_container_commands(transcript)
    }
    *_, to_assembly, assembled = relax_order(transcript, seed=str, templates=templates).steps
    assert FOLDER / "k.tile.fatbin.c" in to_assembly.reads
    assert assembled.reads == (to_assembly.writes[0], FOLDER / "k.fatbin")


def test_the_command_for_an_empty_container_has_no_images() -> None:
    ((path, argv),) = empty_container_commands(compiled()).items()
    assert path == FOLDER / "k.fatbin.c"
    assert not any(word.startswith(("--image", "--create")) for word in argv)
    assert f"--embedded-fatbin={path}" in argv


@pytest.mark.parametrize("template", ["no data at all", EMPTY + EMPTY])
def test_embedded_container_of_another_shape_is_not_changed(template: str) -> None:
    transcript = compiled()
    templates = dict.fromkeys(empty_container_commands(transcript), template)
    loosened = relax_order(transcript, seed=str, templates=templates)
    assert kinds(loosened.steps) == kinds(transcript.steps)
    assert FOLDER / "k.fatbin.c" not in loosened.texts


def test_folder_unsafe_for_the_assembler_is_unchanged() -> None:
    folder = Path('/w"x')
    transcript = compiled()
    moved = transcript._replace(
        steps=tuple(
            step._replace(
                argv=tuple(word.replace("/w/", f"{folder}/") for word in step.argv),
                reads=tuple(folder / path.name for path in step.reads),
                writes=tuple(folder / path.name for path in step.writes),
            )
            for step in transcript.steps
        ),
    )
    templates = dict.fromkeys(empty_container_commands(moved), EMPTY)
    assert templates
    assert StepKind.ASSEMBLE not in kinds(relax_order(moved, seed=str, templates=templates).steps)


@pytest.mark.parametrize(
    "flag", ["-g", "-MMD", "-save-temps", "--coverage", "-flto=auto", "-Wa,-a", "@flags"]
)
def test_host_flags_with_a_result_of_their_own_are_not_changed(flag: str) -> None:
    transcript = compiled()
    *others, last = transcript.steps
    flagged = transcript._replace(steps=(*others, last._replace(argv=(*last.argv, flag))))
    templates = dict.fromkeys(empty_container_commands(flagged), EMPTY)
    assert StepKind.ASSEMBLE not in kinds(relax_order(flagged, seed=str, templates=templates).steps)


@pytest.mark.parametrize(
    ("compiler", "is_known"),
    [("g++", True), ("x86_64-linux-gnu-gcc-12", True), ("clang++", False), ("c++", False)],
)
def test_only_gnu_compilers_are_divided_into_two_steps(compiler: str, is_known: bool) -> None:
    transcript = compiled()
    *others, last = transcript.steps
    argv = (f"/opt/{compiler}", *last.argv[1:])
    changed = transcript._replace(steps=(*others, last._replace(argv=argv)))
    templates = dict.fromkeys(empty_container_commands(changed), EMPTY)
    steps = relax_order(changed, seed=str, templates=templates).steps
    assert (StepKind.ASSEMBLE in kinds(steps)) is is_known


def test_a_module_id_has_the_form_of_nvccs() -> None:
    assert seeded_module_id("/src/a b.cu", "0123456789abcdef01") == "_01234567_6_a_b_cu_89abcdef"
