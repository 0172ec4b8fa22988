"""Host time of the executor on models so small that nothing else counts: modules, dispatch, autograd, DTensor, hooks.

What a block adds to a step is the slope over models of more and more blocks; the rest of such a step is told by none.
Everything a training step does is in it: gradients added to the flat buffers, the parts of a split model that are sent,
shards that are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.measurements import Measurement
from cost_models.pipeline.pricing import estimate
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.engine.engine import Engine
from executor.microbenchmarks.stopwatch import Call, Stopwatch
from executor.run_config import EngineOptions
from planner.plan import make_plan

_SEQUENCE, _HIDDEN, _HEADS = 16, 32, 2
_SHAPE = (_SEQUENCE, _HIDDEN, _HEADS)
_BLOCKS = (2, 3, 4, 6)
_STAGES, _PIPELINED = 2, "block.pipelined"
_MICROBATCHES = 2
"""Of a step: shards are gathered for each, their gradients scattered once."""
_REPEATS = {"cpu": 2, "cuda": 9}
"""Of each round, of which a GPU has one; fixed, because split models communicate and must run equally often on every
process."""
_TRAINED: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "bf16"}
"""Calibrated precision → the one whose operators the executor launches."""


Engines = dict[str, dict[int, Engine]]
"""What is added to a plain block → models of such blocks, by how many."""


def tiny_engines(device: torch.device, precision: Precision) -> Engines:
    """Plain blocks; with several processes sharded ones, in pairs of processes split ones, too, and on a CPU, where the
    clock is the thread's own and does not see a stage wait, a pipeline of two stages."""
    world = dist.get_world_size()
    layouts = {"block": f"dp{world}"}
    if world > 1:
        layouts["block.sharded"] = f"dp{world} zero3"
    if world % _HEADS == 0:
        split = f"tp{_HEADS} dp{world // _HEADS}"
        layouts |= {"block.tensor-parallel": split, "block.sequence-parallel": f"{split} sp"}
        if device.type == "cpu":
            layouts[_PIPELINED] = f"pp{_STAGES} dp{world // _STAGES}"
    return {
        name: {
            # of a pipeline what its blocks do not explain is asked for
            blocks: _engine(layout, blocks, device, precision)
            for blocks in (_BLOCKS[:1] if name == _PIPELINED else _BLOCKS)
        }
        for name, layout in layouts.items()
    }


def host_overhead(watch: Stopwatch, engines: Engines) -> Iterator[Measurement]:
    """Time forward and backward of a microbatch by number of blocks, then an update of few parameters."""
    repeats, fewest = _REPEATS[watch.device.type], _BLOCKS[0]
    for name, by_blocks in engines.items():
        for blocks, engine in by_blocks.items():
            step = watch.host(_forward_backward(engine), repeats).shared(_MICROBATCHES)
            yield step.row("host", name, float(blocks), _SHAPE)
    update = watch.host(engines["block"][fewest].update, repeats)
    yield update.row("host", "update", float(fewest), _SHAPE)


def _engine(layout: str, blocks: int, device: torch.device, precision: Precision) -> Engine:
    """A tiny GPT that trains on one sequence of each replica in a microbatch."""
    parsed = parse_layout(layout)
    model = TransformerSpec(
        num_layers=blocks,
        hidden_size=_HIDDEN,
        num_heads=_HEADS,
        num_kv_heads=_HEADS,
        head_dim=_HIDDEN // _HEADS,
        ffn_hidden_size=4 * _HIDDEN,
        vocab_size=_HIDDEN,
        max_positions=_SEQUENCE,
    )
    training = TrainingSpec(
        global_batch=_MICROBATCHES * parsed.dp, sequence_length=_SEQUENCE, precision=_TRAINED[precision]
    )
    question = complete_question(model, resolve_cluster("local", parsed.num_gpus), training)
    return Engine(make_plan(question, estimate(question, parsed)), device, EngineOptions())


def _forward_backward(engine: Engine) -> Call:
    tokens_BS = torch.zeros(_MICROBATCHES, _SEQUENCE, dtype=torch.long)
    return lambda: engine.forward_backward(tokens_BS, tokens_BS)
