"""Read the user's inputs: the question (model, cluster, job), the objective, and the restrictions of a plan."""
