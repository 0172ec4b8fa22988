"""The day a training job ends: failures, checkpoints, restarts, spares, slow hosts."""
