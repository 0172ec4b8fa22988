"""torchtitan: recipes of its config registries and job files."""
