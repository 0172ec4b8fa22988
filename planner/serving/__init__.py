"""Plans to serve recommenders, with the rows of each table to cache on the GPU and the latency of answers."""
