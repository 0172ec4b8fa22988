"""Legality of layouts: rules of the model, the cluster, the stack, the executor and of trainers."""
