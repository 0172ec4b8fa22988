"""Small timed programs that measure what a device, its memory, its host and its links really do in training."""
