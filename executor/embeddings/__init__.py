"""Embedding tables split over ranks: every way to shard them, exact updates of the rows that a batch uses.

bags         ids of samples as values and lengths, sums of rows, rows on the device while serving
exchanges    which rows and columns of which table lie on which rank; collectives that count what they send
holding      keys, rows and optimizer states of a slice, on the device and in host memory, and their updates
collection   all tables of a model: their slices, and a step stage by stage

Shape legend: B samples of all ranks, b of this one, T tables, D width, N ids, U rows that a batch uses.
"""
