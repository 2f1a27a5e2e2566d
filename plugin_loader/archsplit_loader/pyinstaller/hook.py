"""Collect what a core needs beside its libraries: loader, stubs, table and plugins.

PyInstaller runs this file as ``hook-<package>.py``. It runs only one hook for each package, so
another one for the same package, of PyInstaller or of its collection of hooks, is run from here.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

_HERE = os.path.dirname(os.path.abspath(__file__))
_SITE = os.path.dirname(_HERE)
_PACKAGE = os.path.basename(_HERE)[: -len("_pyinstaller")]

datas: list[tuple[str, str]] = []
binaries: list[tuple[str, str]] = []
hiddenimports: list[str] = []

for _name in ("_pyinstaller_hooks_contrib", "PyInstaller"):
    _spec = find_spec(_name)
    for _folder in (_spec.submodule_search_locations or ()) if _spec else ():
        for _part in ("stdhooks", "hooks"):
            _path = os.path.join(_folder, _part, f"hook-{_PACKAGE}.py")
            if os.path.isfile(_path) and not hiddenimports:
                with open(_path, encoding="utf-8") as _file:
                    exec(compile(_file.read(), _path, "exec"))

_core_folder = os.path.join(_SITE, _PACKAGE, "_archsplit")
hiddenimports += [f"{_PACKAGE}._archsplit"]
hiddenimports += [
    f"{_PACKAGE}._archsplit.{_name[:-3]}"
    for _name in sorted(os.listdir(_core_folder))
    if _name.endswith(".py") and not _name.startswith("__")
]
for _top in (_core_folder, os.path.join(_SITE, f"{_PACKAGE}_plugins", "cuda")):
    for _folder, _, _names in os.walk(_top):
        for _name in sorted(_names):
            _row = (os.path.join(_folder, _name), os.path.relpath(_folder, _SITE))
            if _name.endswith(".so"):
                binaries.append(_row)
            elif _name.endswith((".pack", ".json")):
                datas.append(_row)
