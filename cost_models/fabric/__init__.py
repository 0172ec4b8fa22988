"""A cluster as a graph of its links: read from files, taken apart into levels, and what every group of ranks gets."""
