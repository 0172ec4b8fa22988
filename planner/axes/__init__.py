"""What an axis asks of the planner beyond its record in the layout: a folder for each that asks much."""
