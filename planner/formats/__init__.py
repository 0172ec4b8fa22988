"""Formats of other trainers: files as which plans are written, and from which runs are read."""
