"""Reductions and sends behind compute, and collectives inside products: blocks train as they do without."""

from __future__ import annotations

import shutil
from typing import Any
from unittest import mock

import pytest
import torch
from effort import THOROUGH, few, first_of, number, some_of
from training import (
    GPT,
    LATENT,
    LLAMA,
    MOE,
    NO_GRADIENT,
    SHARED,
    Trained,
    engine_and_batches,
    plan_for,
    question_for,
    stray,
    train_weights,
)

from executor.engine.engine import compile_blocks
from executor.models.transformer import Transformer

STEPS = number(2, 4)
TOLERANCE = 1e-6
CLIP = 0.1
"""Less than any of the norms."""
UNTIED = GPT | {"tied_embeddings": False}

CASES: list[tuple[dict[str, Any], str]] = [
    (GPT, "dp2 mbs2 zero0"),
    (GPT, "dp2 mbs2 zero1"),
    (LLAMA, "dp2 mbs1 zero0 recompute=full"),
    (LLAMA, "dp2 mbs1 zero1 recompute=selective"),
    (GPT, "dp2 mbs2 zero1 shard1"),
    (GPT, "dp4 mbs1 zero1 shard2"),
    (LLAMA, "tp2 dp2 sp mbs2 zero1"),
    (UNTIED, "tp2 dp2 mbs2 zero0 recompute=full"),
    (GPT, "pp2 dp2 mbs1 zero0"),
    (LLAMA, "pp2 dp2 mbs1 zero1 recompute=full"),
    (GPT, "pp2 vpp2 dp2 mbs1 zero1"),
    (LLAMA, "pp2 dp2 mbs1 zero1 schedule=zero-bubble"),
    (GPT, "pp2 dp2 mbs1 zero0 schedule=zbv"),
    (UNTIED, "tp2 pp2 dp2 mbs1 zero1 sp"),
    (MOE, "dp2 ep2 mbs2 zero1"),
    (MOE, "dp4 ep2 mbs1 zero0"),
    (UNTIED, "pp2 dp2 mbs1 zero1"),
    (GPT, "cp2 mbs2 zero1"),
]
SOME = [CASES[place] for place in (0, 3, 5, 6, 11, 14)]


@few(3)
@pytest.mark.parametrize(("model", "layout"), some_of(CASES, *SOME), ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("clip", [None, CLIP])
def test_gradients_reduced_behind_compute_train_alike(model, layout, clip, processes) -> None:
    """Losses and norms of every step, and how far every parameter went with the plan's own optimizer."""
    plans = [plan_for(words, model) for words in (layout, f"{layout} overlap=pp,dp")]
    ranks = plans[0].layout.num_gpus
    one, other = (processes.run(ranks, train_weights, plan, STEPS, False, None, clip) for plan in plans)
    for (curve, way), (own_curve, own_way) in zip(one, other, strict=True):
        for (value, norm), (own_value, own_norm) in zip(curve, own_curve, strict=True):
            assert own_norm == pytest.approx(norm, rel=TOLERANCE)
            assert own_value == (
                value if ranks == 2 and clip is None else pytest.approx(value, rel=TOLERANCE)
            )
        for name, gone in way.items():
            exact = ranks == 2 and clip is None
            if exact or not name.endswith(NO_GRADIENT):
                assert abs(own_way[name] - gone).max() <= (0 if exact else TOLERANCE), name


def begun_before_the_backward_pass_ends(plan: Any) -> tuple[int, int]:
    """How many reductions had been started when forward and backward were done, of how many."""

    from executor.axes.overlap import OverlapAxis

    engine, batch = engine_and_batches(plan)
    engine.forward_backward(*batch(0))
    overlap = engine.axis(OverlapAxis)
    assert overlap is not None
    begun = overlap.started
    engine.update()
    return begun, len(engine.optimizer.flats)


WHOLE = ["dp2 mbs1 zero1", "pp2 dp2 mbs1 zero0", "pp2 dp2 mbs1 zero1 schedule=zbv"]


@pytest.mark.parametrize("layout", some_of(WHOLE, WHOLE[2]))
def test_every_reduction_has_begun_when_the_backward_pass_ends(layout: str, processes) -> None:
    plan = plan_for(f"{layout} overlap=dp", UNTIED)
    for begun, flats in processes.run(plan.layout.num_gpus, begun_before_the_backward_pass_ends, plan):
        assert begun == flats > 1


GATHERS, SCATTERS = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"


def test_every_piece_is_compiled_with_the_option() -> None:
    """Without any, nothing is said, so that other backends can take the place of inductor."""
    model = Transformer(question_for(LLAMA, 1).model, vocabulary=256)
    for options, wanted in (({"_micro_pipeline_tp": True}, {"_micro_pipeline_tp": True}), (None, None)):
        told: list[dict[str, Any]] = []
        with mock.patch.object(torch.nn.Module, "compile", lambda module, told=told, **how: told.append(how)):
            compile_blocks(model, split=True, options=options)
        assert [how.get("options") for how in told] == [wanted] * len(model.blocks)
        assert all(how["fullgraph"] for how in told)


def test_torch_has_the_switch() -> None:
    assert "_micro_pipeline_tp" in torch._inductor.list_options()


@few(0)
def test_rows_of_one_sequence_train_as_the_sequence_does(processes) -> None:
    """To the bit: that they are rows is for the compiler to see products by."""
    side_by_side = GPT | {"parallel_block": True}
    two_norms = side_by_side | {"parallel_norms": 2}
    for model in first_of(1, [SHARED, side_by_side, two_norms, GPT, LLAMA, LATENT]):
        for rows, usual in zip(
            *(
                processes.run(2, train_weights, plan_for(layout, model), 2, False)
                for layout in ("tp2 sp overlap=tp", "tp2 sp")
            ),
            strict=True,
        ):
            assert rows[0] == usual[0]
            assert stray(rows[1], usual[1])[0] == 0


@pytest.mark.skipif(not THOROUGH or shutil.which("g++") is None, reason="compiles with g++ for a minute")
@pytest.mark.parametrize(
    ("model", "layout"),
    [(model, f"tp2 sp mbs{number} overlap=tp") for model in (LLAMA, GPT) for number in (1, 2)],
)
def test_collectives_inside_products_train_the_same(model: Any, layout: str, processes) -> None:
    """To the bit as without, by the compiler's own pass and torch's stand-ins for its kernels on memory of GPUs."""
    ((apart, apart_fused), *_) = processes.run(
        2, trained_and_fused, layout.replace(" overlap=tp", ""), model, False
    )
    ((inside, inside_fused), *_) = processes.run(2, trained_and_fused, layout, model, True)
    assert apart_fused == {GATHERS: 0, SCATTERS: 0}
    assert min(inside_fused.values()) > 0
    assert inside[0] == apart[0]
    assert stray(inside[1], apart[1])[0] == 0


def trained_and_fused(layout: str, model: Any, overlapped: bool) -> tuple[Trained, dict[str, int]]:
    """What two steps give on this rank of CPUs that pass for GPUs, and how many collectives went into products."""
    import torch.distributed._symmetric_memory as memory
    from torch._inductor.fx_passes import post_grad

    from executor.axes import overlap

    fused = {GATHERS: 0, SCATTERS: 0}
    kernels = torch.library.Library("symm_mem", "IMPL")
    for name in fused:
        kernels.impl(name, getattr(memory, f"_{name}_fallback"), "CPU")
    fuse = post_grad.micro_pipeline_tp_pass

    def counted(graph: torch.fx.Graph) -> None:
        fuse(graph)
        for node in graph.nodes:
            for name in fused:
                fused[name] += name in str(node.target)

    with (
        memory._test_mode(),
        mock.patch("torch.distributed.is_nccl_available", return_value=True),
        mock.patch.object(post_grad, "micro_pipeline_tp_pass", counted),
        mock.patch.object(
            overlap, "options_inside_products", return_value={"_micro_pipeline_tp": overlapped}
        ),
    ):
        try:
            return train_weights(plan_for(layout, model), 2, False, compile=True), fused
        finally:
            torch._dynamo.reset()
