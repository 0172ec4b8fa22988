"""A transformer on one rank: its model as the layout splits it, and one optimizer step."""
