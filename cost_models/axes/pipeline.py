"""Stages of a pipeline: which chunks a schedule runs, and blocks spread over stages."""

from __future__ import annotations

from cost_models.schedules.registry import schedule_named
from cost_models.specs.choices import Schedule

ENDS = 2
"""Stages that may be without a block: the first, which has the embedding, and the last, which has the head."""


def goes_with(schedule: Schedule, vpp: int) -> bool:
    """Whether the schedule runs this number of chunks a rank."""
    return schedule_named(schedule).runs_chunks(vpp)


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
