"""Training recommenders: one step of a sharded model, its steps, its report."""
