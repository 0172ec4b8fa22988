"""Checkpoints that any layout can load: sharded, atomic, verified, and read without running code.

manifest       the checkpoints of a run in their folder, and the record of one
checkpointer   a rank's part of the state in boxes, which rank writes and reads which, the files, and whether what lies
               there is what the record says; saving while training goes on, and resuming

Each family of models says what is saved: `executor.transformer.train`, `executor.recommender.train`.
"""
