"""Constants of recommenders: the behaviour of a stack's executor, and a GPU's rates on embedding tables."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import Efficiency, Factor, Name, Overhead, Spec

_Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class TablePoint(Spec):
    """Measured efficiency of an embedding table operation at one row size and pooling."""

    row_bytes: _Amount
    pooling: _Amount = 1.0
    """Mean rows added up for a vector; below 1 most vectors are empty."""
    efficiency: float = Field(ge=1e-6, le=100, allow_inf_nan=False)
    """Bytes by the price's formula / (seconds × memory bandwidth); above 1 where caches hold the rows."""


class ServedPoint(Spec):
    """Measured seconds of looking up one table through a cache during serving, at one row size."""

    row_bytes: _Amount
    launch_seconds: Overhead
    """Seconds of a lookup of a few ids, with some rows missing in the cache."""
    hit_seconds: Overhead
    """Seconds of each further id whose row is cached."""
    miss_seconds: Overhead
    """Seconds of each further row that is fetched into the cache."""


class TableRates(Spec):
    """Measured efficiencies of an executor's embedding lookups, gradient sums and optimizer updates. Every grid
    of points is complete."""

    lookup: tuple[TablePoint, ...] = Field(min_length=1)
    """Efficiency of lookups: rows, ids and vectors."""
    sums: tuple[TablePoint, ...] = Field(min_length=1)
    """Efficiency of sorting ids by row and adding up their gradients."""
    changes: dict[str, tuple[TablePoint, ...]]
    """Optimizer of tables → efficiency of reading and writing rows and states."""
    served: dict[str, tuple[ServedPoint, ...]] = Field(default_factory=dict)
    """Contents of a cache → lookups through it."""
    source: str = ""
    """Place and time of the measurement."""

    @model_validator(mode="after")
    def _full_grids(self) -> TableRates:
        """Check that rates have a point for every pair of row size and pooling."""
        for points in (self.lookup, self.sums, *self.changes.values()):
            rows, poolings = {one.row_bytes for one in points}, {one.pooling for one in points}
            if sorted((one.row_bytes, one.pooling) for one in points) != sorted(product(rows, poolings)):
                raise ValueError("rates of tables need a point for every row size and pooling, once")
        return self


Count = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
OfRanks = tuple[Count, Count]
"""(operations, further operations per rank of the exchange); negative for a kind of tables that saves
operations counted for all."""


class StageOperations(Spec):
    """Number of host operations (kernel launches) in a step, by stage of the step."""

    index_exchange: OfRanks = (0, 0)
    lookup: OfRanks = (0, 0)
    forward_exchange: OfRanks = (0, 0)
    dense: OfRanks = (0, 0)
    backward_exchange: OfRanks = (0, 0)
    update: OfRanks = (0, 0)

    def of(self, ranks: int) -> tuple[float, ...]:
        """Number of host operations in each of K stages of a step on `ranks` ranks, (K,)."""
        return tuple(each + more * ranks for _, (each, more) in self)


NONE = StageOperations()


class HostOperations(Spec):
    """Number of host operations of a rank by cause (table, shard, layer), each of which takes a kernel's launch
    seconds. The dense network's products and element-wise passes are priced separately."""

    step: StageOperations = NONE
    """Operations per step, independent of the sharding."""
    layer: StageOperations = NONE
    """Operations per layer of the bottom and top network."""
    cross: StageOperations = NONE
    """Operations per layer of `dcn-v2`."""
    dot: StageOperations = NONE
    """Operations of `dot`."""
    dot_table: StageOperations = NONE
    """Operations per table that enters `dot`."""
    table: StageOperations = NONE
    """Operations per table on every rank, whichever rank holds it."""
    placed: StageOperations = NONE
    """Operations per table that is not copied, on every rank."""
    shard: StageOperations = NONE
    """Operations per shard, on ranks that hold it."""
    spread: StageOperations = NONE
    """Further operations per table whose rows are spread over all ranks."""
    further_slice: StageOperations = NONE
    """Operations per slice of a table after its first, on every rank."""
    copied: StageOperations = NONE
    """Operations per copied table."""
    hot: StageOperations = NONE
    """Further operations per table with copied hot rows."""
    copies: StageOperations = NONE
    """Operations for all copies together."""
    states: dict[str, Count] = Field(default_factory=dict)
    """Optimizer of tables → operations per update of a shard or copy, in addition to SGD's."""
    served: dict[str, Count] = Field(default_factory=dict)
    """Contents of a cache → operations of a lookup of one table while serving, with some rows fetched into
    the cache."""


class EmbeddingProfile(Spec):
    """Constants of embedding tables on one GPU; the defaults are documented estimates, not fitted."""

    kind: Literal["embedding-profile"] = "embedding-profile"
    name: Name = "datasheet"
    gpu: Name = "any"
    """GPU of the profile; `any`: all without a separate profile."""
    also_for: tuple[Name, ...] = ()
    """Other GPUs that are assumed to reach the same shares."""
    stack: Name = "any"
    lookup_efficiency: float = Field(default=0.8, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of memory bandwidth that random reads of long rows reach."""
    half_row_bytes: Annotated[float, Field(ge=0, le=1e5, allow_inf_nan=False)] = 64.0
    """Row size, bytes, at which half of that share is reached: rows are read in sectors, and each read costs
    a request."""
    update_efficiency: float = Field(default=0.6, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of memory bandwidth that random reads and writes of long rows reach in updates."""
    cache_speedup: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.5
    """Bandwidth of rows in the last-level cache, relative to memory."""
    sort_bytes: Factor = 100.0
    """Bytes of memory traffic per id to sort a batch's ids by row: radix sort of key and place, and the run
    lengths (four passes of 24 bytes)."""
    host_efficiency: float = Field(default=0.7, ge=1e-6, le=1.5, allow_inf_nan=False)
    """Share of the link to host memory that in-place reads of rows reach."""
    link_efficiency: Annotated[float, Efficiency] | None = None
    """Share of the intra-node bandwidth that exchanges reach; None: as the hardware profile's collectives."""
    network_efficiency: Annotated[float, Efficiency] | None = None
    """Share of the inter-node bandwidth that exchanges reach; None: as the hardware profile's collectives."""
    gemm_efficiency: Annotated[float, Efficiency] | None = None
    """Rate of the dense network's products, as a share of the GPU's sustained rate; None: as the hardware
    profile."""
    kernel_seconds: Overhead | None = 4e-6
    """Minimum seconds of a kernel; None: as the hardware profile."""
    collective_seconds: Overhead | None = 1.5e-5
    """Start-up seconds of a collective in addition to link latency; None: as the hardware profile, and its
    curves."""
    median_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time on `validated_runs` runs; None where none were compared."""
    validated_runs: int = Field(ge=0, le=10**9, default=0)
    source: str = "Documented estimates, not fitted: expect tens of per cent of error."


class EagerBuffers(Spec):
    """Sizes of the tensors alive in a recommender's training step whose stages run one after another in eager
    mode. `cost_models.recommender.memory` defines their lifetimes."""

    received_bytes: Factor = 8.0
    """Bytes per element of the vectors of a GPU's own samples: vectors and gradients in fp32; casts are
    added."""
    sent: Factor = 1.0
    """Messages of gradients to GPUs that hold tables, in copies of these vectors."""
    made: Factor = 1.0
    """Vectors that a GPU makes for all samples, and their received gradients, in copies of these vectors."""
    touched_row_bytes: Factor = 8.0
    """Bytes per touched row, in addition to its gradient."""
    sort_bytes: Factor = 32.0
    """Bytes per id while gradients of rows are added up: ids and their order, bags in either order."""
    pieces: Factor = 8.0
    """Gradients of copied rows gathered at once, in units of the vectors of one GPU's samples."""
    summed: Factor = 3.0
    """Copies of the dense network while its gradients are summed: weights, joined gradients, and those of all
    GPUs."""

    @model_validator(mode="before")
    @classmethod
    def _of_releases_before(cls, fields: Any) -> Any:
        """Accept plan files of earlier releases by dropping two fields that no longer exist."""
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if name not in ("gathered", "alone")}


class RecommenderStack(Spec):
    """How a training stack executes the sharded embedding tables and dense network of a recommender."""

    exchanges_ids: bool = True
    """Whether ids travel to the GPUs that hold their rows; False: every GPU reads the ids that it needs."""
    index_collectives: Factor = 1.0
    """Number of consecutive collectives that exchange ids."""
    copy_collectives: Overhead = 0.0
    """Number of collectives that sum gradients of copied rows, in addition to those of the backward
    exchange."""
    reduction_collectives: Factor = 1.0
    """Number of collectives that sum gradients of the dense network."""
    operations: HostOperations | None = None
    """Host operations, launched one after another; None: few, for all tables together."""
    cast_operations: HostOperations | None = None
    """Further host operations for casts when training in 16 bits."""
    id_bytes: Factor = 8.0
    """Bytes of an id."""
    length_bytes: Factor = 4.0
    """Bytes of the number of ids per sample and table, sent with the ids where it varies."""
    sends_all_lengths: bool = False
    """Whether the numbers of ids are sent for every vector, even if each has one id."""
    copies_reduce: Literal["all", "touched", "least"] = "least"
    """Gradients of copied tables that are summed: of all rows (all-reduce), of touched rows (all-gather), or
    whichever moves fewer bytes."""
    rows_send: Literal["sums", "vectors"] = "sums"
    """Vectors that GPUs sharing a table's rows send per sample: the sum over their rows (reduce-scatter), or
    the vectors of the ids that they received (all-to-all)."""
    copies_hot_rows: bool = False
    """Whether every GPU can hold a copy of a table's most used rows while the rest is sharded."""
    hierarchical: bool = False
    """Whether exchanges between nodes have two steps: inside nodes, then between GPUs of the same index in
    all nodes."""
    hides_ids: bool = False
    """Whether the exchange of the next step's ids overlaps this step."""
    unique_ids: bool = False
    """Whether each GPU requests and receives a row only once, however many of its samples use it."""
    hides_bottom: bool = True
    """Whether the bottom network overlaps the exchanges."""
    hides_reduction: bool = True
    """Whether summing the dense network's gradients overlaps the tables' update."""
    hides_weight_gradients: bool = False
    """Whether weight gradients of the dense network overlap the tables' backward exchange and update."""
    updates_whole_tables: bool = False
    """Whether the optimizer updates all rows of a table in every step, as Adam does if moments of unused rows
    decay too."""
    forward_passes: Factor = 2.0
    """Reads and writes per element of a layer's output, in addition to products: bias and activation in one
    kernel."""
    backward_passes: Factor = 3.0
    """Reads and writes per element in the backward pass: gradients of the activation and the bias."""
    interaction_passes: Factor = 4.0
    """Reads and writes per element that enters the interaction, in addition to products, both passes
    together."""
    step_seconds: Overhead = 2e-4
    """Fixed seconds of a step: hand-over of batches, launches that nothing hides."""
    sample_seconds: Overhead = 0.0
    """Host seconds per sample of its GPUs: reading, sorting ids by table, copying."""
    tf32: bool = False
    """Whether products in fp32 run on tensor cores in TF32 where there are any."""
    input_buffers: Factor = 2.0
    """Copies of a batch's ids on the device, such as this step's and the next's."""
    ids_everywhere: bool = False
    """Whether every GPU reserves room for the ids of the entire batch, whichever rows it holds."""
    host_tables: bool = True
    """Whether tables can be in host memory, with or without a cache on the device."""
    cached_rows_on_host: bool = True
    """Whether rows cached on the device also keep their place in host memory."""
    output_buffers: Factor = 1.0
    """Copies of the vectors that a GPU makes, and of those that it receives, in each pass."""
    eager_buffers: EagerBuffers | None = None
    """Replaces `output_buffers` where stages run one after another in eager mode: tensors alive at each
    moment; None: all tensors exist at once."""
    gradient_row_bytes: Factor = 0.0
    """Device bytes per element of the rows of a batch during the update."""
    table_element_bytes: Factor = 0.0
    """Device bytes per element of a table, in addition to weight and states."""
    hash_entry_bytes: Factor = 16.0
    """Bytes of a hash table's entry, in addition to its vector: key and place, int64 each."""
    hash_load: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a hash table's entries that are filled when all rows are present."""
    keys_on_device: bool = False
    """Whether the hash table of rows in host memory is on the device."""
    dense_state_bytes: Factor = 12.0
    """Bytes per parameter of the dense network: weight, gradient and additions of mixed precision. Optimizer
    states are counted separately."""
    activation_bytes: Factor = 2.0
    """Tensors of a dense layer's output that live until the backward pass, in elements: the output, its
    gradient."""
    workspace_bytes: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 1.0e9
    """Further device memory, bytes: context, libraries."""
    communicator_bytes: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0.4e9
    """Device memory of communicators if there are several GPUs, bytes."""
