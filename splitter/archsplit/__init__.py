"""Split big CUDA wheels into a core and one small plugin wheel per GPU target.

The public Python API is `archsplit.api`; `archsplit.backend` is the PEP 517 build backend. All
other modules are private and may change in any release.
"""

from __future__ import annotations

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `archsplit.api` when it is first used: the compiler wrapper starts without it."""
    if name == "api":
        import importlib  # noqa: PLC0415 (the same)

        return importlib.import_module("archsplit.api")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
