"""Costs of pipeline ranks, with the step time and peak memory that follow from them, for one layout or a
million."""
