"""Constants of recommenders: what a stack's executor does, and the rates that a GPU reaches on embedding tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import Efficiency, Factor, Name, Overhead, Spec

_Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class TablePoint(Spec):
    """One measured point."""

    row_bytes: _Amount
    pooling: _Amount = 1.0
    """Rows added up for a vector, on average; below 1 most vectors are empty."""
    efficiency: float = Field(ge=1e-6, le=100, allow_inf_nan=False)
    """Bytes of the price's formula over seconds and memory bandwidth; above 1 where caches hold them."""


class ServedPoint(Spec):
    """Measured seconds of a lookup of one table while serving, at one length of its rows."""

    row_bytes: _Amount
    launch_seconds: Overhead
    """Of a few ids, some of whose rows are not in the cache."""
    hit_seconds: Overhead
    """Of each further id whose row is there."""
    miss_seconds: Overhead
    """Of each further row that is brought up."""


class TableRates(Spec):
    """Efficiencies of an executor's own lookups, sums of gradients and optimizers; every grid is full."""

    lookup: tuple[TablePoint, ...] = Field(min_length=1)
    """Rows, ids and vectors."""
    sums: tuple[TablePoint, ...] = Field(min_length=1)
    """Ids and gradients that are sorted by row and added up."""
    changes: dict[str, tuple[TablePoint, ...]]
    """Optimizer of tables → rows and states, read and written."""
    served: dict[str, tuple[ServedPoint, ...]] = Field(default_factory=dict)
    """What a cache keeps → lookups through it."""
    source: str = ""
    """Where and when they were measured."""

    @model_validator(mode="after")
    def _full_grids(self) -> TableRates:
        for points in (self.lookup, self.sums, *self.changes.values()):
            rows, poolings = ({getattr(one, name) for one in points} for name in ("row_bytes", "pooling"))
            if len({(one.row_bytes, one.pooling) for one in points}) != len(points) or len(points) != len(
                rows
            ) * len(poolings):
                raise ValueError("rates of tables need a point for every row size and pooling, once")
        return self


Count = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
OfRanks = tuple[Count, Count]
"""(operations, more of them for every rank of the exchange); below zero where a kind of tables saves some
that are counted for all."""


class StageOperations(Spec):
    """Operations by stage."""

    index_exchange: OfRanks = (0, 0)
    lookup: OfRanks = (0, 0)
    forward_exchange: OfRanks = (0, 0)
    dense: OfRanks = (0, 0)
    backward_exchange: OfRanks = (0, 0)
    update: OfRanks = (0, 0)

    def of(self, ranks: int) -> tuple[float, ...]:
        """(K,) operations by stage for `ranks` ranks."""
        stages = (
            self.index_exchange,
            self.lookup,
            self.forward_exchange,
            self.dense,
            self.backward_exchange,
            self.update,
        )
        return tuple(each + more * ranks for each, more in stages)


NONE = StageOperations()


class HostOperations(Spec):
    """Operations of a rank, each of which takes the host the seconds of a kernel; those of the dense network beside the
    products and passes that are priced for themselves."""

    step: StageOperations = NONE
    """Whatever is sharded how."""
    layer: StageOperations = NONE
    """Of every layer of the bottom and top network."""
    cross: StageOperations = NONE
    """Of every layer of `dcn-v2`."""
    dot: StageOperations = NONE
    """Of `dot`."""
    dot_table: StageOperations = NONE
    """Of every table that meets in `dot`."""
    table: StageOperations = NONE
    """Of every table on every rank, whichever rank holds it."""
    placed: StageOperations = NONE
    """The same of tables that are not copied."""
    shard: StageOperations = NONE
    """Of every shard, on ranks that hold it."""
    spread: StageOperations = NONE
    """Of every table whose rows lie on all ranks, beside its shard."""
    further_slice: StageOperations = NONE
    """Of every slice of a table but its first, on every rank."""
    copied: StageOperations = NONE
    """Of every copied table."""
    hot: StageOperations = NONE
    """Of every table whose hot rows are copied, beside its shard."""
    copies: StageOperations = NONE
    """Of all copies together."""
    states: dict[str, Count] = Field(default_factory=dict)
    """Optimizer of tables → operations of the update of every shard and copy beside SGD's."""
    served: dict[str, Count] = Field(default_factory=dict)
    """What a cache keeps → operations of a lookup of one table while serving, some of whose rows are brought up."""


class EmbeddingProfile(Spec):
    """Constants of embedding tables on one GPU; the defaults are documented estimates, not fitted."""

    kind: Literal["embedding-profile"] = "embedding-profile"
    name: Name = "datasheet"
    gpu: Name = "any"
    """The GPU; `any`: all that have no profile of their own."""
    also_for: tuple[Name, ...] = ()
    """Other GPUs that are taken to reach the same shares."""
    stack: Name = "any"
    lookup_efficiency: float = Field(default=0.8, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of memory bandwidth that reads of long rows in random order reach."""
    half_row_bytes: Annotated[float, Field(ge=0, le=1e5, allow_inf_nan=False)] = 64.0
    """Bytes of a row at which half of that is left: rows come in sectors, and each costs a request."""
    update_efficiency: float = Field(default=0.6, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of memory bandwidth that reading, changing and writing long rows in random order reaches."""
    cache_speedup: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.5
    """Rate at which the last-level cache gives rows that it holds, relative to memory."""
    sort_bytes: Factor = 100.0
    """Bytes of memory that finding the rows of a batch moves for each id: radix sort of key and place, and the run
    lengths (four passes of 24 bytes)."""
    host_efficiency: float = Field(default=0.7, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of the link to host memory that rows read in place reach."""
    link_efficiency: Annotated[float, Efficiency] | None = None
    """Share of the links inside a node that exchanges reach; None: as the hardware profile's collectives do."""
    network_efficiency: Annotated[float, Efficiency] | None = None
    """The same between nodes."""
    gemm_efficiency: Annotated[float, Efficiency] | None = None
    """Rate of the dense network's products, as a share of what the GPU sustains; None: as the hardware profile."""
    kernel_seconds: Overhead | None = 4e-6
    """Seconds that a kernel takes at least; None: as the hardware profile."""
    collective_seconds: Overhead | None = 1.5e-5
    """Start-up of a collective beyond the latency of its links; None: as the hardware profile, and its curves."""
    median_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time on `validated_runs` runs; None where none were compared."""
    validated_runs: int = Field(ge=0, le=10**9, default=0)
    source: str = "Documented estimates, not fitted: expect tens of per cent of error."


class EagerBuffers(Spec):
    """Tensors of a step whose stages follow one another; `cost_models.recommender.prices.memory` says when each is
    there."""

    received_bytes: Factor = 8.0
    """Bytes for each element of the vectors of a GPU's own samples: vectors and gradients, in fp32; casts are added."""
    sent: Factor = 1.0
    """Messages of gradients to GPUs that hold tables, as copies of these vectors."""
    made: Factor = 1.0
    """Vectors that a GPU makes for all samples, and their gradients that come to it, as copies of them."""
    touched_row_bytes: Factor = 8.0
    """Bytes beside its gradient of every row that is touched."""
    sort_bytes: Factor = 32.0
    """Bytes for each id while gradients of rows are added up: ids and their order, bags in either order."""
    pieces: Factor = 8.0
    """Gradients of copied rows that are gathered at once: as many as so many GPUs' samples have vectors."""
    summed: Factor = 3.0
    """Copies of the dense network while its gradients are summed: weights, gradients in one, and those of all GPUs."""

    @model_validator(mode="before")
    @classmethod
    def _of_releases_before(cls, given: Any) -> Any:
        """Accept plan files of earlier releases, which list two copies that are no longer made."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in ("gathered", "alone")}


class RecommenderStack(Spec):
    """How a training stack executes sharded tables beside a dense network."""

    exchanges_ids: bool = True
    """Whether ids travel to the GPUs that hold their rows; False: every GPU reads the ids that it needs."""
    index_collectives: Factor = 1.0
    """Collectives in which ids travel, one after another."""
    copy_collectives: Overhead = 0.0
    """Collectives in which gradients of copied rows are summed, beside those of the backward exchange."""
    reduction_collectives: Factor = 1.0
    """Collectives in which gradients of the dense network are summed."""
    operations: HostOperations | None = None
    """Operations that the host launches one after another; None: few, of all tables together."""
    cast_operations: HostOperations | None = None
    """More of them where training is in 16 bits: casts."""
    id_bytes: Factor = 8.0
    """Bytes of an id."""
    length_bytes: Factor = 4.0
    """Bytes of the number of ids of a sample and table, which travel beside them where that number varies."""
    sends_all_lengths: bool = False
    """Whether these numbers travel of every vector that samples get, also where each has one id."""
    copies_reduce: Literal["all", "touched", "least"] = "least"
    """Gradients of copied tables that are summed: of all rows (all-reduce), of the rows that were touched
    (all-gather), or whatever moves less."""
    rows_send: Literal["sums", "vectors"] = "sums"
    """What GPUs that share a table's rows send for a sample: the sum over what they hold (reduce-scatter), or vectors
    of the ids that they received (all-to-all)."""
    copies_hot_rows: bool = False
    """Whether every GPU can have a copy of the rows of a table that are used most, and the rest be sharded."""
    hierarchical: bool = False
    """Whether exchanges between nodes go in two steps, inside nodes and between GPUs of one place in all nodes."""
    hides_ids: bool = False
    """Whether the ids of the next step travel behind this one."""
    unique_ids: bool = False
    """Whether each GPU requests and receives a row once, however many of its samples have its id."""
    hides_bottom: bool = True
    """Whether the bottom network runs behind the exchanges."""
    hides_reduction: bool = True
    """Whether gradients of the dense network are summed behind the tables' update."""
    hides_weight_gradients: bool = False
    """Whether weight gradients of the dense network are computed behind the tables' backward exchange and update."""
    updates_whole_tables: bool = False
    """Whether the optimizer goes through all rows of a table in every step, as Adam does where moments of rows that
    were not used decay too."""
    forward_passes: Factor = 2.0
    """Times that an element of a layer's output is read or written beside its products: bias and activation in one
    kernel."""
    backward_passes: Factor = 3.0
    """The same backward: the gradient through the activation, and the bias's."""
    interaction_passes: Factor = 4.0
    """Times that the numbers that enter the interaction are read or written beside its products, both ways."""
    step_seconds: Overhead = 2e-4
    """Fixed seconds of a step: batches handed over, launches that nothing hides."""
    sample_seconds: Overhead = 0.0
    """Seconds in which a host hands over one sample of its GPUs: reads it, sorts its ids by table, copies it."""
    tf32: bool = False
    """Whether products in fp32 run on tensor cores in TF32 where there are any."""
    input_buffers: Factor = 2.0
    """Copies of a batch's ids that the device holds: of this step, of the next."""
    ids_everywhere: bool = False
    """Whether every GPU has room for the ids of the whole batch, whichever it holds rows of."""
    host_tables: bool = True
    """Whether tables can lie in host memory, with a cache on the device or without."""
    cached_rows_on_host: bool = True
    """Whether rows that the device caches keep their place in host memory, too."""
    output_buffers: Factor = 1.0
    """Copies of the vectors that a GPU makes, and of those that it receives, in each pass."""
    eager_buffers: EagerBuffers | None = None
    """In place of that, what is alive at each moment where stages follow one another in eager mode; None: all is
    there at once."""
    gradient_row_bytes: Factor = 0.0
    """Bytes that the device holds for each element of the rows of a batch while it updates."""
    table_element_bytes: Factor = 0.0
    """Bytes that the device holds for each element of a table beside weight and states."""
    hash_entry_bytes: Factor = 16.0
    """Bytes of an entry of a hash table beside its vector: key and place, int64 each."""
    hash_load: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the entries of a hash table that are filled when all rows are there."""
    keys_on_device: bool = False
    """Whether the hash table of rows in host memory lies on the device all the same."""
    dense_state_bytes: Factor = 12.0
    """Bytes for each parameter of the dense network: weight, gradient and what mixed precision adds. States of its
    optimizer are counted beside it."""
    activation_bytes: Factor = 2.0
    """Tensors of a dense layer's output that live until the backward pass, in elements: the output, its gradient."""
    workspace_bytes: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 1.0e9
    """Device memory beside all that: context, libraries."""
    communicator_bytes: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0.4e9
    """Device memory of communicators where there are several GPUs."""
