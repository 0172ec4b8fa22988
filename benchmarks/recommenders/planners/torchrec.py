"""Prices as TorchRec's own planner has them: what it minimises, so that its plans and ours can be compared on it.

TorchRec 1.8.0, torchrec/distributed/planner: `estimator/estimator.py` (seconds of a shard), `shard_estimators.py`
(storage), `constants.py`. With b samples a GPU, W GPUs, L a node, N nodes, p ids a sample, D elements of e bytes:

    table, column    compute (8·p + p·max(D, 32)·e + D·e)·b·W · penalty / HBM;   exchange b·W·D·e / link, each way
    row              ids and rows of p/W; exchange the same; backward 2.455 copies of b·W·D·e more
    table-row        ids and rows of p/L; scatter inside the node, b·N·D·e between nodes; the same copies
    data             b samples at half of HBM; table·(2n − 1)/n over all-reduce, n = min(N, 2), and 9.22 passes

Backward compute is twice forward; a table in host memory has a tenth of the link to it, a cached one of the mixture.
A plan's rate is the most that any GPU has in all, Σ over its shards: `PricedOptions` with nothing fixed. Rows are those
of `FORMS`; TorchRec has no hot copies. Storage is without a pipeline: table, states, a batch's ids and vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.recommenders.planners import option_prices
from cost_models.communication.topology import levels_of
from cost_models.errors import InputError
from cost_models.recommender.options import STAGES, Pair, PricedOptions, default_options
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option

_GB = 1024**3
_ID_BYTES = 8.0
_FULL_BLOCK, _HALF_BLOCK = 128, 64
_PENALTIES = {"full": 1.0, "half": 1.15, "quarter": 1.75}
_LEAST_WIDTH = 32
_BACKWARD = 2.0
_BATCHED_COPY = 2.455
_COPIED_UPDATE = 9.22
_DENSE_KERNEL = 0.5
_HOST_KERNEL = 0.1
_ELEMENT = 4.0
"""Bytes of vectors that are exchanged: fp32 without a quantised communication codec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRecTopology:
    """Rates in bytes/s as TorchRec's `Topology` takes them; the defaults are its own."""

    memory: float = 32 * _GB
    host_memory: float = 128 * _GB
    memory_bandwidth: float = 897 * _GB
    host_bandwidth: float = 32 * _GB
    intra_node: float = 600 * _GB
    inter_node: float = 12.5 * _GB

    @classmethod
    def of(cls, cluster: ClusterSpec) -> TorchRecTopology:
        """The topology that a user of the cluster would give, from its datasheet."""
        levels, usual = levels_of(cluster), cls()
        between = [level.bandwidth for level in levels if level.network]
        return cls(
            memory=cluster.gpu.memory,
            host_memory=cluster.host_memory or 0.0,
            memory_bandwidth=cluster.gpu.memory_bandwidth,
            host_bandwidth=cluster.gpu.host_bandwidth or usual.host_bandwidth,
            intra_node=levels[0].bandwidth,
            inter_node=min(between) if between else usual.inter_node,
        )


def torchrec_options(
    question: RecommenderQuestion,
    options: Sequence[Pair] | None = None,
    topology: TorchRecTopology | None = None,
) -> PricedOptions:
    """TorchRec's prices of (class, option) pairs; default: all that are worth a try and that TorchRec has.

    Raises:
        InputError: an option with hot rows, or slices of rows, which it has not.
    """
    known = topology or TorchRecTopology.of(question.cluster)
    pairs = (
        [pair for pair in default_options(question) if _has(pair[1])] if options is None else list(options)
    )
    if strange := [str(option) for _, option in pairs if not _has(option)]:
        raise InputError(f"TorchRec has no `{strange[0]}`")
    cluster, classes = question.cluster, question.model.classes
    shards = [_Shard(question, known, classes[which], option) for which, option in pairs]
    seconds = np.array([one.stages for one in shards]).reshape(-1, len(STAGES))
    size, host = (np.array([getattr(one, name) for one in shards]) for name in ("device_bytes", "host_bytes"))
    in_node = np.array(
        [cluster.gpus_per_node if option.form in ("row", "node-row") else 1 for _, option in pairs]
    )
    return option_prices(
        question, pairs, seconds, size, host * in_node, memory=known.memory, host_memory=known.host_memory
    )


def _has(option: Option) -> bool:
    return not option.hot and (option.shards == 1 or option.form == "column")


class _Shard:
    """One shard of a table, as TorchRec's estimators see it."""

    def __init__(
        self, question: RecommenderQuestion, topology: TorchRecTopology, table: TableSpec, option: Option
    ) -> None:
        cluster, training = question.cluster, question.training
        self._topology, self._option, self._table = topology, option, table
        self._gpus, self._local, self._nodes = cluster.num_gpus, cluster.gpus_per_node, cluster.nodes
        self._samples = training.global_batch / cluster.num_gpus
        self._element = training.table_bytes
        self._optimizer = training.optimizer
        self._width = table.width / option.shards
        self._sharers = {"row": self._gpus, "node-row": self._local}.get(option.form, 1)
        self._batches = 1 if option.form == "copy" else self._gpus
        ids = self._samples * table.pooling
        self._ids = ids / self._sharers * self._batches
        pooled = table.combiner != "concat"
        self._outputs = self._samples * min(1.0, table.pooling) if pooled else ids / self._sharers
        self._out_bytes = self._outputs * self._batches * self._width * _ELEMENT

    @property
    def stages(self) -> list[float]:
        """(K,) seconds by stage; backward compute counts as the update."""
        forward = self._forward_seconds
        there, back = self._exchange_seconds
        of = {
            STAGES.lookup: forward,
            STAGES.forward_exchange: there,
            STAGES.backward_exchange: back,
            STAGES.update: _BACKWARD * forward,
        }
        return [of.get(stage, 0.0) for stage in STAGES]

    @property
    def device_bytes(self) -> float:
        """Device memory of the shard."""
        share = 1.0 if self._option.tier == "device" else self._option.cached
        kept = self._states(math.ceil(share * self._weights))
        if self._option.cached:
            kept += math.ceil(self._rows * (4 + self._option.cached * 16))
        return kept + math.ceil(self._ids * _ID_BYTES) + math.ceil(self._out_bytes)

    @property
    def host_bytes(self) -> float:
        """Host memory of the shard."""
        return self._states(self._weights) if self._option.tier == "host" else 0.0

    @property
    def _rows(self) -> int:
        """Rows of the largest shard."""
        return math.ceil(self._table.rows / self._sharers)

    @property
    def _weights(self) -> float:
        return self._rows * self._width * self._element

    def _states(self, weights: float) -> float:
        times = {"sgd": 0.0, "adam": 2.0, "rowwise-adagrad": 1 / self._table.width, "adagrad": 1.0}
        return weights + math.ceil(weights * times[self._optimizer])

    @property
    def _rate(self) -> float:
        """Bytes/s of the shard's kernel."""
        memory, host, cached = (
            self._topology.memory_bandwidth,
            self._topology.host_bandwidth,
            self._option.cached,
        )
        if self._option.tier == "host":
            return _HOST_KERNEL * (cached * memory + (1 - cached) * host if cached else host)
        return memory * (_DENSE_KERNEL if self._option.form == "copy" else 1.0)

    @property
    def _forward_seconds(self) -> float:
        penalty, width = 1.0, self._width
        if self._option.form in ("whole", "column"):
            block = "full" if width >= _FULL_BLOCK else "half" if width >= _HALF_BLOCK else "quarter"
            penalty, width = _PENALTIES[block], max(width, _LEAST_WIDTH)
        moved = math.ceil(self._ids * _ID_BYTES) + self._ids * width * self._element + self._out_bytes
        return moved * penalty / self._rate

    @property
    def _exchange_seconds(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward exchange."""
        at, copies = self._topology, _BATCHED_COPY * self._out_bytes / self._rate
        link = at.intra_node if self._nodes == 1 else at.inter_node
        form = self._option.form
        if form == "copy":
            size, nodes = self._table.rows * self._table.width * self._element, min(self._nodes, 2)
            reduce = size * (2 * nodes - 1) / nodes / (at.inter_node * self._local)
            return 0.0, reduce * (2 if self._nodes > 2 else 1) + size * _COPIED_UPDATE / self._rate
        if form == "node-row":
            there = self._out_bytes / at.intra_node
            if self._nodes > 1:
                there += (
                    self._outputs
                    * self._sharers_of_output
                    * self._nodes
                    * self._width
                    * _ELEMENT
                    / at.inter_node
                )
            return there, there + copies
        there = self._out_bytes / link
        return there, there + (copies if form == "row" else 0.0)

    @property
    def _sharers_of_output(self) -> float:
        """Factor on a vector's bytes between nodes: `concat` sends vectors of ids whole."""
        return self._sharers if self._table.combiner == "concat" else 1.0
