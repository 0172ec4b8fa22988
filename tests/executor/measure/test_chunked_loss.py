"""The loss in chunks against all logits at once: values, gradients, FLOPs, and the peak of memory that it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from effort import few, first_of
from flop_counter import FlopCounter
from test_measured_memory import peak
from torch import Tensor
from training import GPT, LLAMA, Trained, plan_for, question_for, stray, traced, train, train_weights

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of
from cost_models.memory.activations import activation_bytes
from cost_models.operators.accumulation import loss_chunk
from cost_models.pipeline.pricing import estimate
from executor.engine.engine import loss
from executor.measure.report import predicted_parts
from executor.models.ends import ChunkOfLogits, chunked_loss
from planner.plan import Plan, make_plan

STEPS, CHUNK = 3, 12
"""Tokens of a chunk, of 16 in a sequence: the last chunk of a microbatch is a shorter one."""
UNTIED = GPT | {"tied_embeddings": False}


def in_chunks(layout: str, model: dict[str, Any], chunk: int, **training: Any) -> Plan:
    """A plan whose stack computes the loss of so many tokens at a time."""
    parsed = parse_layout(layout)
    question = question_for(model, parsed.num_gpus, **training)
    question = replace(question, stack=question.stack.model_copy(update={"loss_chunk": chunk}))
    return make_plan(question, estimate(question, parsed))


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (T, D), output matrix (V, D), targets (T,)."""
    torch.manual_seed(0)
    x, weight = torch.randn(40, 24, dtype=dtype), torch.randn(96, 24, dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(96, (40,))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("chunk", [1, 12, 40])
def test_value_and_gradients_are_those_of_all_logits(chunk: int, dtype: torch.dtype, error: float) -> None:
    x, weight, targets = drawn(dtype)
    with FlopCounter() as whole:
        expected = loss((x @ weight.t()).unsqueeze(0), targets.unsqueeze(0)) / 4
        wanted = torch.autograd.grad(expected, (x, weight))
    with FlopCounter() as pieces:
        value = chunked_loss(x, weight, targets, chunk) / 4
        found = torch.autograd.grad(value, (x, weight), retain_graph=True)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0.0)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=error * float(theirs.abs().max()))
    assert pieces.products == whole.products
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, (x, weight))
    with torch.no_grad():
        torch.testing.assert_close(chunked_loss(x, weight, targets, chunk) / 4, value, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("layout", ["mbs4", "pp2 mbs2", "dp2 mbs2 zero3"])
@few(1)
def test_blocks_and_chunks_that_are_compiled_train_the_same(layout: str, processes) -> None:
    plan = in_chunks(layout, GPT, CHUNK)
    expected, got = (processes.run(plan.layout.num_gpus, how, plan) for how in (as_it_is, compiled))
    for one, other in zip(expected, got, strict=True):
        assert other == [pytest.approx(step, rel=1e-5) for step in one]


def as_it_is(plan: Plan) -> list[tuple[float, float]]:
    return train(plan, STEPS, True)


def compiled(plan: Plan) -> list[tuple[float, float]]:
    """Traced as for torch's compiler, operator by operator."""
    eagerly: list[Tensor] = []
    plain = ChunkOfLogits.forward

    def watched(self: ChunkOfLogits, *given: Tensor) -> tuple[Tensor, Tensor]:
        if not torch.compiler.is_compiling():
            eagerly.append(given[0])
        return plain(self, *given)

    with traced(), mock.patch.object(ChunkOfLogits, "forward", watched):
        curve = train(plan, STEPS, True, compile=True)
    assert not eagerly
    return curve


def test_compiled_chunks_are_priced_without_copies_in_fp32() -> None:
    """Logits and their gradient in 16 bits, for two copies of 32; 8 bytes moved a logit for 30."""
    plain = in_chunks("mbs4", GPT, CHUNK, precision="bf16").question
    stack = plain.stack.model_copy(update={"compiled": True, "compiles_loss": True})
    columns, logits = LayoutColumns.of([parse_layout("mbs4")]), plain.model.vocab_size
    before, after = (activation_bytes(one, columns) for one in (plain, replace(plain, stack=stack)))
    assert before.loss_gradients - after.loss_gradients == 2 * (4 - 2) * CHUNK * logits
    device = device_of(plain)
    eager, fused = (end_seconds(one, columns, device) for one in (plain, replace(plain, stack=stack)))
    less = 4 * plain.training.sequence_length * logits * (30 - 8) / device.memory_rate
    assert eager.head_forward - fused.head_forward == pytest.approx(less)
    assert fused.head_backward == eager.head_backward == 0


CHUNKED = [
    ("tied", "mbs4"),
    ("untied", "dp2 mbs2 zero1"),
    ("untied", "pp2 vpp2 mbs2"),
    ("tied", "pp2 dp2 mbs2 zero3"),
    ("untied", "cp2 mbs4 zero1"),
]
MODELS = {"tied": GPT, "untied": UNTIED}


@pytest.fixture(scope="module")
def references(processes) -> dict[str, Trained]:
    """One process, the whole batch in one microbatch, all logits at once."""
    return {
        name: processes.run(1, train_weights, plan_for("mbs8", model), STEPS, True)[0]
        for name, model in MODELS.items()
    }


@few(1)
@pytest.mark.parametrize(("name", "layout"), CHUNKED, ids=[" ".join(case) for case in CHUNKED])
def test_same_curve_as_all_logits_at_once(name: str, layout: str, processes, references) -> None:
    """Loss, gradient norm and the way of every parameter."""
    plan = in_chunks(layout, MODELS[name], CHUNK)
    assert loss_chunk(plan.question, plan.layout) == CHUNK
    expected, way = references[name]
    for curve, own in processes.run(plan.layout.num_gpus, train_weights, plan, STEPS, True):
        assert curve == [pytest.approx(step, rel=1e-5) for step in expected]
        assert stray(own, way) < (1e-3, "")


@pytest.mark.parametrize(
    "layout", ["mbs1 cp2", "tp2 mbs4", "pp2 mbs4 schedule=zero-bubble", "pp2 mbs2 schedule=dualpipev"]
)
def test_others_have_all_logits_and_the_price_says_so(layout: str) -> None:
    """Too few tokens, a split vocabulary, a head whose backward pass waits: everything costs what it did."""
    plan, whole = in_chunks(layout, GPT, CHUNK), plan_for(layout)
    assert loss_chunk(plan.question, plan.layout) is None
    assert plan.prediction == whole.prediction


SIZE: dict[str, Any] = {"hidden_size": 256, "vocab_size": 2048, "max_positions": 256}
SHAPES = {"gpt": GPT | SIZE, "llama": LLAMA | SIZE | {"ffn_hidden_size": 688}}
MEMORY = first_of(1, [("llama", "dp2 mbs4 zero3"), ("gpt", "pp2 mbs4"), ("gpt", "mbs4 recompute=full")])


@pytest.mark.parametrize(("shape", "layout"), MEMORY, ids=[" ".join(case) for case in MEMORY])
def test_peak_is_what_the_plan_says(shape: str, layout: str, processes) -> None:
    """Within 2 % on every rank, and on the one with the loss below that of all logits."""
    job: dict[str, Any] = {"global_batch": 16, "sequence_length": 256}
    plan, whole = in_chunks(layout, SHAPES[shape], 128, **job), plan_for(layout, SHAPES[shape], **job)
    for rank, measured in enumerate(processes.run(plan.layout.num_gpus, peak, plan)):
        stage = plan.layout.place_along("pp", rank)
        predicted = sum(predicted_parts(plan.prediction.rank_memory[stage]).values())
        assert predicted == pytest.approx(sum(measured.values()), rel=0.02)
        if stage == plan.layout.pp - 1:
            assert predicted < sum(predicted_parts(whole.prediction.rank_memory[stage]).values())
