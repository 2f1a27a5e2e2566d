"""Split big CUDA wheels into a core wheel and one small plugin wheel per GPU target."""

__version__ = "0.1.0"
