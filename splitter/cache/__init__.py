"""Results of earlier work, found by content; no CUDA and no compiler in it."""
