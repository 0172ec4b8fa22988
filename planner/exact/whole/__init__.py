"""Bounds and columns of the integer program over a whole question, independent of the search and its labels."""
