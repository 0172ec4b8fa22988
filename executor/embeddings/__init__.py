"""Embedding tables split over ranks: every way to shard them, exact updates of the rows that a batch uses.

bags         ids of samples as values and lengths
slices       which rows and columns of which table lie where
exchanges    collectives that count what they send
keys         ids that are keys of a hash table, and the rows that they get
holding      a slice's rows and optimizer states, on the device and in host memory
updating     optimizers of the rows that a batch uses
routing      ids on their way to the ranks that hold their rows
ways         what each way to shard a table does: whole, columns, rows, nodes, copies, hybrid
host         rows in host memory
collection   all tables of a model, stage by stage

Shape legend: B samples of all ranks, b of this one, T tables, D width, N ids, U rows that a batch uses.
"""
