"""Training of recommenders: the sharded model, its steps, its report, its checkpoints; and serving of its tables."""
