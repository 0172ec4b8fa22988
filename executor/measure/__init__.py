"""What a run measures: time by part, memory by part, kernels, routers; and its report."""
