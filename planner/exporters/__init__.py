"""Plans in the files of other trainers, written and read."""
