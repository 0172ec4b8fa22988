"""What an option of a table costs, and what no table changes: lookups, exchanges, the dense network, memory."""
