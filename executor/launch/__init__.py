"""From a plan to running ranks: torchrun, nodes, the run's folder, the worker."""
