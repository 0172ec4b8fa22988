"""Expected end of a training job under failures, checkpoints, restarts, spare nodes and slow hosts."""
