"""Search for the best sharding of a recommender's embedding tables, with a proof that no other is better."""
