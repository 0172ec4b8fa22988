"""Costs of a pipeline's ranks, and its step time and peak memory: for one layout and for a million."""
