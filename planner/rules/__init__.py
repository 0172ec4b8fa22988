"""Rules that make a layout legal: those of the model, the cluster, the software stack, the executor and
trainers."""
