from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from schemas import recipe_schema

RECIPES = Path(__file__).parents[2] / "recipes"
SCHEMA: dict[str, Any] = json.loads(recipe_schema())
POLICY = SCHEMA["properties"]["policy"]["additionalProperties"]
TABLES = {**SCHEMA["properties"], "policy": POLICY}


def test_unknown_keys_are_refused_and_every_key_is_described() -> None:
    assert SCHEMA["required"] == ["source"]
    assert SCHEMA["then"]["required"] == ["project", "source", "interface"]
    assert not SCHEMA["additionalProperties"]
    for table in TABLES.values():
        assert not table["additionalProperties"]
        assert all(key["description"] for key in table["properties"].values())


def test_patterns_and_defaults_are_in_the_schema() -> None:
    compile_ = SCHEMA["properties"]["compile"]["properties"]
    assert compile_["host-pass"]["enum"] == ["once", "per-target"]
    assert compile_["std"]["default"] == "c++17"
    assert re.search(compile_["std"]["pattern"], "c++17")
    assert SCHEMA["properties"]["source"]["properties"]["files"]["minItems"] == 1
    assert "default" not in SCHEMA["properties"]["project"]["properties"]["readme"]


def test_the_manual_has_every_key_with_its_default() -> None:
    manual = (RECIPES / "README.md").read_text()
    for name, table in TABLES.items():
        section = manual.split(f"## [{name}")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `([^`]+)` \|.* \| ([^|]*) \|$", section, re.MULTILINE))
        assert list(rows) == list(table["properties"]), name
        for key, value in table["properties"].items():
            assert (rows[key] == "required") == (key in table["required"]), key
            if "default" in value:
                assert rows[key] == f"`{json.dumps(value['default'])}`", key
