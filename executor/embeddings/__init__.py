"""Embedding tables split over ranks: every way to shard them, exact updates of the rows that a batch uses.

bags         ids of samples as values and lengths
places       which rows and columns of which table lie where
slicing      from a sharding to slices
exchanges    collectives that count what they send, ids on their way
keys         ids that are keys of a hash table, and the rows that they get
holding      a slice's rows and optimizer states, on the device and in host memory
updating     optimizers of the rows that a batch uses
ways         whole tables, columns, rows, rows of nodes
copies       tables that every rank has
collection   all tables of a model, stage by stage
cache        rows on the device while serving

Shape legend: B samples of all ranks, b of this one, T tables, D width, N ids, U rows that a batch uses.
"""
