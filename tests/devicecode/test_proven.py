"""The list of proven libraries: its evidence, and the choices that it is for."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from archsplit.arch.target import Capability, Target
from archsplit.devicecode import unregistered
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.select import Selection
from archsplit.devicecode.unregistered import (
    PROVEN_LIBRARIES,
    ProvenLibrary,
    proven_digests,
)
from archsplit.formats.reader import open_file
from archsplit.system.fs import sha256
from handmade_samples import container, image

EVIDENCE = Path(__file__).parents[1] / "gpu" / "evidence"
H100, A100 = Capability(9, 0), Capability(8, 0)


def test_every_row_has_its_evidence() -> None:
    found = {}
    for path in EVIDENCE.glob("*.json"):
        run = json.loads(path.read_text())
        assert run["different"] == []
        assert run["undone"]
        for row in run["libraries"]:
            assert row["mapped"]
            found[row["sha256"], run["machine"]["capability"]] = row
    for library in PROVEN_LIBRARIES:
        for capability in library.capabilities:
            row = found[library.sha256, str(capability)]
            assert row["operations"]
            assert (row["distribution"], row["version"]) == (library.distribution, library.version)
            assert row["library"].endswith(f"/{library.name}")


@pytest.mark.parametrize("library", PROVEN_LIBRARIES, ids=lambda library: library.name)
def test_only_the_gpus_of_the_evidence_count(library: ProvenLibrary) -> None:
    def is_proven(**choice: object) -> bool:
        selection = Selection(**choice)  # type: ignore[arg-type] # fields by name
        return library.sha256 in proven_digests(library.name, selection)

    assert is_proven(devices=frozenset({H100}))
    assert not is_proven(devices=frozenset({H100, A100}))
    assert not is_proven(devices=frozenset({A100}))
    assert not is_proven(keep=frozenset({Target.parse("sm_90")}))


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A proven library with code that only it finds."""
    row = PROVEN_LIBRARIES[0]
    path = tmp_path / "any.name"
    (tmp_path / "code.fatbin").write_bytes(container(image("sm_80"), image("sm_90")))
    section = f'.data\n.incbin "{tmp_path}/code.fatbin"\n.section .note.GNU-stack,"",%progbits\n'
    (tmp_path / "code.S").write_text(section)
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{row.name}", "-o", str(path)]
    subprocess.run([*command, str(tmp_path / "code.S")], check=True)
    monkeypatch.setattr(unregistered, "PROVEN_LIBRARIES", (replace(row, sha256=sha256(path)),))
    return path


def test_a_file_is_hashed_only_if_a_proven_one_has_its_name(known: Path) -> None:
    for_h100 = FileEdit(selection=Selection(devices=frozenset({H100})))
    plan = plan_rewrite(open_file(known), for_h100)
    assert (plan.zeroes_unregistered, plan.digest) == (True, sha256(known))
    # Another file of the same name, and the same code under another name.
    for old, new in ((b"\0" * 64, b"\0" * 63 + b"!"), (b"libcublasLt", b"libcublasXX")):
        other = known.with_name("other")
        content = known.read_bytes()
        assert old in content
        other.write_bytes(content.replace(old, new, 1))
        plan = plan_rewrite(open_file(other), for_h100)
        assert plan.unregistered
        assert not plan.zeroes_unregistered
        assert plan.digest == (None if b"XX" in new else sha256(other))
