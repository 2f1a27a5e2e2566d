from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from schemas import recipe_schema

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recipe_schema())
    return found


@pytest.fixture
def tables(schema: dict[str, Any]) -> dict[str, Any]:
    policy = schema["properties"]["policy"]["additionalProperties"]
    return {**schema["properties"], "policy": policy}


def test_unknown_keys_are_refused_and_every_key_is_described(
    schema: dict[str, Any], tables: dict[str, Any]
) -> None:
    assert schema["required"] == ["source"]
    assert schema["then"]["required"] == ["project", "source", "interface"]
    assert not schema["additionalProperties"]
    for table in tables.values():
        assert not table["additionalProperties"]
        assert all(key["description"] for key in table["properties"].values())


def test_patterns_and_defaults_are_in_the_schema(schema: dict[str, Any]) -> None:
    compile_ = schema["properties"]["compile"]["properties"]
    assert compile_["host-pass"]["enum"] == ["once", "per-target"]
    assert compile_["std"]["default"] == "c++17"
    assert re.search(compile_["std"]["pattern"], "c++17")
    assert schema["properties"]["source"]["properties"]["files"]["minItems"] == 1
    assert "default" not in schema["properties"]["project"]["properties"]["readme"]


def test_the_manual_has_every_key_with_its_default(tables: dict[str, Any]) -> None:
    manual = (RECIPES / "README.md").read_text()
    for name, table in tables.items():
        section = manual.split(f"## [{name}")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `([^`]+)` \|.* \| ([^|]*) \|$", section, re.MULTILINE))
        assert list(rows) == list(table["properties"]), name
        for key, value in table["properties"].items():
            assert (rows[key] == "required") == (key in table["required"]), key
            if "default" in value:
                assert rows[key] == f"`{json.dumps(value['default'])}`", key
