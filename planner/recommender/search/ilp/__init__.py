"""Integer programs over shardings; the only room of recommenders that imports the solver."""
