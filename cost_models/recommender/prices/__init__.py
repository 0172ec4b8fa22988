"""Costs of a table's options and fixed costs: lookups, exchanges, the dense network, memory."""
