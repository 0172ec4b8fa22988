"""Step time and memory of a recommender: lookups, exchanges, dense network, update and tables."""
