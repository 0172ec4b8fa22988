"""What a step of a recommender costs: lookups, exchanges, dense network, update; and what its tables fill."""
