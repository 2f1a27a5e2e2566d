"""Device code in files: scan, select, edit, shrink, verify."""
