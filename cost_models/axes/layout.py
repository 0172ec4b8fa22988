"""Parallel layout of a model: degrees and switches, written `tp8 pp16 vpp2 dp8 mbs1 zero1 sp
recompute=selective` everywhere.

The fields of `Layout` are the axes, in the order of the notation; the annotation of each says how it is written and
parsed.

`order` names the mesh axes from the inside out: with `tp-cp-dp-pp` tensor-parallel ranks are neighbours,
context ranks are tp apart, data ranks tp · cp, pipeline ranks tp · cp · dp. tp is always innermost:
docs/concepts/communication.md. Axes of degree one do not matter: with cp1 `tp-cp-dp-pp`
and `tp-dp-cp-pp` give every rank the same place, and the first such order of `ORDERS` is canonical.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, model_validator

from cost_models.arrays import Ints
from cost_models.axes.stages import StageRecompute, policies_in
from cost_models.axes.words import EVERY, MAX_STAGES, Choice, Counts, Number, PerStage, Subset, Switch, Word
from cost_models.base import MAX_GPUS, POOL_NAME, CheckedSpec, GpuCount, PositiveInt
from cost_models.documents import printable, show_key, spec_problems
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.schedules.registry import REGISTRY
from cost_models.specs.choices import (
    CONTEXTS,
    DEFAULT_ORDER,
    ORDERS,
    OVERLAPS,
    SCHEDULES,
    Context,
    Order,
    Overlap,
    Recompute,
    Schedule,
)
from cost_models.units import counted

ZERO_STAGES = 4
"""Number of ZeRO stages, counting stage 0 (no sharding) to 3."""
USUAL_RING = 2
"""Default number of device buffers for streamed weights: one block computes from the first while the second
is filled."""
MOST_REPLICAS = 2**16
"""Maximum number of data-parallel replicas for which a layout may name the pools."""


class Offload(NamedTuple):
    """Number of blocks per rank that have each kind of data in host memory or on the drive. `EVERY` means all
    blocks."""

    states: int = 0
    parked: int = 0
    streamed: int = 0
    activations: int = 0
    drive: int = 0

    @property
    def explicit_blocks(self) -> int:
        """Number of a rank's blocks offloaded by an explicit count in `states`, `parked` or `streamed`."""
        return sum(count for count in self[: len(RESIDENCIES)] if count < EVERY)


Residency = Literal["resident", "states", "parked", "streamed"]
"""Place of a block's states: the device (resident), or one of `RESIDENCIES`."""
RESIDENCIES: tuple[Residency, ...] = ("states", "parked", "streamed")
"""Ways to offload a block's states to host memory. Blocks that are not offloaded have their states on the
device."""
UPDATED_BY_CPU: tuple[Residency, ...] = ("states", "streamed")
"""Ways to offload a block's states in which the CPU updates the states. Only such states may be on the
drive."""
NOWHERE = Offload()


OUTERMOST_REPLICAS: Order = "tp-cp-pp-dp"
"""Order of mesh axes with dp outermost (Megatron's alternative). Each replica is then on neighbouring ranks
and can lie in one pool."""
MESH_AXES = ("cp", "dp", "pp")
"""Mesh axes other than tp, which is innermost in every order."""


_SPLIT = [{axis for bit, axis in enumerate(MESH_AXES) if bits >> bit & 1} for bits in range(8)]
"""Sets of mesh axes with a degree above one. The bits of a set's index, from the lowest, say whether cp, dp and
pp are in it."""
_SEATS = [[tuple(axis for axis in order.split("-") if axis in split) for order in ORDERS] for split in _SPLIT]
"""Mesh axes of each of `_SPLIT`, in the order of each of `ORDERS`."""
_FIRST_SEATS = np.array([[seats.index(seat) for seat in seats] for seats in _SEATS], dtype=np.int64)
"""(8, orders) results of `same_seats`, a row for each of `_SPLIT`."""
PLACES = np.array([[order.index(axis) for axis in MESH_AXES] for order in ORDERS], dtype=np.int64)
"""(orders, 3) positions of cp, dp and pp in each order of the mesh axes. Smaller is further inside."""


Degree = Ints | int
"""Parallel degree of one layout, or of many, (N,)."""


def same_seats(cp: Degree, dp: Degree, pp: Degree, order: Degree | slice = slice(None)) -> Ints:
    """Index of the first order of mesh axes that places ranks as `order` does, (N,). Without `order`, this
    index for every order, (N, orders) or (orders,). Orders place ranks equally if they differ only in axes of
    degree 1."""
    return np.asarray(_FIRST_SEATS[(cp > 1) + 2 * (dp > 1) + 4 * (pp > 1), order])


def canonical_order(order: Order, cp: int, dp: int, pp: int) -> Order:
    """First order in `ORDERS` that places ranks as the given order of mesh axes does, on a mesh of these
    degrees."""
    return ORDERS[int(same_seats(cp, dp, pp, ORDERS.index(order)))]


def usual_schedule(vpp: int) -> Schedule:
    """Default pipeline schedule of a layout with `vpp` chunks per rank."""
    return "interleaved" if vpp != 1 else "1f1b"


_ZERO = Number(low=0, simplest=0, high=ZERO_STAGES - 1, outside=f"ZeRO has stages 0 to {ZERO_STAGES - 1}")
_Pool = Annotated[str, Field(pattern=POOL_NAME)]


class Layout(CheckedSpec):
    """Split of one model over tp × cp × pp × dp ranks, with a field for each parallel axis. Fields are in the
    order of the notation, with the kind of word that writes them (by default `Number`).

    Without `layers` the blocks are not yet placed on stages (evenly where they divide, else by the planner);
    with `layers` the layout determines a step's cost.
    """

    tp: GpuCount = 1
    """Tensor-parallel degree."""
    pp: GpuCount = 1
    """Pipeline-parallel degree: number of pipeline ranks."""
    vpp: PositiveInt = 1
    """Number of model chunks (virtual stages) per pipeline rank."""
    cp: GpuCount = 1
    """Context-parallel degree: ranks that share one sequence, each with a part of its tokens."""
    dp: GpuCount = 1
    """Data-parallel degree."""
    ep: GpuCount = 1
    """Expert-parallel degree: ranks that share the experts of a mixture, taken from tp × cp × dp."""
    etp: GpuCount | None = None
    """Tensor-parallel degree inside an expert. None: as `tp`."""
    mbs: GpuCount = 1
    """Microbatch size, in sequences."""
    zero: Annotated[int, Field(ge=0, le=ZERO_STAGES - 1), _ZERO] = 0
    """ZeRO stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also parameters, over `shard`
    ranks."""
    shard: GpuCount | None = None
    """Number of ranks that ZeRO shards over. Fewer than dp × cp is hybrid sharding, with replicas of each
    shard. None: all dp × cp."""
    sp: Annotated[bool, Switch()] = False
    """Megatron sequence parallelism: activations outside tensor-parallel regions are split along the sequence
    over tp ranks."""
    schedule: Annotated[Schedule, Choice(SCHEDULES)] = "1f1b"
    """Pipeline schedule, by default `interleaved` if vpp > 1, else `1f1b`."""
    order: Annotated[Order, Choice(ORDERS)] = DEFAULT_ORDER
    """Mesh axes from neighbouring ranks outwards. Among orders that differ only in axes of degree one, the
    first is used."""
    context: Annotated[Context | None, Choice(CONTEXTS)] = None
    """Method by which context-parallel ranks exchange keys and values. None: the stack's default, or cp is
    1."""
    recompute: Annotated[tuple[StageRecompute, ...], PerStage()] = ("none",)
    """Activation recompute policy, or mix of policies, of virtual stages. One entry is for all stages; else
    there is one for each in model order."""
    offload: Annotated[Offload, Counts(Offload._fields)] = NOWHERE
    """Blocks of every rank whose states, weights or activations are in host memory."""
    ring: Annotated[PositiveInt, Number(sign="=", simplest=USUAL_RING)] = USUAL_RING
    """Number of device buffers for blocks' streamed weights, including buffers that are being filled."""
    overlap: Annotated[tuple[Overlap, ...] | None, Subset(OVERLAPS)] = None
    """Axes whose communication overlaps compute. None: the stack's default."""
    layers: Annotated[tuple[int, ...], PerStage(int)] = ()
    """Number of blocks of each virtual stage in model order (pp × vpp entries). Empty: not placed yet."""
    pools: Annotated[tuple[_Pool, ...], PerStage()] = ()
    """Name of each pipeline rank's pool, on a cluster of several pools. Empty: only one pool, or not chosen
    yet."""
    replicas: Annotated[tuple[_Pool, ...], PerStage(high=MOST_REPLICAS)] = ()
    """Name of each replica's pool (dp entries), on a cluster of several pools whose replicas each lie within
    one pool."""

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, data: Any) -> Any:
        """Add defaults of omitted fields that depend on given fields, such as the schedule, which depends on
        `vpp`."""
        if not isinstance(data, dict):
            return data
        implied: dict[str, Any] = {"schedule": usual_schedule(data.get("vpp", 1))}
        if data.get("schedule") in list(REGISTRY):
            fewest, max_chunks = REGISTRY[data["schedule"]].chunks
            implied |= {"vpp": fewest} if fewest == max_chunks else {}
        if isinstance(replicas := data.get("replicas"), (list, tuple)) and replicas:
            implied |= {"dp": len(replicas), "order": OUTERMOST_REPLICAS}
        return implied | data

    @model_validator(mode="after")
    def _canonical(self) -> Layout:
        """Replace values that mean the same by one canonical value, such as an `etp` equal to tp by None."""
        ranks = {"tp": self.tp, "pp": self.pp, "dp": self.data_ranks}
        overlap = None if max(ranks.values()) == 1 else self.overlap
        canonical = {
            "etp": None if self.etp == self.tp else self.etp,
            "shard": None if self.shard == self.data_ranks else self.shard,
            "order": canonical_order(self.order, self.cp, self.dp, self.pp),
            "context": None if self.cp == 1 else self.context,
            "recompute": self.recompute[:1] if len(set(self.recompute)) == 1 else self.recompute,
            "ring": self.ring if self.offload.streamed else USUAL_RING,
            "overlap": overlap and tuple(axis for axis in overlap if ranks[axis] > 1),
        }
        for name, value in canonical.items():
            object.__setattr__(self, name, value)
        return self

    def contradictions(self) -> dict[str, object]:
        """Possible error messages about contradictory fields, each with a value that is true if the layout
        has this fault."""
        gpus, stages, of_stages = self.num_gpus, self.num_stages, f"; the layout has {self.num_stages}"
        lists = (self.recompute, self.layers, self.pools, self.replicas)
        recomputed, num_sizes, pools, replicas = map(len, lists)
        whole_parts = [part for part in RESIDENCIES if getattr(self.offload, part) >= EVERY]
        runs_chunks = REGISTRY[self.schedule].runs_chunks(self.vpp)
        too_deep = f"{stages:,} stages are more than any model has blocks for"
        most_pools = f"{MOST_REPLICAS:,} are the most that lie in different pools"
        return {
            f"{gpus:,} GPUs are more than there are; {MAX_GPUS:,} are the most": gpus > MAX_GPUS,
            f"{too_deep}; {MAX_STAGES:,} are the most": stages > MAX_STAGES,
            f"schedule {self.schedule} does not go with vpp{self.vpp}": not runs_chunks,
            f"recompute names {counted(recomputed, 'stage')}{of_stages}": recomputed not in (1, stages),
            f"offload names {' and '.join(whole_parts)} of every block": len(whole_parts) > 1,
            f"layers names {counted(num_sizes, 'stage')}{of_stages}": num_sizes not in (0, stages),
            "layers must not be negative": any(count < 0 for count in self.layers),
            f"pools names {counted(pools, 'rank')}; the pipeline has {self.pp}": pools not in (0, self.pp),
            "`pools` says where stages lie, `replicas` where whole replicas do: one of them": replicas
            and pools,
            f"replicas names {replicas:,}; {most_pools}": replicas > MOST_REPLICAS,
            f"replicas names {counted(replicas, 'replica')}; dp is {self.dp}": replicas not in (0, self.dp),
        }

    @property
    def num_gpus(self) -> int:
        """Number of ranks (GPUs) that the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def data_ranks(self) -> int:
        """Number of ranks with the same parameters (except experts) and different tokens, dp × cp."""
        return self.dp * self.cp

    @property
    def sequence_ranks(self) -> str:
        """Text that lists the parallel degrees that split a sequence, such as "cp2 x tp4"."""
        return f"cp{self.cp} x tp{self.tp}" if self.cp > 1 else f"tp{self.tp}"

    @property
    def shard_group(self) -> int:
        """Effective number of ranks that ZeRO shards over: `shard` or else dp × cp."""
        return self.shard or self.data_ranks

    @property
    def expert_tp(self) -> int:
        """Effective tensor-parallel degree inside an expert: `etp` or else tp."""
        return self.etp or self.tp

    @property
    def num_stages(self) -> int:
        """Number of virtual stages, pp × vpp. Stage k is chunk k div pp of the rank that
        `PipelineSchedule.rank_of_stage` gives."""
        return self.pp * self.vpp

    @property
    def pools_field(self) -> str:
        """Name of the field (`replicas` or `pools`) that assigns the layout's ranks to pools; empty if
        neither does."""
        return next((name for name in ("replicas", "pools") if getattr(self, name)), "")

    def resolve(self, axis: str) -> Any:
        """Effective value of an axis, also if the layout omits it: `etp` is then tp, and `shard` dp × cp."""
        return getattr(self, RESOLVED_AS.get(axis, axis))

    @property
    def stage_recompute(self) -> tuple[str, ...]:
        """Recompute policy, or mix of policies, of each virtual stage."""
        return self.recompute * self.num_stages if len(self.recompute) == 1 else self.recompute

    @property
    def policies(self) -> tuple[Recompute, ...]:
        """Distinct recompute policies of the layout's blocks."""
        return tuple(dict.fromkeys(policy for mix in self.recompute for policy in policies_in(mix)))

    def microbatches(self, global_batch: int) -> int:
        """Number of microbatches per pipeline and step, global batch / (mbs × dp), rounded down. With
        `replicas` in several pools it is the mean over pipelines."""
        return global_batch // (self.mbs * self.dp)

    @property
    def brief(self) -> str:
        """Short notation of the layout for people, without `layers` if all stages have equally many blocks."""
        return str(self.model_copy(update={"layers": ()}) if len(set(self.layers)) == 1 else self)

    def stride(self, axis: str) -> int:
        """Difference in rank between neighbours along a mesh axis."""
        order = self.order.split("-")
        return math.prod(getattr(self, inner) for inner in order[: order.index(axis)])

    def place_along(self, axis: str, rank: int) -> int:
        """Index of a rank along a mesh axis, counted from 0."""
        return int(rank // self.stride(axis) % getattr(self, axis))

    def __str__(self) -> str:
        unwritten = _UNWRITTEN | {"schedule": usual_schedule(self.vpp)}
        values = [(name, getattr(self, name)) for name in AXES]
        return " ".join(AXES[name].write(name, value) for name, value in values if value != unwritten[name])


AXES: dict[str, Word] = {
    name: next((part for part in field.metadata if isinstance(part, Word)), Number())
    for name, field in Layout.model_fields.items()
}
"""Kind of word that writes and parses each axis, by axis name, in the order of the layout notation."""

RESOLVED_AS = {"etp": "expert_tp", "shard": "shard_group"}
"""Name of the `Layout` property with the effective value of each axis whose default is another axis's value."""
_UNWRITTEN = {name: field.default for name, field in Layout.model_fields.items()}
_UNWRITTEN |= dict.fromkeys(("tp", "pp", "dp", "mbs", "zero"))
"""Value at which each axis is omitted from the notation, by axis name; None: it is always written."""

MAX_WORDS = 100
"""Maximum number of words in a layout's text, five times the number of axes."""


def parse_layout(text: str) -> Layout:
    """Parse a layout from text in its notation, and report all invalid words at once.

    Raises:
        InputError: unknown or repeated words, or words that contradict one another.
    """
    fields, problems, words = dict[str, Any](), list[Problem](), text.split()
    if not words:
        problems.append(Problem("", "it says nothing"))
    if len(words) > MAX_WORDS:
        problems.append(Problem("", f"it has {len(words):,} words; {MAX_WORDS} are more than a layout needs"))
    for word in words[:MAX_WORDS]:
        name = word.partition("=")[0] if "=" in word else word.rstrip("0123456789")
        try:
            value = AXES[name].read(word[len(name) :]) if name in AXES else None
        except ValueError as error:
            problems.append(Problem(f"`{name}`", str(error)))
            continue
        if value is None:
            short = printable(word, limit=60)
            axis_words = [f"{axis}{kind.sign}" for axis, kind in AXES.items()]
            problems.append(Problem(f"`{short}`", f"not part of a layout{did_you_mean(short, axis_words)}"))
            continue
        if name in fields:
            problems.append(Problem(f"`{printable(word)}`", f"`{name}` is given twice"))
        fields[name] = value
    unlisted = 0
    try:
        layout = Layout.model_validate(fields)
    except ValidationError as error:
        errors, unlisted = spec_problems(error, Layout)
        problems += [Problem(f"`{show_key(place)}`" if place else "", what) for place, what in errors.items()]
    if problems:
        hint = "write it like `tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective`"
        raise InputError(f"`{printable(text)}` is not a layout", problems=problems, more=unlisted, hint=hint)
    return layout


COMPARED = tuple(name for name in AXES if name not in ("dp", "layers", "pools", "replicas"))
"""Names of the axes that a comparison of layouts may show as different. dp, layers and pools follow from the
others and the number of GPUs."""
DEFAULT = "usual"
"""Word that comparisons show for an axis's default value."""


def axes_that_differ(first: Layout, second: Layout) -> tuple[str, ...]:
    """Names of the axes whose values differ between two layouts, in the order of the layout notation."""
    return tuple(name for name in COMPARED if axis_value(name, first) != axis_value(name, second))


def axis_value(name: str, layout: Layout) -> str:
    """Value of a layout's axis as one word for comparisons, such as "8" or "interleaved"; for recompute the
    policies in use, without counts."""
    value = getattr(layout, name)
    if name == "recompute":
        used = {mix.partition(":")[0] for mix in layout.stage_recompute} - {"none"}
        return "+".join(sorted(used)) or "none"
    if value is None or name == "ring":  # `ring` only sets how far ahead weights are fetched
        return DEFAULT
    if name == "schedule" and value == usual_schedule(layout.vpp):
        return DEFAULT  # a default that follows from vpp
    if name == "offload":
        return "/".join(part for part, count in value._asdict().items() if count) or "none"
    return ",".join(value) or "none" if name == "overlap" else str(value)
