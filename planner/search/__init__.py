"""Branch and bound over all legal layouts."""
