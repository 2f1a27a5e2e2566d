"""What `bench_nvcc.py` is made of: sources, the programs compared, measuring, and the goals."""
