"""Knowledge of nvcc; runs nothing."""
