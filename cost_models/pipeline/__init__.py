"""Costs of pipeline ranks, and the step time and peak memory computed from them, for one layout or a million."""
