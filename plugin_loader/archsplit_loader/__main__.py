"""``python <site>/<package>/_archsplit``: the doctor, also where importing the core fails."""

from __future__ import annotations

import importlib.util
import os
import sys

_NAME = "archsplit_core"

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (as in _folders)
    # The package itself is not imported: its __init__ may load the library that is broken.
    spec = importlib.util.spec_from_file_location(
        _NAME,
        os.path.join(folder, "__init__.py"),  # noqa: PTH118 (the same)
        submodule_search_locations=[folder],
    )
    assert spec is not None, "the path ends in .py"
    assert spec.loader is not None, "the same"
    # Relative imports of its modules look here.
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[_NAME])
        main = importlib.import_module(f"{_NAME}.doctor").main
    except (ImportError, SyntaxError, OSError, AttributeError, ValueError) as error:
        sys.exit(f"{folder} is damaged ({error}); install the core again")
    sys.exit(main())
