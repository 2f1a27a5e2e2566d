"""The shape of the loader's C sources."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

from loader_objects import LOADER

SOURCES = LOADER / "src"


def arrows() -> dict[str, set[str]]:
    """The module of each C file or header, and the modules that it includes."""
    found: dict[str, set[str]] = {}
    for file in sorted(SOURCES.glob("*.[ch]")):
        module = "os" if file.stem.startswith("os_") else file.stem
        included = re.findall(r'^#include "(\w+)[.]h"$', file.read_text(), re.MULTILINE)
        found.setdefault(module, set()).update(set(included) - {module})
    return found


def test_includes_form_no_ring() -> None:
    assert list(TopologicalSorter(arrows()).static_order())


def test_each_source_has_its_own_header() -> None:
    api = {"api", "graft", "os_linux", "os_memory_linux"}  # of plugin_loader.h, and of os.h
    headers = {file.stem for file in SOURCES.glob("*.h")}
    assert {file.stem for file in SOURCES.glob("*.c")} - headers == api


def test_loader_header_has_only_the_two_records() -> None:
    text = (SOURCES / "loader.h").read_text()
    assert re.findall(r"^struct (\w+) \{", text, re.MULTILINE) == ["candidate", "archsplit_loader"]
    assert not re.search(
        r"\w\(", re.sub(r"/[*].*?[*]/|_Atomic\([^)]*\)", "", text, flags=re.DOTALL)
    )
