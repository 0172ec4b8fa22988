"""What would fit where nothing does: single changes of the question, each with a plan."""
