"""The list of proven libraries: its evidence, and the choices that it is for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from archsplit.arch.target import Capability, Target
from archsplit.devicecode import unregistered
from archsplit.devicecode.select import Selection
from archsplit.devicecode.unregistered import PROVEN_LIBRARIES, is_proven
from archsplit.formats.reader import Window

EVIDENCE = Path(__file__).parents[1] / "gpu" / "evidence"
CONTENT = b"the code of a library"
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


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Window:
    row = replace(PROVEN_LIBRARIES[0], sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(unregistered, "PROVEN_LIBRARIES", (row,))
    return Window(CONTENT, source="a library")


def test_only_the_gpus_of_the_evidence_count(known: Window) -> None:
    assert is_proven(known, Selection(devices=frozenset({H100})))
    assert not is_proven(known, Selection(devices=frozenset({H100, A100})))
    assert not is_proven(known, Selection(devices=frozenset({A100})))
    assert not is_proven(known, Selection(keep=frozenset({Target.parse("sm_90")})))


def test_another_file_is_not_proven(known: Window) -> None:
    other = Window(CONTENT + b"!", source="a library")
    assert not is_proven(other, Selection(devices=frozenset({H100})))
    assert is_proven(known, Selection(devices=frozenset({H100})))
