"""Serving recommenders: which rows of which tables stay on the GPU, and what answers then take."""
