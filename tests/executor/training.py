"""Jobs that the worker processes run, and the small plans they run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from cost_models.arrays import Array
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.run_config import Rate
from planner.plan import Plan, make_plan

if TYPE_CHECKING:
    from torch import Tensor

    from executor.axes.offload.link import Traffic
    from executor.boxes import Box
    from executor.engine.engine import Engine
    from executor.measure.report import RunReport

Trained = tuple[list[tuple[float, float]], dict[str, Array]]
"""Loss and gradient norm of every step, and how far every parameter went."""
NOTICEABLE = 1e-6
NO_GRADIENT = "attention.key.bias"
"""It adds the same to all scores of a query, which softmax takes out again: rounding alone moves it."""
LAST_PLACE = 2.0**-23
"""Of an fp32 weight of 1, such as a norm's gain: how far it went cannot be told closer."""

GPT: dict[str, Any] = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "vocab_size": 256}
GPT |= {"max_positions": 64}
LLAMA: dict[str, Any] = GPT | {"num_kv_heads": 2, "ffn_hidden_size": 96, "gated_mlp": True}
LLAMA |= {"activation": "silu", "norm": "rmsnorm", "positions": "rotary", "tied_embeddings": False}
LLAMA |= {"attention_bias": False, "mlp_bias": False}
BERT: dict[str, Any] = GPT | {
    "norm_placement": "after-sum",
    "embedding_norm": True,
    "head_bias": True,
    "attention_scale": 4.0,  # else weights so small let keys hardly matter
    "encoder": {"token_types": 2, "masked": 0.25, "first_position": 2},
}
T5: dict[str, Any] = GPT | {"norm": "rmsnorm", "positions": "none", "activation": "relu"}
T5 |= {"attention_bias": False, "mlp_bias": False, "attention_scale": 1.0, "logit_scale": 1.5}
T5 |= {"stacks": {"encoder_layers": 2, "position_buckets": 8, "farthest": 12}}
MOE: dict[str, Any] = LLAMA | {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 48}
MOE |= {"num_moe_layers": 3}
"""A dense block, then three mixtures."""
SHARED: dict[str, Any] = MOE | {"gated_mlp": False, "activation": "gelu", "mlp_bias": True}
SHARED |= {"shared_expert_ffn_hidden_size": 32, "num_moe_layers": 4, "router_scores": "sigmoid"}
LATENT: dict[str, Any] = LLAMA | {"num_kv_heads": 4, "head_dim": 12}
LATENT |= {"latent_attention": {"kv_rank": 8, "query_rank": 16, "position_dim": 4, "value_dim": 8}}

CLIP: dict[str, Any] = {"layers": 2, "hidden_size": 24, "num_heads": 2, "activation": "quick-gelu"}
CLIP |= {"image": 8, "patch": 4, "class_token": True, "patch_bias": False, "norm_before": True}
CLIP |= {"projector_hidden_size": 32}
LLAVA = LLAMA | {"num_layers": 4, "tower": CLIP}
TWO_IMAGES: dict[str, Any] = {"images": 2}


def question_for(model: dict[str, Any], ranks: int, **training: Any) -> Question:
    """Eight sequences of sixteen tokens a step, unless said otherwise, on so many processes of this machine; a decoder
    behind an encoder has three quarters as many."""
    asked: dict[str, Any] = {"global_batch": 8, "sequence_length": 16, "precision": "fp32"} | training
    usual = {"target_length": asked["sequence_length"] * 3 // 4} if model.get("stacks") else {}
    job = TrainingSpec(**(usual | asked))
    return complete_question(TransformerSpec.model_validate(model), resolve_cluster("local", ranks), job)


def plan_for(layout: str, model: dict[str, Any] = GPT, **training: Any) -> Plan:
    """A plan for this layout on the local machine."""
    parsed = parse_layout(layout)
    question = question_for(model, parsed.num_gpus, **training)
    return make_plan(question, estimate(question, parsed))


@contextmanager
def traced() -> Iterator[None]:
    """Compiled blocks are traced and differentiated as ever, but run operator by operator: no compiler is needed."""
    eager = functools.partialmethod(torch.nn.Module.compile, backend="aot_eager")
    with mock.patch.object(torch.nn.Module, "compile", eager):
        try:
            yield
        finally:
            torch._dynamo.reset()


def engine_and_batches(plan: Plan, **options: Any) -> tuple[Engine, Callable[[int], tuple[Tensor, ...]]]:
    """The engine of this rank, and its share of the batch of a step."""
    from executor.data.batches import Batches
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions

    engine = Engine(plan, torch.device("cpu"), EngineOptions(**options))
    batches, share = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0), engine.share
    return engine, lambda step: batches.between(step, share.first, share.last)


def offloaded_step(plan: Plan) -> tuple[dict[str, int], int, Traffic, int]:
    """(Bytes of each part at the device's peak, most bytes in host memory, what links carried, bytes on the drive) of
    this rank's second step."""
    from executor.axes.offload.blocks import OffloadAxis
    from executor.measure.memory import held_on_drive, measure_tiers

    engine, batch = engine_and_batches(plan)
    engine.step(*batch(0))
    offload = engine.axis(OffloadAxis)
    assert offload is not None
    offload.link.take_traffic()
    parts, host = measure_tiers(engine, *batch(1))
    return parts, host, offload.link.take_traffic(), held_on_drive(engine)


def train(plan: Plan, steps: int, sgd: bool, *how: Any, **options: Any) -> list[tuple[float, float]]:
    """The curve of `train_weights`, asked in the same words."""
    return train_weights(plan, steps, sgd, *how, **options)[0]


def train_weights(
    plan: Plan,
    steps: int,
    sgd: bool,
    rate: Rate | None = None,
    clip: float | None = None,
    *,
    compile: bool = False,
    louder: float = 1.0,
) -> Trained:
    """(loss of the global batch, norm of its gradient) of each step, and how far each of this rank's parameters went.

    Parameters are whole, by their names in the model. Projections into recurrences begin so many times as large.
    """
    from executor.data.batches import Batches
    from executor.engine.engine import Engine, mean_over_data
    from executor.run_config import EngineOptions

    rate = rate or Rate(peak=0.1 if sgd else 1e-3)
    options = EngineOptions(sgd=sgd, rate=rate, clip=clip, compile=compile)
    engine = Engine(plan, torch.device("cpu"), options, filled=False)
    engine.fill_frozen()
    engine.fill(_Louder(louder, plan))
    before = _whole(engine)
    batches = Batches(
        plan.training,
        vocabulary=plan.model.vocab_size,
        seed=0,
        encoder=plan.model.encoder,
        tower=plan.model.tower,
    )
    curve = []
    for step in range(steps):
        batch = batches.between(step, engine.share.first, engine.share.last)
        engine.optimizer.set_rate(rate.at(step))
        value, norm = engine.step(*batch)
        curve.append((mean_over_data(value, engine), norm))
    after = _whole(engine)
    return curve, {name: after[name] - before[name] for name in after}


class _Louder:
    def __init__(self, factor: float, plan: Plan) -> None:
        from executor.models.initial import InitialValues

        self.factor, self.usual = factor, InitialValues(seed=0, tied=plan.model.tied_embeddings)

    def fill(self, name: str, shape: tuple[int, ...], box: Box, into: Tensor) -> None:
        self.usual.fill(name, shape, box, into)
        if ".recurrence." in name and name.endswith(".weight") and len(shape) > 1:
            into.mul_(self.factor)


def reported(plan: Plan, folder: Path, **how: Any) -> RunReport:
    """The report that a run of these ranks writes to the folder."""
    from executor.measure.report import RunReport, save_report
    from executor.run_config import REPORT, RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    watcher = Watcher(folder)
    report = train(plan, torch.device("cpu"), RunConfig(**how), watcher)
    assert isinstance(report, RunReport)
    if torch.distributed.get_rank() == 0:
        assert report.notes == tuple(watcher.notes)
        save_report(report, folder / REPORT)
    return report


def _whole(engine: Engine) -> dict[str, Array]:
    """Parameters of this rank's stages, put together from all who have a part."""
    from torch.distributed.tensor import DTensor

    from executor.axes.offload.blocks import StreamedBlock
    from executor.axes.overlap import OverlapAxis

    found = {}
    streamed = [flat for flat in engine.optimizer.flats if isinstance(flat, StreamedBlock)]
    for flat in streamed:
        flat.load()
    if (overlap := engine.axis(OverlapAxis)) is not None:
        overlap.arrive()
    for part in engine.parts:
        for name, parameter in part.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            found[name.replace("_checkpoint_wrapped_module.", "")] = whole.detach().double().numpy().copy()
    for flat in streamed:
        flat.drop()
    return found


def stray(way: dict[str, Array], expected: dict[str, Array]) -> tuple[float, str]:
    """The parameter that ended farthest from where it should, as a share of the way it should have gone, and its name.

    Ways shorter than what rounding makes of them count as `NOTICEABLE`: a key's bias has no gradient at all. Experts of
    which a rank has only some, or parts, are left out.
    """
    return max(
        (float(abs(gone - wanted).max() / max(NOTICEABLE, abs(wanted).max())), name)
        for name, gone in way.items()
        for wanted in [_named(expected, name)]
        if gone.shape == wanted.shape
    )


def _named(expected: dict[str, Array], name: str) -> Array:
    """A tied head has the embedding's weight, a copy of a table that of the table."""
    from executor.models.ends import original

    return expected[name] if name in expected else expected[original(name, tied=True)]
