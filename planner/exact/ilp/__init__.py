"""Integer programs; the only room that imports the solver."""
