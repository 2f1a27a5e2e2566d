"""Parts of the benchmark of the compile cache."""
