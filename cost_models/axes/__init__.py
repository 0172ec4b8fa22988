"""Parallel layouts of a model, as single layouts and as columns of many, with their notation and rules."""
