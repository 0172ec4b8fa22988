"""Where every embedding table of a recommender goes: the best sharding and the proof that none is better."""
