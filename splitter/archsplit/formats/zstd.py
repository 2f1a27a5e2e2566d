"""libzstd: `backports.zstd` before Python 3.14, then the same module of the standard library.

The pinned `backports.zstd` has libzstd 1.5.7 inside, and Python 3.14 links the system's. Any
release reads all frames, but writes bytes of its own: `devicecode.encoders` checks which.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
