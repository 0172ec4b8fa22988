"""Runs of one rank of a plan alone, with stand-ins for the other ranks; and plans built without devices."""
