"""One layout: degrees and switches, written `tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective` everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from cost_models.axes.order import DEFAULT_ORDER, Order, first_same
from cost_models.axes.recompute import StageRecompute
from cost_models.base import MAX_GPUS, MAX_LAYERS, POOL_NAME, GpuCount, PositiveInt, Spec
from cost_models.complaints import complaints
from cost_models.documents import printable, show_key
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.schedules.registry import REGISTRY, schedule_named
from cost_models.units import counted

SCHEDULES = tuple(REGISTRY)
"""Names of the schedules, by which columns of layouts number them."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[SCHEDULES]

MAX_STAGES = MAX_LAYERS
"""Virtual stages of a pipeline: more than blocks nobody has."""

Context = Literal["ring", "all-gather", "all-to-all"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
"""How ranks that share a sequence get one another's keys and values: passed round behind attention, gathered before
it, or by trading tokens for heads (Ulysses)."""


class Layout(Spec):
    """How one model is split over tp × cp × pp × dp ranks.

    Without `layers` the blocks are still to be placed on stages (evenly where they divide, else by the planner);
    with it the layout says everything a step's cost depends on.
    """

    tp: GpuCount = 1
    """Tensor-parallel degree t."""
    pp: GpuCount = 1
    """Pipeline-parallel degree p (ranks)."""
    vpp: PositiveInt = 1
    """Model chunks per pipeline rank v (virtual stages per rank)."""
    cp: GpuCount = 1
    """Context-parallel degree: the ranks that share one sequence, each with its part of the tokens."""
    dp: GpuCount = 1
    """Data-parallel degree d."""
    ep: GpuCount = 1
    """Expert-parallel degree: the ranks that share the experts of a mixture, taken from tp × cp × dp."""
    etp: GpuCount | None = None
    """Tensor-parallel degree inside an expert; None: tp."""
    mbs: GpuCount = 1
    """Sequences in one microbatch, b."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage: 0 replicas, 1 shards optimizer states, 2 and gradients, 3 and parameters, over `shard` ranks."""
    shard: GpuCount | None = None
    """Ranks that ZeRO shards over (hybrid sharding: replicas of such groups); None: all dp × cp of them."""
    sp: bool = False
    """Megatron sequence parallelism: the regions outside tensor parallelism are split along the sequence."""
    schedule: Schedule = "1f1b"
    """Pipeline schedule; where it is not named `interleaved` with vpp > 1, else `1f1b`."""
    order: Order = DEFAULT_ORDER
    """Mesh axes from neighbouring ranks outwards; of orders that differ in axes of degree one only, the first."""
    context: Context | None = None
    """How context-parallel ranks exchange keys and values; None: as the software stack does it, and where cp is 1."""
    recompute: tuple[StageRecompute, ...] = ("none",)
    """One policy or mix of policies for all virtual stages, or one for each in model order."""
    layers: tuple[int, ...] = ()
    """Blocks of each virtual stage in model order (pp × vpp entries), or empty: not placed yet."""
    pools: tuple[Annotated[str, Field(pattern=POOL_NAME)], ...] = ()
    """On a cluster of several pools: the one each pipeline rank lies in. Empty: there is one, or not chosen yet."""

    @model_validator(mode="before")
    @classmethod
    def _default_schedule(cls, data: Any) -> Any:
        if isinstance(data, dict) and "schedule" not in data:
            return {**data, "schedule": "interleaved" if data.get("vpp", 1) != 1 else "1f1b"}
        if isinstance(data, dict) and "vpp" not in data and data["schedule"] in list(REGISTRY):
            fewest, most = REGISTRY[data["schedule"]].chunks
            return {**data, "vpp": fewest} if fewest == most else data
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Layout:
        stages = self.num_stages
        if self.num_gpus > MAX_GPUS:
            raise ValueError(f"{self.num_gpus:,} GPUs are more than there are; {MAX_GPUS:,} are the most")
        if stages > MAX_STAGES:
            raise ValueError(
                f"{stages:,} stages are more than any model has blocks for; {MAX_STAGES:,} are the most"
            )
        if len(self.recompute) not in (1, stages):
            raise ValueError(
                f"recompute names {counted(len(self.recompute), 'stage')}; the layout has {stages}"
            )
        if self.layers and len(self.layers) != stages:
            raise ValueError(f"layers names {counted(len(self.layers), 'stage')}; the layout has {stages}")
        if self.pools and len(self.pools) != self.pp:
            raise ValueError(f"pools names {counted(len(self.pools), 'rank')}; the pipeline has {self.pp}")
        if any(count < 0 for count in self.layers):
            raise ValueError("layers must not be negative")
        if not goes_with(self.schedule, self.vpp):
            raise ValueError(f"schedule {self.schedule} does not go with vpp{self.vpp}")
        if len(self.recompute) > 1 and len(set(self.recompute)) == 1:
            object.__setattr__(self, "recompute", self.recompute[:1])
        if self.etp == self.tp:
            object.__setattr__(self, "etp", None)
        if self.shard == self.replicas:
            object.__setattr__(self, "shard", None)
        object.__setattr__(self, "order", first_same(self.order, self.cp, self.dp, self.pp))
        if self.cp == 1:
            object.__setattr__(self, "context", None)
        return self

    @property
    def num_gpus(self) -> int:
        """Ranks the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def replicas(self) -> int:
        """Ranks with the same parameters (experts aside) and different tokens: dp × cp."""
        return self.dp * self.cp

    @property
    def shard_group(self) -> int:
        """Ranks that ZeRO shards over."""
        return self.shard or self.replicas

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree inside an expert."""
        return self.etp or self.tp

    @property
    def num_stages(self) -> int:
        """Virtual stages: pp × vpp. Stage k is chunk k div pp of the rank that `schedules.rank_of_stage` says."""
        return self.pp * self.vpp

    @property
    def stage_recompute(self) -> tuple[str, ...]:
        """The policy or mix of each virtual stage."""
        return self.recompute * self.num_stages if len(self.recompute) == 1 else self.recompute

    def microbatches(self, global_batch: int) -> int:
        """Microbatches per pipeline and step, m = B / (b·d)."""
        return global_batch // (self.mbs * self.dp)

    @property
    def brief(self) -> str:
        """The notation for people: a placement that is even goes without saying."""
        return str(self.model_copy(update={"layers": ()}) if len(set(self.layers)) == 1 else self)

    def __str__(self) -> str:
        words = [f"tp{self.tp}", f"pp{self.pp}"]
        if self.vpp > 1:
            words.append(f"vpp{self.vpp}")
        if self.cp > 1:
            words.append(f"cp{self.cp}")
        words.append(f"dp{self.dp}")
        if self.ep > 1:
            words.append(f"ep{self.ep}")
        if self.etp is not None:
            words.append(f"etp{self.etp}")
        words += [f"mbs{self.mbs}", f"zero{self.zero}"]
        if self.shard is not None:
            words.append(f"shard{self.shard}")
        if self.sp:
            words.append("sp")
        if self.schedule != ("interleaved" if self.vpp > 1 else "1f1b"):
            words.append(f"schedule={self.schedule}")
        if self.order != DEFAULT_ORDER:
            words.append(f"order={self.order}")
        if self.context is not None:
            words.append(f"context={self.context}")
        if self.recompute != ("none",):
            words.append("recompute=" + _run_lengths(self.recompute))
        if self.layers:
            words.append("layers=" + _run_lengths(self.layers))
        if self.pools:
            words.append("pools=" + _run_lengths(self.pools))
        return " ".join(words)


def goes_with(schedule: Schedule, vpp: int) -> bool:
    """Whether the schedule runs this number of chunks a rank."""
    return schedule_named(schedule).runs_chunks(vpp)


def _run_lengths(values: Iterable[object]) -> str:
    """(12, 12, 11) → "12*2,11"."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ",".join(f"{value}*{count}" if count > 1 else str(value) for value, count in runs)


def _expand(text: str) -> list[str]:
    """`12*2,11` → ["12", "12", "11"]; raises ValueError on anything else, and on more than there are stages."""
    values: list[str] = []
    for run in text.split(",", MAX_STAGES):
        value, star, count = run.partition("*")
        repeats = int(count) if star else 1
        if not 1 <= repeats <= MAX_STAGES - len(values):
            raise ValueError(f"`{run}` repeats {repeats} times")
        values += [value] * repeats
    return values


_DEGREES = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "zero", "shard")
_DEGREE = re.compile(rf"({'|'.join(_DEGREES)})=?(\d{{1,12}})$", re.ASCII)
_NAMED = ("schedule=", "order=", "context=")
MAX_WORDS = 100
"""Five times as many as there are to say."""
_WORDS = (*_DEGREES, "sp", *_NAMED, "recompute=", "layers=", "pools=")


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

    def put(key: str, value: Any, word: str) -> None:
        if key in fields:
            problems.append(Problem(f"`{printable(word)}`", f"`{key}` is given twice"))
        fields[key] = value

    for word in words[:MAX_WORDS]:
        if match := _DEGREE.match(word):
            put(match[1], int(match[2]), word)
        elif word in ("sp", "sp=1", "sp=0"):
            put("sp", word != "sp=0", word)
        elif word.startswith(_NAMED) and word.isascii():
            key, _, value = word.partition("=")
            put(key, value, word)
        elif word.startswith(("recompute=", "layers=", "pools=")) and word.isascii():
            key, _, value = word.partition("=")
            try:
                values = _expand(value)
                put(key, tuple(int(v) for v in values) if key == "layers" else tuple(values), word)
            except ValueError:
                what = f"`{printable(value)}` is not a list like `12*7,11`"
                problems.append(Problem(f"`{key}`", what))
        else:
            short = printable(word, limit=60)
            problems.append(Problem(f"`{short}`", f"not part of a layout{did_you_mean(short, _WORDS)}"))
    layout: Layout | None = None
    more = 0
    try:
        layout = Layout.model_validate(fields)
    except ValidationError as error:
        told, more = complaints(error, Layout)
        problems += [Problem(f"`{show_key(place)}`" if place else "", what) for place, what in told.items()]
    if problems or layout is None:
        raise InputError(
            f"`{printable(text)}` is not a layout",
            problems=problems,
            more=more,
            hint="write it like `tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective`",
        )
    return layout
