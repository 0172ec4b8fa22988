"""Predicted beside measured: what the model says of training runs, and how far off it is."""
