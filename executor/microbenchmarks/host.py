"""Host time of the executor on models so small that nothing else counts: modules, dispatch, autograd, DTensor, hooks.

What a block adds to a step is the difference between models of more blocks and of fewer; the rest of such a step is
told by neither. Everything a training step does is in it: gradients added to the flat buffers, the parts of a split
model that are sent, shards that are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.measurements import Measurement
from cost_models.pipeline.estimating import estimate
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.engine.engine import Engine
from executor.microbenchmarks.stopwatch import Call, Stopwatch
from executor.run_config import EngineOptions
from planner.plan import make_plan

_SEQUENCE, _HIDDEN, _HEADS = 16, 32, 2
_SHAPE = (_SEQUENCE, _HIDDEN, _HEADS)
_FEW, _MANY = 2, 6
_STAGES = 2
_MICROBATCHES = 2
"""Of a step: shards are gathered for each, their gradients scattered once."""
_REPEATS = 2
"""Of each round; fixed, because split models communicate and must run equally often on every process."""
_TRAINED: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "bf16"}
"""Calibrated precision → the one whose operators the executor launches."""


Engines = dict[str, tuple[Engine, Engine]]
"""What is added to a plain block → a model of few such blocks, and one of many."""


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
            layouts["block.pipelined"] = f"pp{_STAGES} dp{world // _STAGES}"
    return {
        name: (_engine(layout, _FEW, device, precision), _engine(layout, _MANY, device, precision))
        for name, layout in layouts.items()
    }


def host_overhead(watch: Stopwatch, engines: Engines) -> Iterator[Measurement]:
    """Time forward and backward of a microbatch by number of blocks, then an update of few parameters."""
    for name, pair in engines.items():
        for blocks, engine in zip((_FEW, _MANY), pair, strict=True):
            step = watch.host(_forward_backward(engine), _REPEATS).shared(_MICROBATCHES)
            yield step.row("host", name, float(blocks), _SHAPE)
    few, _ = engines["block"]
    yield watch.host(few.update, _REPEATS).row("host", "update", float(_FEW), _SHAPE)


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
