"""Costs of a table's sharding options and fixed costs of a step, for lookups, exchanges, the dense network
and memory."""
