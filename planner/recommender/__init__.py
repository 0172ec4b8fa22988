"""The best sharding of a recommender's embedding tables, and the proof that none is better."""
