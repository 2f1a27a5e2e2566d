"""Stand in for nvcc on one command line: the same results, with nothing waiting that needn't."""
