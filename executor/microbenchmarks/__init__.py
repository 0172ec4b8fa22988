"""Small timed programs that tell what a device, its memory, its host and its links really do in training."""
