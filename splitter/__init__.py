"""archsplit: one core wheel, and one small plugin wheel per GPU target."""

__version__ = "0.1.0"
