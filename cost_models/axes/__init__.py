"""Layouts, one or many: their degrees and switches, their notation, and their columns."""
