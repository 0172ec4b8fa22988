"""Stand-ins for the values of tensors and the messages of other ranks that an emulated rank lacks.

**Process group.** It sends nothing: gathers repeat what this rank has and sums keep its part, so any number of ranks
fits.

**Values.** Without them, a transformer's step runs through every operator, and only the sizes of tensors are kept.
`FakeTensorMode` does this for one process; here, where tensors are asked for numbers: meshes of ranks are made of real
tensors, numbers that are only reported (a loss, a norm) are zero, and routers spread their tokens evenly, as the cost
model has it.

Without other ranks, a recommender's rank knows which ids they would send, as they draw from the same made-up samples;
vectors and gradients are noise. Sizes are those of the real rank, message by message.

Shape legend: R copies of tokens, D model, E experts, L of them on this rank, e expert-parallel ranks, t ranks that
share an expert.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import FunctionType
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from cost_models.base import Spec
from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.stack import StackSpec
from executor.axes.expert import Exchange, ExchangeSizes
from executor.data.clicks import MadeUpClicks
from executor.embeddings.bags import Bags, cut
from executor.embeddings.collection import AT_ONCE, CopyExchange, Embeddings, ids_of_part
from executor.embeddings.exchanges import Parts, Peers, Router, Sizes, Slice
from executor.models.experts import routers
from executor.timing import cpu_threads

NO_DEVICE = "none"


class AnyEmulation(Spec):
    """Measurements of one rank that ran alone beside its plan's predictions; each model family adds fields."""

    schema_version: int = 1
    model: str
    rank: int
    device: str
    """Device that computed: `cpu`, the name of the GPU, or `none` if only memory was measured."""
    torch: str
    memory: dict[str, int]
    """Measured bytes by part at this rank's peak."""
    predicted_memory: dict[str, float]
    """Predicted bytes of the same parts under the plan's stack, on the plan's GPU."""
    memory_as_run: dict[str, float]
    """Predicted bytes of the same parts for the executor's own operators, on the kind of device that ran."""
    seconds: dict[str, tuple[float, ...]]
    """Measured compute seconds of each step, by phase or stage: CPU time of the training thread, or time of the GPU's
    clock. Empty without a device.
    """
    on_planned_device: bool
    """Whether the plan's kind of device computed, and not a CPU in its place or no device."""
    predicted_seconds: dict[str, float]
    """Predicted compute seconds of the same phases or stages for this rank, without communication."""

    @property
    def runs_otherwise(self) -> bool:
        """Whether the run keeps other tensors in memory than the plan's stack on the plan's GPU would."""
        return any(abs(size - self.predicted_memory[part]) >= 1 for part, size in self.memory_as_run.items())

    @property
    def compute_seconds(self) -> dict[str, float]:
        """Median over steps of the measured compute seconds of each phase or stage."""
        return {phase: statistics.median(seconds) for phase, seconds in self.seconds.items()}


def require_rank(rank: int, ranks: int) -> None:
    """Raise InputError where a plan of `ranks` ranks has no rank `rank`."""
    if not 0 <= rank < ranks:
        raise InputError(f"the plan has no rank {rank}", hint=f"its {ranks} ranks go from 0 to {ranks - 1}")


@contextmanager
def fake_process_group(rank: int, ranks: int) -> Iterator[None]:
    """Context manager that makes this process one rank of a group that sends nothing, on one CPU thread."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        with cpu_threads(1), catch_warnings():
            simplefilter("ignore", FutureWarning)  # of collectives that newer releases name otherwise
            yield
    finally:
        dist.destroy_process_group()


def as_run_here(cluster: ClusterSpec, stack: StackSpec, device: torch.device) -> dict[str, Any]:
    """Cluster and stack of an emulated question: this executor's stack, on this kind of device."""
    if device.type == "cpu":
        cluster = cluster.model_copy(update={"gpu": cluster.gpu.model_copy(update={"kind": "cpu"})})
    return {"cluster": cluster, "stack": stack if stack.name == OWN_STACK else load_stack(OWN_STACK)}


@contextmanager
def without_values() -> Iterator[None]:
    """Context manager in which tensors have a shape and a type but no memory."""
    with _outside_modes(), FakeTensorMode(), _NoNumbers():  # type: ignore[no-untyped-call]
        yield


class _NoNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode in which numbers read from tensors are zero, and fp32 grouped products have a shape."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].is_floating_point() else 0
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float32:
            return _grouped(*args)
        return func(*args, **(kwargs or {}))


def _grouped(rows: Tensor, right: Tensor, ends_L: Tensor, *_: Any) -> Tensor:
    """Empty result of a grouped product: (R, K) rows times (L, K, N), or (M, R) times (R, N) by group."""
    if right.ndim == 3:
        return rows.new_empty(rows.shape[0], right.shape[-1])
    return rows.new_empty(ends_L.shape[0], rows.shape[0], right.shape[-1])


@contextmanager
def _outside_modes() -> Iterator[None]:
    """Context manager in which methods of meshes and DTensor's shape inference run outside all dispatch modes. Methods
    of meshes compute with rank numbers, which fake tensors lack; shape inference uses fake tensors of the global shape,
    which no rank holds and which trackers of storages must not see.
    """
    members: list[tuple[type, str, Any]] = [
        (DeviceMesh, name, member)
        for name, member in vars(DeviceMesh).items()
        if isinstance(member, (FunctionType, staticmethod, property))
    ]
    shapes = "_propagate_tensor_meta_non_cached"
    members.append((ShardingPropagator, shapes, vars(ShardingPropagator)[shapes]))
    for owner, name, member in members:
        setattr(owner, name, _outside(member))
    try:
        yield
    finally:
        for owner, name, member in members:
            setattr(owner, name, member)


def _outside(member: Any) -> Any:
    """Wrap a function, static method or property so that it runs outside all modes."""
    if isinstance(member, staticmethod):
        return staticmethod(_outside(member.__func__))
    if isinstance(member, property):
        return property(_outside(member.fget))

    @wraps(member)
    def call(*arguments: Any, **options: Any) -> Any:
        """Call the function outside all dispatch modes."""
        with _disable_current_modes():
            return member(*arguments, **options)

    return call


def spread_evenly(parts: Iterable[nn.Module]) -> None:
    """Give every expert nearly the same number of token copies in all MoE layers of these model slices, in place.

    Counts of copies are numbers, which fake tensors do not have.
    """
    for part in parts:
        for routed in routers(part):
            exchange = routed.exchange
            if isinstance(exchange, Exchange):
                routed.exchange = _EvenExchange(exchange)
            else:  # all are on this rank
                routed.exchange = lambda rows, counts, run: run(rows, _evenly(rows.shape[0], counts.shape[0]))


class _EvenExchange(Exchange):
    """Exchange of token copies whose sizes need no messages, as all experts get nearly the same number of copies."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.across, exchange.inside)

    def _exchange_sizes(self, rows_RD: Tensor, counts_E: Tensor) -> ExchangeSizes:
        """Sizes of an exchange in which every rank sends every expert nearly the same number of copies."""
        counts = _evenly(rows_RD.shape[0], counts_E.shape[0])
        with _disable_current_modes():
            counts_eL = torch.tensor(counts).view(self.ranks, -1)
            mine_L = counts_eL[dist.get_rank(self.across)]
            arriving_teL = mine_L.expand(self.parts, self.ranks, -1).contiguous()
            sent_rows = counts_eL.sum(-1).tolist()
            sizes = ExchangeSizes.of(sent_rows, arriving_teL, self.place, torch.device("cpu"))
        order = torch.empty(sum(sizes.expert_rows), dtype=torch.long, device=rows_RD.device)
        return replace(sizes, order=order, back=torch.empty_like(order))


def _evenly(copies: int, experts: int) -> list[int]:
    """Number of copies for each expert: nearly equal shares of `copies`, larger ones first."""
    return [copies // experts + (expert < copies % experts) for expert in range(experts)]


_SCALE = 0.02
"""Upper bound of noise from absent ranks, which is never negative as they also send sums of squares."""


class AbsentPeers(Peers):
    """Peers that stand in for absent ranks: vectors and gradients that these would send to this one are noise."""

    def _all_to_all(self, received: Tensor, message: Tensor, counts: Sizes, sizes: Sizes) -> None:
        """Fill `received` with noise, or with zeros if its elements are integers."""
        if received.is_floating_point():
            received.uniform_(0, _SCALE)
        else:
            received.zero_()

    def _reduce_scatter(self, total: Tensor, parts: Tensor) -> None:
        """Fill `total` with this rank's shard of its own `parts`; nothing is added for the absent ranks."""
        copies = parts.clone() if parts.device.type == "cpu" else parts  # gloo adds up in a copy
        total.copy_(copies.view(self.size, -1)[self.rank])

    def _all_gather(self, gathered: Tensor, values: Tensor) -> None:
        """Fill `gathered` with this rank's values in place of every rank's."""
        gathered.view(self.size, -1).copy_(values)


class _KnownRouter(Router):
    """Router that returns drawn ids of all ranks' samples for this rank's slices, in place of received ones."""

    known_bags: dict[Slice, Bags]

    def exchange(self, parts: Parts) -> dict[Slice, Bags]:
        """Exchange ids as usual, but return the drawn ids of all ranks."""
        super().exchange(parts)
        known = self.known_bags.items()
        return {piece: Bags(bags.values.clone(), bags.lengths.clone()) for piece, bags in known}


class _KnownCopies(CopyExchange):
    """Exchange of copied rows that knows which rows the samples of all ranks use."""

    rows: list[Sequence[Tensor]]

    def rows_of_ranks(self, own_rows: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Gather this rank's rows as in a real exchange; return the known rows of all ranks."""
        super().rows_of_ranks(own_rows)
        return [[rows.clone() for rows in rank_rows] for rank_rows in self.rows]


class OtherRanks:
    """Draws the ids that absent ranks of a recommender would send to the rank that runs."""

    def __init__(self, embeddings: Embeddings, clicks: MadeUpClicks) -> None:
        """Replace the exchanges of ids in `embeddings` by exchanges that know the ids of all ranks' `clicks`."""
        self.embeddings, self.clicks = embeddings, clicks
        peers = embeddings.peers
        slices = [part for part in embeddings.slices if part.rank is not None]
        self._router = _KnownRouter(peers, slices, embeddings.samples)
        self._copies = _KnownCopies(peers, embeddings.exchange_dtype, AT_ONCE * embeddings.samples)
        embeddings.router, embeddings.copy_exchange = self._router, self._copies

    def draw(self, step: int) -> None:
        """Draw ids of the samples of all ranks for a step, counted from 0."""
        own_tables = {part.table for part in self.embeddings.holdings}
        table_ids = {table: self._ids(step, table) for table in own_tables}
        self._router.known_bags = {
            part: self._part(part, table_ids[part.table]).split(part.ways)[part.residue]
            for part in self._router.own_slices
        }
        used = [self._rows_by_rank(part, table_ids[part.table]) for part in self.embeddings.copies]
        self._copies.rows = list(zip(*used, strict=True))

    def _ids(self, step: int, table: int) -> Bags:
        """Ids of a table for the samples of all ranks, in rank order."""
        return self.clicks.ids(table, step, 0, self.clicks.global_batch).to(self.embeddings.device)

    def _part(self, part: Slice, bags: Bags) -> Bags:
        """Ids that fall into a slice's part of a table."""
        return ids_of_part(part, self.embeddings.tables[part.table], bags)

    def _rows_by_rank(self, part: Slice, bags: Bags) -> list[Tensor]:
        """Distinct rows of a copied slice that the samples of each rank use."""
        own_bags = self._part(part, bags)
        counts = own_bags.lengths.view(self.embeddings.peers.size, -1).sum(1).tolist()
        return [rows.unique() for rows in cut(own_bags.values, counts)]  # type: ignore[no-untyped-call]
