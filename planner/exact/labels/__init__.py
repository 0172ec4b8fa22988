"""Label setting: the best placement of a plain pipeline, by labels passed from rank to rank."""
