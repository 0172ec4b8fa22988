"""From a plan to running ranks: torchrun, nodes, the folder of a run, one rank; and worker processes that measure."""
