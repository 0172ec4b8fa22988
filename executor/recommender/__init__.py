"""Recommenders: one step of a sharded model, its steps, its report, its checkpoints; and its tables when they serve."""
