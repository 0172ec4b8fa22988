"""Checkpoints that any layout can load: sharded, atomic, verified, and read without running code.

boxes      where a rank's part of a tensor lies in the whole
contents   what a rank holds, by names that no layout changes
planning   who writes what and who reads what (`torch.distributed.checkpoint` planners)
storage    safetensors files and a JSON manifest (`torch.distributed.checkpoint` storage)
manifest   the record of one checkpoint, and whether its files are what it says
folder     the checkpoints of a run: which are complete, which go
transformers     what is saved of a transformer
checkpointer     saving while training goes on, and resuming
"""
