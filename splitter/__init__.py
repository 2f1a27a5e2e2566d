"""archsplit: one core wheel, and one small plugin wheel per GPU target."""
