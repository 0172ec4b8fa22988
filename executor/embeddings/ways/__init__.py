"""What each way to shard a table does: its slices, and how vectors and gradients travel."""
