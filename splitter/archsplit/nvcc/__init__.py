"""Knowledge about nvcc: command lines, dry runs, steps, toolkits. Runs nothing."""
