"""Why a plan is what it is, what would change it, and how others compare."""
