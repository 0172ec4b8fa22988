"""Which layouts may run: rules of the model, the cluster, the stack, the executor and of trainers."""
