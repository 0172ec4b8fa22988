"""Where a layout puts its blocks: on which stage, and on a cluster of several pools in which pool.

There either each pipeline rank lies in one pool (`pools=`), or each replica of the whole model does (`replicas=`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.axes.axis import Axis
from cost_models.axes.words import PerStage
from cost_models.units import counted

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


LAYERS = Axis(word=PerStage(int), complaint=_layers_complaint)
POOLS = Axis(word=PerStage(), complaint=_pools_complaint)
