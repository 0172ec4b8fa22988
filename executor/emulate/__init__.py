"""One rank of a plan alone, its neighbours stood in for; and plans built without devices."""
