"""Rules that make a layout legal, by model, cluster, software stack, executor and trainer."""
