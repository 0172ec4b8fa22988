"""Answers as plain data: objects of `--json`, rows of `--csv`, and the data frames that plots read."""

JSON_SCHEMA = 1
"""Version of every JSON document; raised when a field changes its meaning or goes."""
