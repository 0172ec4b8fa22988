"""How long the embeddings of a batch take to serve from a cache on the GPU, host memory below it and drives below that.

    t = t_cache + (1 − h1) · (t_host + (1 − h2) · t_drive)

    t_cache    keys probed, and a row read for each id at the rate that memory gives rows of this length
    t_host     rows that are not in the cache come over the link to the host, each once a batch
    t_drive    rows that are not in host memory either come from the drive in blocks, each once a batch

Every GPU has a cache of the same rows and answers batches of its own; those of a node share the host's memory, its
links and its drives. Below the cache lies the host's share of the same order of rows: what the cache holds, it holds
too. A batch needs a row that it names twice once: distinct rows are what lies between the tiers.

Left out: the dense network, requests that wait for a batch to fill, and rows of the last-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.recommender.caching import TAG_BYTES, CachedTables
from cost_models.recommender.prices.lookup import ID_BYTES
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.constants import EmbeddingProfile

DRIVE_BLOCK = 4096.0
"""Bytes that a drive reads at least: a page of flash file systems."""
DRIVE_SECONDS = 1e-4
"""Seconds until a drive answers a read (NVMe flash; the order of datasheets, not measured)."""
_KERNELS = 2
"""Kernels of a lookup over all tables: keys are probed, vectors are gathered and added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Batches that one GPU answers, N of them, seconds each."""

    batch: Array
    """(N,) samples."""
    cache_seconds: Array
    host_seconds: Array
    """Of rows that are not in the cache; 0 where all are."""
    drive_seconds: Array
    host_rows: Array
    """(N,) distinct rows that come from the host."""
    drive_rows: Array
    """(N,) of them, those that the host reads from a drive."""
    gpus: int

    @property
    def seconds(self) -> Array:
        """(N,) latency from ids to vectors."""
        return self.cache_seconds + self.host_seconds + self.drive_seconds

    @property
    def samples_per_second(self) -> Array:
        """(N,) of all GPUs, one batch after another on each."""
        return self.gpus * self.batch / self.seconds


def served(
    tables: CachedTables,
    cached: Array,
    on_host: Array,
    batches: npt.ArrayLike,
    cluster: ClusterSpec,
    constants: EmbeddingProfile,
    drive_rate: float | None = None,
) -> Served:
    """Latencies with (C,) `cached` rows of each table on the GPU and `on_host` rows in host memory.

    `drive_rate` is what the drives of a node read in bytes/s; None where all rows are in host memory.
    """
    batch = np.asarray(batches, np.float64)
    ids = batch[:, None] * tables.lookups
    missed = _missed(tables, ids, cached) * tables.counts
    beyond = _beyond(tables, ids, np.maximum(on_host, cached)) * tables.counts
    over_link = (missed * tables.vector_bytes).sum(-1)
    blocks = (beyond * np.maximum(tables.vector_bytes, DRIVE_BLOCK)).sum(-1)
    host = over_link / host_rate(cluster, constants) + constants.kernel_seconds
    drive = np.zeros_like(batch)
    if drive_rate:
        drive = blocks * cluster.gpus_per_node / drive_rate + DRIVE_SECONDS
    return Served(
        batch=batch,
        cache_seconds=_cache_seconds(tables, ids, cluster, constants),
        host_seconds=np.where(over_link > 0, host, 0.0),
        drive_seconds=np.where(blocks > 0, drive, 0.0),
        host_rows=missed.sum(-1),
        drive_rows=beyond.sum(-1),
        gpus=cluster.num_gpus,
    )


def host_rate(cluster: ClusterSpec, constants: EmbeddingProfile) -> float:
    """Bytes/s of rows that a GPU has from host memory, while all GPUs of its node read theirs."""
    link = (cluster.gpu.host_bandwidth or np.inf) / min(cluster.gpus_per_host_link, cluster.gpus_per_node)
    memory = (cluster.host_memory_bandwidth or np.inf) / cluster.gpus_per_node
    return float(min(link, memory)) * constants.host_efficiency


def _cache_seconds(
    tables: CachedTables, ids: Array, cluster: ClusterSpec, constants: EmbeddingProfile
) -> Array:
    """(N,) of probing keys and reading a row for each id; a row that came from the host is read like any other."""
    rate = cluster.gpu.memory_bandwidth * constants.lookup_efficiency
    of_rows = tables.vector_bytes + constants.half_row_bytes
    moved = ids * tables.counts * (of_rows + ID_BYTES + TAG_BYTES)
    seconds: Array = moved.sum(-1) / rate + _KERNELS * (constants.kernel_seconds or 0.0)
    return seconds


def _missed(tables: CachedTables, ids: Array, cached: Array) -> Array:
    """(N, C) distinct rows of each table that a batch copies to the GPU."""
    if tables.policy == "hottest":
        return _beyond(tables, ids, cached)
    return ids * (1.0 - tables.table_hits(cached))  # a row that came stays, and the next id of it is a hit


def _beyond(tables: CachedTables, ids: Array, held: Array) -> Array:
    """(N, C) distinct rows of a batch beyond the `held` hottest rows."""
    return np.stack(
        [
            np.maximum(0.0, accesses.distinct(of) - accesses.distinct(of, rows))
            for accesses, of, rows in zip(tables.accesses, ids.T, held, strict=True)
        ],
        axis=-1,
    )
