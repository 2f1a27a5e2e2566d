"""``python -m <package>.doctor``: say what serves which GPU, and what to do where nothing does.

Exit status: 0 when every visible device is served, or when there is no GPU and nothing that is
installed is refused; 1 otherwise; 2 when the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ._errors import PluginError
from ._explanation import SCHEMA, explain_core

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the explanation; see the module for the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__name__.partition('.')[0]}.doctor",
        description="Say which plugin serves which GPU, and what to do where none does.",
        epilog="exit status: 0 all is well, 1 something is wrong, 2 wrong arguments",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--full", action="store_true", help="read all of every device pack, not its index alone"
    )
    arguments = parser.parse_args(argv)
    try:
        explanation = explain_core(full=arguments.full)
    except PluginError as error:
        damage = {"schema": SCHEMA, "healthy": False, "error": str(error)}
        sys.stdout.write(f"{json.dumps(damage, indent=2) if arguments.json else error}\n")
        return 1
    sys.stdout.write(f"{explanation.as_json() if arguments.json else explanation.text()}\n")
    return 0 if explanation.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
