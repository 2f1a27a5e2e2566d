"""Parts of `bench_nvcc.py`: sources, compared programs, measurements and goals."""
