"""Reads a user's question, the objective of its answer, and the limits it must keep to."""
