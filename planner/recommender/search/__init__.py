"""The search of shardings: its problem, heuristics, bounds, and the integer program that proves."""
