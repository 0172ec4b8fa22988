"""Answers that need many searches, such as the best plan for an objective, frontiers, scaling curves, offers
of clusters, largest models."""
