"""Where a release comes from and what is in it: the manifest, bills of materials, variants."""
