"""The loss curve of every layout is that of one process: same seed, same text, fp32.

Plain gradient descent with a large rate, because Adam hides gradients of the wrong scale; and the norm of the global
gradient beside the loss, because a loss notices a wrong gradient one step late; and how far each parameter went,
because a norm does not notice a small gradient at all.
"""

from __future__ import annotations

from typing import Any

import pytest
from covering import cases_of, in_every_run
from effort import number
from processes import Processes
from training import BERT, GPT, LLAMA, NOTICEABLE, T5, Trained, plan_for, stray, train, train_weights

STEPS = number(2, 4)
"""The second has what the first update did."""
TOLERANCE = 1e-5
WAY_TOLERANCE = 1e-3
"""Of how far a parameter goes, which may be so little that rounding shows."""

UNTIED = GPT | {"tied_embeddings": False}
DEEP = GPT | {"num_layers": 5}
ALIBI = GPT | {"positions": "alibi"}
WINDOWED = LLAMA | {"attention_window": 6}
IN_TURNS = WINDOWED | {"window_pattern": ["window", "full"]}
CHUNKED = IN_TURNS | {"window_kind": "chunked"}
NORMED = LLAMA | {"qk_norm": True, "head_dim": 16, "tied_embeddings": True}
SIDE_BY_SIDE = WINDOWED | {"parallel_block": True, "attention_bias": True, "mlp_bias": True}
TWO_NORMS = GPT | {"parallel_block": True, "parallel_norms": 2, "head_bias": True, "tied_embeddings": False}
AROUND = IN_TURNS | {
    "norm_placement": "around",
    "embedding_norm": True,
    "embedding_scale": 4.0,
    "logit_scale": 0.5,
    "attention_scale": 0.5,
    "rotary": {"base": 500.0, "windowed_base": 50.0, "dim": 4},
}
AFTER = LLAMA | {
    "norm_placement": "after",
    "qk_norm": True,
    "qk_norm_over": "all",
    "rotary": {
        "pattern": [True, True, False],
        "scaling": {"kind": "llama3", "factor": 8.0, "first_positions": 16},
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "llama": LLAMA,
    "untied": UNTIED,
    "five": DEEP,
    "alibi": ALIBI,
    "windowed": WINDOWED,
    "in turns": IN_TURNS,
    "chunked": CHUNKED,
    "normed": NORMED,
    "side by side": SIDE_BY_SIDE,
    "two norms": TWO_NORMS,
    "around": AROUND,
    "after": AFTER,
    "bert": BERT,
    "stacks": T5,
    "gated stacks": T5
    | {"gated_mlp": True, "tied_embeddings": False, "num_kv_heads": 2, "positions": "rotary"}
    | {"stacks": {"encoder_layers": 3}},
    "norms before": BERT | {"norm_placement": "before", "tied_embeddings": False},
}

CASES = in_every_run(cases_of("parity"))


@pytest.fixture(scope="session")
def references(processes: Processes) -> dict[str, Trained]:
    """What each model does in one process, the whole batch in one microbatch."""
    return {
        name: processes.run(1, train_weights, plan_for("mbs8", model), STEPS, True)[0]
        for name, model in MODELS.items()
    }


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} {layout}" for name, layout in CASES])
def test_same_curve_as_one_process(
    name: str, layout: str, processes: Processes, references: dict[str, Trained]
) -> None:
    """Loss and gradient norm of every step, on every rank, and the way that every parameter went."""
    plan = plan_for(layout, MODELS[name])
    expected, way = references[name]
    for curve, own in processes.run(plan.layout.num_gpus, train_weights, plan, STEPS, True):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE)
        assert stray(own, way) < (WAY_TOLERANCE, "")


def test_the_reference_learns(references: dict[str, Trained]) -> None:
    """A curve that stands still would agree with anything, and so would parameters."""
    for curve, way in references.values():
        assert curve[-1][0] < curve[0][0] - 0.05
        assert min(norm for _, norm in curve) > 0
        still = [name for name, gone in way.items() if abs(gone).max() < NOTICEABLE]
        assert all(name.endswith("key.bias") for name in still)  # it adds as much to every score of a row


def test_adamw_trains_the_same_under_sharding(processes: Processes) -> None:
    """The plan's own optimizer, sharded over two ranks."""
    expected = processes.run(1, train, plan_for("mbs8"), STEPS, False)[0]
    for layout in ("dp2 mbs2 zero1", "dp2 mbs2 zero3", "tp2 mbs8"):
        plan = plan_for(layout)
        got = processes.run(2, train, plan, STEPS, False)[0]
        assert got == [pytest.approx(pair, rel=1e-4) for pair in expected]


@pytest.mark.parametrize(
    "layout",
    [
        "mbs2",
        "dp2 mbs2 zero1",
        "dp2 mbs2 zero3",
        "tp2 sp mbs2",
        "pp2 dp2 mbs2 zero1",
        "pp2 dp2 mbs1 zero1 schedule=zbv",
        "dp4 mbs2 zero3 shard2",
        "cp2 mbs2 context=ring",
        "cp2 mbs2 context=all-gather",
        "cp2 dp2 mbs2 zero3 context=all-to-all",
    ],
)
def test_sixteen_bits_follow_the_curve(
    layout: str, processes: Processes, references: dict[str, Trained]
) -> None:
    """Weights in bf16 with an fp32 master stay within rounding of fp32."""
    plan = plan_for(layout, precision="bf16")
    curve = processes.run(plan.layout.num_gpus, train, plan, STEPS, True)[0]
    for (value, _), (expected, _) in zip(curve, references["gpt"][0], strict=True):
        assert value == pytest.approx(expected, rel=2e-3)
