"""`overlap=tp`: torch still has the switches that it takes, a device without symmetric memory is refused, and blocks
whose collectives torch's compiler has moved into products train as the others do."""

from __future__ import annotations

import shutil
from typing import Any
from unittest import mock

import pytest
import torch
from effort import THOROUGH, few, first_of
from training import GPT, LATENT, LLAMA, SHARED, Trained, plan_for, question_for, stray, train_weights

from executor.engine.blocks import compile_blocks
from executor.models.transformer import Transformer

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
