"""Integer programs: the only folder of placement that imports PuLP."""
