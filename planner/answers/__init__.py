"""Answers made of searches: best plans for an objective, frontiers, scaling, offers."""
