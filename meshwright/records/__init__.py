"""Answers as plain data: objects of `--json`, rows of `--csv`, and the data frames that plots read."""
