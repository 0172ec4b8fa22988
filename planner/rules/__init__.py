"""Rules that make a layout legal, from the model, the cluster, the software stack, the executor and
trainers."""
