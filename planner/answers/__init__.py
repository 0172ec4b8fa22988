"""Answers that need many searches: best plans for an objective, frontiers, scaling curves, offers of
clusters, largest models."""
