"""Whole replicas in several pools: their rules, their placements and their search."""
