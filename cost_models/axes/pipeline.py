"""Pipeline parallelism: ranks, the chunks of the model that each holds, their schedule, and where blocks lie.

On a cluster of several pools either each pipeline rank lies in one pool (`pools=`), or each replica of the whole model
does (`replicas=`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cost_models.axes.axis import Axis
from cost_models.axes.rule import Words, multiplied, refuses, rule_when
from cost_models.axes.words import Choice, Number, PerStage
from cost_models.errors import either
from cost_models.question import Question
from cost_models.schedules import SPLIT_BACKWARD, is_scheduled
from cost_models.schedules.registry import REGISTRY, schedule_named
from cost_models.specs.choices import SCHEDULES, Schedule
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout

ENDS = 2
"""Stages that may be without a block: the first, which has the embedding, and the last, which has the head."""


def goes_with(schedule: Schedule, vpp: int) -> bool:
    """Whether the schedule runs this number of chunks a rank."""
    return schedule_named(schedule).runs_chunks(vpp)


def _implied_chunks(given: Mapping[str, Any]) -> int | None:
    if given.get("schedule") not in list(REGISTRY):
        return None
    fewest, most = REGISTRY[given["schedule"]].chunks
    return fewest if fewest == most else None


def _implied_schedule(given: Mapping[str, Any]) -> Schedule:
    return "interleaved" if given.get("vpp", 1) != 1 else "1f1b"


def _schedule_complaint(layout: Layout) -> str:
    if goes_with(layout.schedule, layout.vpp):
        return ""
    return f"schedule {layout.schedule} does not go with vpp{layout.vpp}"


@rule_when(
    "stages between the ends have blocks", lambda q, x: multiplied(x.pp, x.vpp) > q.model.num_layers + ENDS
)
def _stages_have_blocks(question: Question, layout: Layout) -> Words:
    stages, blocks = layout.num_stages, question.model.num_layers
    written = f"pp{layout.pp} vpp{layout.vpp}" if layout.vpp > 1 else f"pp{layout.pp}"
    what = f"`{written}` makes {counted(stages, 'stage')}; the model has {counted(blocks, 'block')}"
    return Words(
        what, "only the first stage and the last may have none: they have the embedding and the head"
    )


@rule_when("the stack has this schedule", lambda q, x: ~is_scheduled(x, q.stack.schedules))
def _stack_has_no_schedule(question: Question, layout: Layout) -> Words:
    return Words(
        f"software stack `{question.stack.name}` cannot run `schedule={layout.schedule}`",
        f"it has {either(list(question.stack.schedules))}; `--stack` names another",
    )


@rule_when(
    "a split backward pass finds its weights",
    lambda q, x: (x.zero == 3) & q.stack.zero3_gathers_every_microbatch & is_scheduled(x, SPLIT_BACKWARD),
)
def _split_needs_weights(question: Question, layout: Layout) -> Words:
    what = (
        f"`zero{layout.zero}` gathers weights again for each backward pass, and `schedule={layout.schedule}`"
    )
    return Words(
        f"{what} splits that pass: PyTorch trains wrong without a word", "use zero2, or another schedule"
    )


PP = Axis(
    word=Number(),
    text="Ranks that each hold some blocks and pass microbatches on.",
    executor="executor.axes.pipeline:PipelineAxis",
    always_written=True,
    common=True,
    rules=(_stages_have_blocks,),
    touches=frozenset({"pipeline"}),
)
VPP = Axis(
    word=Number(),
    text="Chunks of the model on each pipeline rank.",
    implied=_implied_chunks,
    common=True,
    rules=(
        refuses(
            "chunks need a pipeline",
            lambda q, x: (x.vpp > 1) & (x.pp == 1),
            "`vpp{layout.vpp}` interleaves chunks over pp, which is 1 here",
            "leave out `vpp`",
        ),
    ),
    touches=frozenset(),
)
SCHEDULE = Axis(
    word=Choice(SCHEDULES),
    text="The order in which pipeline ranks run passes.",
    implied=_implied_schedule,
    written=lambda layout: layout.schedule != _implied_schedule({"vpp": layout.vpp}),
    complaint=_schedule_complaint,
    common=True,
    must_be_chosen=True,
    rules=(
        refuses(
            "the schedule needs a pipeline",
            lambda q, x: (x.pp == 1) & (x.vpp == 1) & ~is_scheduled(x, ("1f1b",)),
            "`schedule={layout.schedule}` needs pp2 or more",
            "leave out `schedule`",
        ),
    ),
    stack_rules=(
        _stack_has_no_schedule,
        _split_needs_weights,
    ),
    executor_rules=(
        refuses(
            "split backward passes meet shared weights once",
            lambda q, x: is_scheduled(x, SPLIT_BACKWARD) & (q.model.stacks is not None),
            "blocks of `{model.name}` share tables of biases and what its encoder returns, and PyTorch splits no"
            " backward pass through these, as `schedule={layout.schedule}` asks",
            "use another schedule",
        ),
    ),
    touches=frozenset(),
)


if TYPE_CHECKING:
    from cost_models.axes.layout import Layout


def even_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Blocks as even as they divide, the larger shares in the middle, away from embedding and head."""
    share, rest = divmod(num_layers, stages)
    first = (stages - rest) // 2
    return tuple(share + (first <= stage < first + rest) for stage in range(stages))


def layers_in_turn(num_layers: int, stages: int) -> tuple[int, ...]:
    """Stages filled in turn, each with the most that any has, so that what is left lies with the head."""
    most = -(-num_layers // stages)
    return tuple(max(0, min(most, num_layers - most * stage)) for stage in range(stages))


def layers_up_to_shares(num_layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Stages filled in turn, each until all work so far passes its share; the head works as `head` blocks do.

    The head follows the last block, so the last stages may have none.
    """
    share = (num_layers + head) / stages
    ends = [min(num_layers, int(share * (stage + 1)) + 1) for stage in range(stages - 1)] + [num_layers]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _layers_complaint(layout: Layout) -> str:
    layers, stages = layout.layers, layout.num_stages
    if layers and len(layers) != stages:
        return f"layers names {counted(len(layers), 'stage')}; the layout has {stages}"
    return "layers must not be negative" if any(count < 0 for count in layers) else ""


def _pools_complaint(layout: Layout) -> str:
    if layout.pools and len(layout.pools) != layout.pp:
        return f"pools names {counted(len(layout.pools), 'rank')}; the pipeline has {layout.pp}"
    return ""


LAYERS = Axis(word=PerStage(int), text="Blocks of each virtual stage.", complaint=_layers_complaint)
POOLS = Axis(
    word=PerStage(), text="The pool of GPUs in which each pipeline rank lies.", complaint=_pools_complaint
)
