"""``python -m vecsort``: sort on the GPU if one is served, or else say what the doctor says."""

from __future__ import annotations

import runpy
import sys

from . import __version__
from ._errors import VecsortError
from ._self_test import self_test


def main() -> int:
    """Run the self-test of device 0; the exit status is the self-test's or the doctor's."""
    try:
        result = self_test()
    except VecsortError as error:
        sys.stderr.write(f"vecsort {__version__}: the self-test failed: {error}\n")
        return 1
    except RuntimeError:  # what the loader raises where no plugin serves a device
        return _doctor()
    rate = result.items / result.milliseconds / 1e6
    sys.stdout.write(
        f"vecsort {__version__}: sorted {result.items:,} random float32 on {result.device_name} "
        f"(capability {result.capability}) in {result.milliseconds:.3f} ms, {rate:.1f} billion a "
        "second: every neighbour in order, no item lost.\n"
    )
    return 0


def _doctor() -> int:
    """Let ``python -m vecsort.doctor`` speak, which archsplit adds to the core."""
    try:
        runpy.run_module(f"{__package__}.doctor", run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
