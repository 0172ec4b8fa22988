"""Checkpoints that any layout can load: sharded, atomic, verified, and read without running code.

contents   a rank's part of the state in boxes, and who writes and reads which (`torch.distributed.checkpoint` planners)
storage    safetensors files and a JSON manifest (`torch.distributed.checkpoint` storage)
manifest   the record of one checkpoint
verifying  whether files, pieces and tensors are what it says, and all that a run needs
folder     the checkpoints of a run: which are complete, which go
checkpointer     saving while training goes on, and resuming

Each family of models says what is saved in its `state` module.
"""
