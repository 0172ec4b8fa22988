"""Seconds to serve the embeddings of a batch from a cache on the GPU, then from host memory, then from
drives.

    t = t_launch + t_cache + (1 − h1) · (t_host + (1 − h2) · t_drive)

    t_launch   the host launches the lookup of each table, one after another; 0 where all are looked up at once
    t_cache    keys probed, and a row read for each id at the rate that memory gives rows of this length
    t_host     rows that are not in the cache come over the link to the host, each once a batch
    t_drive    rows that are not in host memory either come from the drive in blocks, each once a batch

Every GPU has a cache of the same rows and answers batches of its own; those of a node share the host's memory, its
links and its drives. Below the cache lies the host's share of the same order of rows: what the cache holds, it holds
too. A batch needs a row that it names twice once: distinct rows are what lies between the tiers.

Where lookups were measured on this device, an id whose row is there and a row that is brought up take what they took,
on straight lines between the lengths of rows.

Left out: the dense network, requests that wait for a batch to fill, and rows of the last-level cache.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from cost_models.arrays import Array
from cost_models.base import LargeInt, Overhead, Spec
from cost_models.recommender.accesses import TAG_BYTES, CachedTables, Policy, cached_tables, rows_brought
from cost_models.recommender.dense import dense_network
from cost_models.recommender.memory import ID_BYTES, host_rate
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.constants import EmbeddingProfile, ServedPoint
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import ELEMENT_BYTES, TableDtype

DRIVE_BLOCK = 4096.0
"""Minimum bytes of one read from a drive, a page of flash file systems."""
DRIVE_SECONDS = 1e-4
"""Seconds until a drive answers a read (NVMe flash; the order of datasheets, not measured)."""
_KERNELS = 2
"""Number of kernels of a lookup over all tables, to probe keys and to gather and add vectors."""


WORKSPACE = 1.0e9
"""Bytes of device memory for context and libraries, in addition to cache and dense network, as when
training."""


class ServingQuestion(Spec):
    """Recommender to serve on a cluster with an embedding cache on each GPU, and batch sizes to price."""

    model: RecommenderSpec
    cluster: ClusterSpec
    table_dtype: TableDtype = "fp32"
    """Type of the tables' vectors in memory."""
    policy: Policy = "hottest"
    """Policy of the cache, which keeps the hottest rows permanently or the most recently used."""
    batches: Annotated[tuple[LargeInt, ...], Field(min_length=1, max_length=1000)]
    """Batch sizes to price, in samples."""
    drive_rate: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] | None = None
    """Read rate of a node's drives, bytes/s, for rows that host memory cannot hold. None: host memory must
    hold all."""
    embedding: EmbeddingProfile = EmbeddingProfile()
    launch_seconds: Overhead = 0.0
    """Host seconds to launch the lookup of one table; 0 if all tables are looked up at once."""
    measured: tuple[ServedPoint, ...] = ()
    """Measured lookups through such a cache, from the cluster's profile; empty: constants price them."""

    @property
    def tables(self) -> CachedTables:
        """Embedding tables of the model with access curves, bytes and cache policy."""
        return cached_tables(self.model, ELEMENT_BYTES[self.table_dtype], self.policy)

    @property
    def most_bytes(self) -> float:
        """Bytes of GPU memory left for the cache, after the reserve and the dense network."""
        memory, share = self.cluster.gpu.memory, self.cluster.memory_reserve
        reserve = WORKSPACE if share is None else share * memory
        return memory - reserve - dense_network(self.model).parameters * 4.0  # in FP32


class Served(NamedTuple):
    """Seconds in which one GPU serves the embeddings of N batches from C classes of tables, by part, and the
    hits of its cache."""

    batch: Array
    """Number of samples in each batch, (N,)."""
    launch_seconds: Array
    cache_seconds: Array
    host_seconds: Array
    """Seconds to fetch rows from host memory, (N,); 0 if all are cached."""
    drive_seconds: Array
    hits: Array
    """Share of the ids of each table that are served from the cache, (N, C). If the cache holds rows
    permanently, these are the ids with a cached row, else all but one id of each row that a batch fetches."""
    host_rows: Array
    """Number of distinct rows fetched from the host, (N,)."""
    drive_rows: Array
    """Number of distinct rows that the host reads from a drive, (N,)."""
    gpus: int

    @property
    def seconds(self) -> Array:
        """Latency of each batch in seconds, from ids to vectors, (N,)."""
        return self.launch_seconds + self.cache_seconds + self.host_seconds + self.drive_seconds

    @property
    def samples_per_second(self) -> Array:
        """Samples per second of all GPUs together, with one batch after another on each GPU, (N,)."""
        return self.gpus * self.batch / self.seconds


def batch_latencies(question: ServingQuestion, cached: Array, on_host: Array) -> Served:
    """Predict the latencies of the question's N batches, with `cached` rows (C,) of each table on the GPU and
    `on_host` rows (C,) in host memory."""
    batch, cluster, tables = np.asarray(question.batches, np.float64), question.cluster, question.tables
    ids = batch[:, None] * tables.lookups
    brought = rows_brought(tables, ids, cached)
    cold_rows = tables.distinct_cold_rows(ids, np.maximum(on_host, cached)) * tables.counts
    blocks = (cold_rows * np.maximum(tables.vector_bytes, DRIVE_BLOCK)).sum(-1)
    read_seconds = blocks * cluster.gpus_per_node / (question.drive_rate or np.inf) + DRIVE_SECONDS
    drive_seconds = np.where((blocks > 0) & (question.drive_rate is not None), read_seconds, 0.0)
    seconds_of = _timed_seconds if question.measured else _priced_seconds
    launch, cache, host = seconds_of(question, tables, ids, brought)
    id_hits = tables.table_hits(cached) if tables.policy == "hottest" else 1.0 - brought / ids
    hits, host_rows = np.broadcast_to(id_hits, ids.shape), brought @ tables.counts
    drive_rows = cold_rows.sum(-1)
    return Served(batch, launch, cache, host, drive_seconds, hits, host_rows, drive_rows, cluster.num_gpus)


_Seconds = tuple[Array, Array, Array]
"""Seconds of launches, of cache reads, and of rows from the host, (N,) each."""


def _priced_seconds(question: ServingQuestion, tables: CachedTables, ids: Array, brought: Array) -> _Seconds:
    """Seconds of launches, of cache reads, and of rows from the host, (N,) each, by the embedding constants.
    A row from the host is read from the cache like any other."""
    cluster, constants = question.cluster, question.embedding
    kernel = constants.kernel_seconds or 0.0
    rate = cluster.gpu.memory_bandwidth * constants.lookup_efficiency
    of_rows = tables.vector_bytes + constants.half_row_bytes
    bytes_moved = ids * tables.counts * (of_rows + ID_BYTES + TAG_BYTES)
    over_link = (brought * tables.counts * tables.vector_bytes).sum(-1)
    sharers = min(cluster.gpus_per_host_link, cluster.gpus_per_node)
    host = over_link / host_rate(cluster, constants, sharers) + kernel
    at_once = 0.0 if question.launch_seconds else _KERNELS * kernel
    launch = np.full(len(ids), question.launch_seconds * float(tables.counts.sum()))
    return launch, bytes_moved.sum(-1) / rate + at_once, np.where(over_link > 0, host, 0.0)


def _timed_seconds(question: ServingQuestion, tables: CachedTables, ids: Array, brought: Array) -> _Seconds:
    """Seconds of launches, of cache reads, and of rows from the host, (N,) each, by measured lookups. A cache
    of rows used last looks up each distinct row of a batch once."""
    looked_up = ids if tables.policy == "hottest" else tables.distinct_cold_rows(ids, np.zeros(ids.shape[1]))
    points = sorted(question.measured, key=lambda point: point.row_bytes)
    lengths = [point.row_bytes for point in points]
    launch, hit, miss = (
        tables.counts * np.interp(tables.vector_bytes, lengths, [getattr(point, name) for point in points])
        for name in ("launch_seconds", "hit_seconds", "miss_seconds")
    )
    return np.full(len(ids), launch.sum()), (looked_up - brought) @ hit, brought @ miss
