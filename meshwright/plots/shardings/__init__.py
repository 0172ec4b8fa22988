"""Pictures of shardings: stages of a step, memories, and which table lies where."""
