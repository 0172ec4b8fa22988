"""Predicted against published: other people's training runs, what the model says of them, and how far off it is."""
