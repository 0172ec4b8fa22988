"""Step time and memory of a recommender, from lookups, exchanges, dense network, update and tables."""
