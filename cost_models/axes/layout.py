"""One layout: degrees and switches, written `tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective` everywhere.

The fields of `Layout` are the table of axes, in the order of the notation: `AXES`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from cost_models.axes.axis import Axis, Price, loaded
from cost_models.axes.context import CONTEXT, CP
from cost_models.axes.data import DP, MBS, SHARD, ZERO, ZERO_STAGES
from cost_models.axes.expert import EP, ETP
from cost_models.axes.offload import NOWHERE, OFFLOAD, USUAL_RING, Offload
from cost_models.axes.offload.ring import RING
from cost_models.axes.order import ORDER
from cost_models.axes.overlap import OVERLAP
from cost_models.axes.pipeline import LAYERS, POOLS, PP, SCHEDULE, VPP
from cost_models.axes.recompute import RECOMPUTE, StageRecompute
from cost_models.axes.replicas import REPLICAS
from cost_models.axes.rule import Rule
from cost_models.axes.tensor import SP, TP
from cost_models.axes.words import MAX_STAGES
from cost_models.base import MAX_GPUS, POOL_NAME, GpuCount, PositiveInt, Spec
from cost_models.documents import printable, show_key
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.spec_problems import spec_problems
from cost_models.specs.choices import DEFAULT_ORDER, Context, Order, Overlap, Schedule


class Layout(Spec):
    """How one model is split over tp × cp × pp × dp ranks.

    Without `layers` the blocks are still to be placed on stages (evenly where they divide, else by the planner);
    with it the layout says everything a step's cost depends on.
    """

    tp: Annotated[GpuCount, TP] = 1
    """Tensor-parallel degree t."""
    pp: Annotated[GpuCount, PP] = 1
    """Pipeline-parallel degree p (ranks)."""
    vpp: Annotated[PositiveInt, VPP] = 1
    """Model chunks per pipeline rank v (virtual stages per rank)."""
    cp: Annotated[GpuCount, CP] = 1
    """Context-parallel degree: the ranks that share one sequence, each with its part of the tokens."""
    dp: Annotated[GpuCount, DP] = 1
    """Data-parallel degree d."""
    ep: Annotated[GpuCount, EP] = 1
    """Expert-parallel degree: the ranks that share the experts of a mixture, taken from tp × cp × dp."""
    etp: Annotated[GpuCount | None, ETP] = None
    """Tensor-parallel degree inside an expert; None: tp."""
    mbs: Annotated[GpuCount, MBS] = 1
    """Sequences in one microbatch, b."""
    zero: Annotated[int, Field(ge=0, le=ZERO_STAGES - 1), ZERO] = 0
    """ZeRO stage: 0 replicas, 1 shards optimizer states, 2 and gradients, 3 and parameters, over `shard` ranks."""
    shard: Annotated[GpuCount | None, SHARD] = None
    """Ranks that ZeRO shards over (hybrid sharding: replicas of such groups); None: all dp × cp of them."""
    sp: Annotated[bool, SP] = False
    """Megatron sequence parallelism: the regions outside tensor parallelism are split along the sequence."""
    schedule: Annotated[Schedule, SCHEDULE] = "1f1b"
    """Pipeline schedule; where it is not named `interleaved` with vpp > 1, else `1f1b`."""
    order: Annotated[Order, ORDER] = DEFAULT_ORDER
    """Mesh axes from neighbouring ranks outwards; of orders that differ in axes of degree one only, the first."""
    context: Annotated[Context | None, CONTEXT] = None
    """How context-parallel ranks exchange keys and values; None: as the software stack does it, and where cp is 1."""
    recompute: Annotated[tuple[StageRecompute, ...], RECOMPUTE] = ("none",)
    """One policy or mix of policies for all virtual stages, or one for each in model order."""
    offload: Annotated[Offload, OFFLOAD] = NOWHERE
    """Blocks of every rank whose states, weights or activations live in host memory."""
    ring: Annotated[PositiveInt, RING] = USUAL_RING
    """Blocks whose streamed weights are on the device at a time, buffers that are being filled among them."""
    overlap: Annotated[tuple[Overlap, ...] | None, OVERLAP] = None
    """Axes whose communication runs behind compute; None: as the software stack always does it."""
    layers: Annotated[tuple[int, ...], LAYERS] = ()
    """Blocks of each virtual stage in model order (pp × vpp entries), or empty: not placed yet."""
    pools: Annotated[tuple[Annotated[str, Field(pattern=POOL_NAME)], ...], POOLS] = ()
    """On a cluster of several pools: the one each pipeline rank lies in. Empty: there is one, or not chosen yet."""
    replicas: Annotated[tuple[Annotated[str, Field(pattern=POOL_NAME)], ...], REPLICAS] = ()
    """On a cluster of several pools, where whole replicas of the model lie in each: the pool of each of the dp."""

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        implied = {}
        for name, value in _IMPLIED.items():
            if name not in data and (own := value(data)) is not None:
                implied[name] = own
        return {**data, **implied} if implied else data

    @model_validator(mode="after")
    def _consistent(self) -> Layout:
        if self.num_gpus > MAX_GPUS:
            raise ValueError(f"{self.num_gpus:,} GPUs are more than there are; {MAX_GPUS:,} are the most")
        if (stages := self.num_stages) > MAX_STAGES:
            raise ValueError(
                f"{stages:,} stages are more than any model has blocks for; {MAX_STAGES:,} are the most"
            )
        for complaint in _COMPLAINTS:
            if what := complaint(self):
                raise ValueError(what)
        for name, settled in _SETTLED.items():
            value = settled(self)
            if value is not getattr(self, name):
                object.__setattr__(self, name, value)
        return self

    @property
    def num_gpus(self) -> int:
        """Ranks the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def data_ranks(self) -> int:
        """Ranks with the same parameters (experts aside) and different tokens: dp × cp."""
        return self.dp * self.cp

    @property
    def shard_group(self) -> int:
        """Ranks that ZeRO shards over."""
        return self.shard or self.data_ranks

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree inside an expert."""
        return self.etp or self.tp

    @property
    def num_stages(self) -> int:
        """Virtual stages: pp × vpp. Stage k is chunk k div pp of the rank that `schedules.rank_of_stage` says."""
        return self.pp * self.vpp

    @property
    def says_pools(self) -> str:
        """The axis that says in which pools its ranks lie; empty: none does."""
        return next((name for name in ("replicas", "pools") if getattr(self, name)), "")

    @property
    def stage_recompute(self) -> tuple[str, ...]:
        """The policy or mix of each virtual stage."""
        return self.recompute * self.num_stages if len(self.recompute) == 1 else self.recompute

    def microbatches(self, global_batch: int) -> int:
        """Microbatches per pipeline and step, m = B / (b·d); of `replicas` in several pools, which take more or fewer,
        their mean rounded down."""
        return global_batch // (self.mbs * self.dp)

    @property
    def brief(self) -> str:
        """The notation for people: a placement that is even goes without saying."""
        return str(self.model_copy(update={"layers": ()}) if len(set(self.layers)) == 1 else self)

    def __str__(self) -> str:
        words = []
        for name, (write, unwritten, written) in _WRITERS.items():
            value = getattr(self, name)
            if value != unwritten if written is None else written(self):
                words.append(write(name, value))
        return " ".join(words)


AXES: dict[str, Axis] = {
    name: next(mark for mark in field.metadata if isinstance(mark, Axis))
    for name, field in Layout.model_fields.items()
}
"""Every axis by its name, in the order of the notation."""

TIME_PARTS = tuple(axis.time_part for axis in AXES.values() if axis.time_part)
"""Parts of a step that some axis alone makes."""


@cache
def prices() -> tuple[Price, ...]:
    """Of every axis that has one."""
    return tuple(loaded(axis.price) for axis in AXES.values() if axis.price is not None)


@cache
def late_rules() -> tuple[Rule, ...]:
    """Rules that price what they ask, of all axes."""
    return tuple(rule for axis in AXES.values() for rule in loaded(axis.late_rules))


_WRITERS = {
    name: (axis.word.write, None if axis.always_written else Layout.model_fields[name].default, axis.written)
    for name, axis in AXES.items()
}
"""How a word is written, and where: at other values than this, or as the axis says."""
_IMPLIED = {name: axis.implied for name, axis in AXES.items() if axis.implied}
_COMPLAINTS = [axis.complaint for axis in AXES.values() if axis.complaint]
_SETTLED = {name: axis.settled for name, axis in AXES.items() if axis.settled}

MAX_WORDS = 100
"""Five times as many as there are to say."""
_WORDS = tuple(f"{name}{axis.word.sign}" for name, axis in AXES.items())
_READERS = {name: axis.word.read for name, axis in AXES.items()}


def parse_layout(text: str) -> Layout:
    """Read the notation; every word that is wrong is reported at once.

    Raises:
        InputError: unknown or repeated words, or words that contradict one another.
    """
    fields: dict[str, Any] = {}
    problems: list[Problem] = []
    words = text.split()
    if not words:
        problems.append(Problem("", "it says nothing"))
    if len(words) > MAX_WORDS:
        problems.append(Problem("", f"it has {len(words):,} words; {MAX_WORDS} are more than a layout needs"))
    for word in words[:MAX_WORDS]:
        name = word.partition("=")[0] if "=" in word else word.rstrip("0123456789")
        try:
            value = _READERS[name](word[len(name) :]) if name in _READERS else None
        except ValueError as error:
            problems.append(Problem(f"`{name}`", str(error)))
            continue
        if value is None:
            short = printable(word, limit=60)
            problems.append(Problem(f"`{short}`", f"not part of a layout{did_you_mean(short, _WORDS)}"))
            continue
        if name in fields:
            problems.append(Problem(f"`{printable(word)}`", f"`{name}` is given twice"))
        fields[name] = value
    layout: Layout | None = None
    more = 0
    try:
        layout = Layout.model_validate(fields)
    except ValidationError as error:
        told, more = spec_problems(error, Layout)
        problems += [Problem(f"`{show_key(place)}`" if place else "", what) for place, what in told.items()]
    if problems or layout is None:
        raise InputError(
            f"`{printable(text)}` is not a layout",
            problems=problems,
            more=more,
            hint="write it like `tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective`",
        )
    return layout


COMPARED = tuple(name for name in AXES if name not in ("dp", "layers", "pools", "replicas"))
"""Axes that are chosen; the others follow: what is left of the GPUs, and where the blocks go."""
USUAL = "usual"
"""The value, in words, of an axis that a layout does not name."""


def axes_that_differ(one: Layout, other: Layout) -> tuple[str, ...]:
    """Names of the axes on which two layouts differ, in the order of the notation."""
    return tuple(name for name in COMPARED if axis_value(name, one) != axis_value(name, other))


def axis_value(name: str, layout: Layout) -> str:
    """The value of an axis as one word: "8", "interleaved", "True"; of recompute the policies that
    stages use, not for how many of their blocks."""
    if name == "recompute":
        used = {mix.partition(":")[0] for mix in layout.stage_recompute} - {"none"}
        return "+".join(sorted(used)) or "none"
    if name == "schedule" and layout.schedule == ("interleaved" if layout.vpp > 1 else "1f1b"):
        return USUAL  # what follows from vpp is no other axis
    value = getattr(layout, name)
    if (compared := AXES[name].compared) is not None:
        return compared(value)
    return USUAL if value is None else str(value)
