"""The folders that hold the packages of this checkout, for programs that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE_PATH = os.pathsep.join(str(ROOT / folder) for folder in ("splitter", "plugin_loader"))
"""Value of PYTHONPATH."""
