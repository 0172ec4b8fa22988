"""Measurements of a run: time by part, memory by part, kernels, routers; and its report."""
