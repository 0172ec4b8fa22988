"""Placements of one layout: blocks on stages, recompute policies on blocks, and what they cost."""
