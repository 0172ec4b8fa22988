"""Models with recurrences train as one process does, whatever splits their heads, blocks, tokens or replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from covering import cases_of
from effort import first_of
from processes import Processes
from test_parity import STEPS, TOLERANCE, WAY_TOLERANCE
from training import GPT, LLAMA, NOTICEABLE, Trained, plan_for, stray, train_weights

from executor.run_config import Rate

STATES: dict[str, Any] = {
    "kind": "mamba2",
    "heads": 8,
    "head_dim": 8,
    "groups": 2,
    "state_dim": 6,
    "chunk": 6,
}
DELTA = STATES | {"kind": "gated-delta", "heads": 4, "groups": 2, "chunk": 5}
IN_TURNS = LLAMA | {
    "recurrence": STATES | {"conv_bias": True, "bias": True, "least_step": 0.004},
    "mixers": ["recurrence", "attention"],
    "residual_scale": 1.5,
}
DELTA_NETS = LLAMA | {
    "recurrence": DELTA,
    "mixers": ["recurrence", "recurrence", "recurrence", "attention"],
    "attention_gate": True,
    "qk_norm": True,
    "num_experts": 4,
    "experts_per_token": 2,
    "moe_ffn_hidden_size": 48,
    "num_moe_layers": 1,
    "routing_bias": True,
}
HALVES = GPT | {
    "norm": "rmsnorm",
    "positions": "none",
    "recurrence": STATES | {"output_norm": False, "conv_width": 0},
    "mixers": ["recurrence", "none", "attention", "none"],
    "separate_halves": True,
}
SIDE_BY_SIDE = LLAMA | {"recurrence": STATES, "mixers": ["both"], "num_layers": 2}
KIMI = LLAMA | {
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 16,
    "latent_attention": {"kv_rank": 16, "position_dim": 8, "value_dim": 8},
    "recurrence": DELTA | {"kind": "kimi-delta", "groups": 4, "gate_rank": 8},
    "mixers": ["recurrence", "recurrence", "recurrence", "attention"],
}
MODELS = {"in turns": IN_TURNS, "delta nets": DELTA_NETS, "halves": HALVES, "side by side": SIDE_BY_SIDE}
MODELS["kimi"] = KIMI

LOUDER = dict.fromkeys(MODELS, 10.0) | {"delta nets": 1.0, "kimi": 1.0}
"""So that states matter: as drawn they are small beside what passes them by, but where keys have length 1."""
RATES = {"kimi": Rate(peak=0.04)}
"""Its gradient is so steep that a step at the usual rate of 0.1 climbs, and makes much of rounding."""
CASES = first_of(11, cases_of("hybrids"))


def training_of(name: str) -> partial[Trained]:
    """How a model is trained in every layout."""
    return partial(train_weights, louder=LOUDER[name], rate=RATES.get(name))


@pytest.fixture(scope="module")
def references(processes: Processes) -> dict[str, Trained]:
    """What each model does in one process, the whole batch in one microbatch."""
    return {
        name: processes.run(1, training_of(name), plan_for("mbs8", model), STEPS, True)[0]
        for name, model in MODELS.items()
    }


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} {layout}" for name, layout in CASES])
def test_same_curve_as_one_process(
    name: str, layout: str, processes: Processes, references: dict[str, Trained]
) -> None:
    """Loss and gradient norm of every step, on every rank, and the way that every parameter went."""
    plan = plan_for(layout, MODELS[name])
    expected, way = references[name]
    for curve, own in processes.run(plan.layout.num_gpus, training_of(name), plan, STEPS, True):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE)
        assert stray(own, way) < (WAY_TOLERANCE, "")


def test_the_references_learn(references: dict[str, Trained]) -> None:
    """A curve that stands still would agree with anything, and so would what recurrences hold."""
    for name, (curve, way) in references.items():
        fell, noticed = curve[0][0] - curve[-1][0], 20 * TOLERANCE * curve[0][0]
        gains_later = name == "kimi"  # so near to a guess that a first step gains nothing
        assert fell > 0.03 or (gains_later and abs(fell) > noticed)
        still = [one for one, gone in way.items() if abs(gone).max() < NOTICEABLE]
        assert [one for one in still if ".recurrence." in one] == []
