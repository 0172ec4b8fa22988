"""Pictures of what a search finds: frontiers, scaling, what would change a plan."""
