"""The loss curve of every layout is that of one process: same seed, same text, fp32.

Plain gradient descent with a large rate, because Adam hides gradients of the wrong scale; and the norm of the global
gradient beside the loss, because a loss notices a wrong gradient one step late; and how far each parameter went,
because a norm does not notice a small gradient at all. The load-balance loss of a mixture is in its gradient, and no
part of the loss compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from covering import cases_of, in_every_run
from effort import few, number
from processes import Processes
from training import (
    BERT,
    CLIP,
    GPT,
    LATENT,
    LLAMA,
    LLAVA,
    MOE,
    NOTICEABLE,
    SHARED,
    T5,
    TWO_IMAGES,
    Trained,
    plan_for,
    stray,
    train,
    train_weights,
)

from executor.axes.expert import Exchange
from executor.run_config import Rate

STEPS = number(2, 4)
"""The second has what the first update did."""
TOLERANCE = 1e-5
WAY_TOLERANCE = 1e-3
"""Of how far a parameter goes, which may be so little that rounding shows."""

WINDOWED = LLAMA | {"attention_window": 6}
IN_TURNS = WINDOWED | {"window_pattern": ["window", "full"]}
AROUND = IN_TURNS | {"norm_placement": "around", "embedding_norm": True, "embedding_scale": 4.0}
AROUND |= {"logit_scale": 0.5, "attention_scale": 0.5}
AROUND |= {"rotary": {"base": 500.0, "windowed_base": 50.0, "dim": 4}}
AFTER = LLAMA | {
    "norm_placement": "after",
    "qk_norm": True,
    "qk_norm_over": "all",
    "rotary": {
        "pattern": [True, True, False],
        "scaling": {"kind": "llama3", "factor": 8.0, "first_positions": 16},
    },
}
ROUTED = SHARED | {"num_experts": 8, "num_moe_layers": 2, "moe_layers": [1, 3], "router_bias": True}
ROUTED |= {"expert_groups": {"count": 4, "per_token": 2, "scored_by": "two best"}, "routing_scale": 2.5}
ROUTED |= {"shared_expert_gate": True}
"""Every second block a mixture, with all that a router and its shared experts may have."""

STATES: dict[str, Any] = {"kind": "mamba2", "heads": 8, "head_dim": 8, "groups": 2, "state_dim": 6}
STATES |= {"chunk": 6}
DELTA = STATES | {"kind": "gated-delta", "heads": 4, "groups": 2, "chunk": 5}
STATES_IN_TURNS = LLAMA | {"recurrence": STATES | {"conv_bias": True, "bias": True, "least_step": 0.004}}
STATES_IN_TURNS |= {"mixers": ["recurrence", "attention"], "residual_scale": 1.5}
DELTA_NETS = LLAMA | {"recurrence": DELTA, "mixers": ["recurrence", "recurrence", "recurrence", "attention"]}
DELTA_NETS |= {"attention_gate": True, "qk_norm": True, "num_experts": 4, "experts_per_token": 2}
DELTA_NETS |= {"moe_ffn_hidden_size": 48, "num_moe_layers": 1, "routing_bias": True}
HALVES = GPT | {"norm": "rmsnorm", "positions": "none"}
HALVES |= {"recurrence": STATES | {"output_norm": False, "conv_width": 0}}
HALVES |= {"mixers": ["recurrence", "none", "attention", "none"], "separate_halves": True}
STATES_BESIDE = LLAMA | {"recurrence": STATES, "mixers": ["both"], "num_layers": 2}
KIMI = LLAMA | {"num_heads": 4, "num_kv_heads": 4, "head_dim": 16}
KIMI |= {"latent_attention": {"kv_rank": 16, "position_dim": 8, "value_dim": 8}}
KIMI |= {"recurrence": DELTA | {"kind": "kimi-delta", "groups": 4, "gate_rank": 8}}
KIMI |= {"mixers": ["recurrence", "recurrence", "recurrence", "attention"]}
MERGED = GPT | {
    "num_layers": 4,
    "tower": CLIP
    | {"class_token": False, "merge": 2, "image": 16, "norm_after": True, "projector_hidden_size": 0},
}
WIDE: dict[str, Any] = {"hidden_size": 128, "ffn_hidden_size": 256, "num_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "llama": LLAMA,
    "untied": GPT | {"tied_embeddings": False},
    "five": GPT | {"num_layers": 5},
    "alibi": GPT | {"positions": "alibi"},
    "windowed": WINDOWED,
    "in turns": IN_TURNS,
    "chunked": IN_TURNS | {"window_kind": "chunked"},
    "normed": LLAMA | {"qk_norm": True, "head_dim": 16, "tied_embeddings": True},
    "side by side": WINDOWED | {"parallel_block": True, "attention_bias": True, "mlp_bias": True},
    "two norms": GPT
    | {"parallel_block": True, "parallel_norms": 2, "head_bias": True, "tied_embeddings": False},
    "around": AROUND,
    "after": AFTER,
    "bert": BERT,
    "stacks": T5,
    "gated stacks": T5
    | {"gated_mlp": True, "tied_embeddings": False, "num_kv_heads": 2, "positions": "rotary"}
    | {"stacks": {"encoder_layers": 3}},
    "norms before": BERT | {"norm_placement": "before", "tied_embeddings": False},
    "mixture": MOE,
    "shared": SHARED,
    "latent": LATENT,
    "deepseek": SHARED | LATENT | {"num_moe_layers": 3},
    "routed": ROUTED,
    "states in turns": STATES_IN_TURNS,
    "delta nets": DELTA_NETS,
    "halves": HALVES,
    "states beside": STATES_BESIDE,
    "kimi": KIMI,
    "wide gpt": GPT | WIDE,
    "wide llama": LLAMA | WIDE,
    "llava": LLAVA,
    "merged": MERGED,
}

LOUDER = dict.fromkeys(("states in turns", "halves", "states beside"), 10.0)
"""So that states matter: as drawn they are small beside what passes them by, but where keys have length 1."""
RATES = {"kimi": Rate(peak=0.04)}
"""Its gradient is so steep that a step at the usual rate of 0.1 climbs, and makes much of rounding."""
MIXTURES = ("mixture", "shared", "latent", "deepseek", "routed")
"""Models in which some parameter hardly moves: an expert that gets no token, the norm of a latent."""
CASES = in_every_run(cases_of("parity"))
IDS = [f"{name} {layout}" for name, layout in CASES]


def training_of(name: str) -> partial[Trained]:
    """How a model is trained in every layout."""
    return partial(train_weights, louder=LOUDER.get(name, 1.0), rate=RATES.get(name))


@pytest.fixture(scope="session")
def references(processes) -> dict[str, Trained]:
    """What each model does in one process, the whole batch in one microbatch."""
    return {
        name: processes.run(1, training_of(name), plan_for("mbs8", MODELS[name]), STEPS, True)[0]
        for name in dict.fromkeys(["gpt", *(name for name, _ in CASES)])
    }


def require_same(name: str, plan: Any, expected: Trained, processes: Processes) -> None:
    """Loss and gradient norm of every step, on every rank, and the way that every parameter went."""
    curve, way = expected
    for own_curve, own in processes.run(plan.num_ranks, training_of(name), plan, STEPS, True):
        for got, wanted in zip(own_curve, curve, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE)
        assert stray(own, way) < (WAY_TOLERANCE, "")


@pytest.mark.parametrize(("name", "layout"), CASES, ids=IDS)
def test_same_curve_as_one_process(name: str, layout: str, processes, references) -> None:
    require_same(name, plan_for(layout, MODELS[name]), references[name], processes)


ADAPTERS: dict[str, Any] = {"tuning": {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}}
QUANTISED: dict[str, dict[str, Any]] = {
    base: {"tuning": ADAPTERS["tuning"] | {"base": base}} for base in ("nf4", "int8")
}
FEW_BLOCKS: dict[str, Any] = {"freeze": ("embedding", "first=2")}
JOBS: list[tuple[str, str, dict[str, Any]]] = [
    ("llava", "tp2 pp2 sp mbs2", TWO_IMAGES),
    ("llava", "pp4 mbs1 recompute=full", TWO_IMAGES | {"freeze": ("tower",)}),
    ("merged", "tp2 dp2 mbs2 zero3 recompute=selective", {}),
    ("merged", "pp2 dp2 mbs2 zero1", {"freeze": ("tower", "language")}),
    ("llama", "tp2 dp2 mbs2 zero1", ADAPTERS),
    ("llava", "pp2 dp2 mbs2 zero2", {"freeze": ("tower", "projector", "embedding")}),
    ("gpt", "tp2 pp2 sp mbs2", ADAPTERS),
    ("wide llama", "tp2 dp2 sp mbs2 zero3", QUANTISED["nf4"]),
    ("merged", "tp2 sp dp2 mbs2 zero1", {"freeze": ("embedding",)}),
    ("llava", "pp2 mbs2 schedule=zbv vpp2", {}),
    ("llama", "pp2 dp2 mbs2 zero0 recompute=full", ADAPTERS),
    ("llama", "tp2 dp2 sp mbs2 zero3", ADAPTERS),
    ("gpt", "cp2 dp2 mbs2 zero1", ADAPTERS),
    ("wide gpt", "tp2 pp2 mbs2 recompute=full", QUANTISED["int8"]),
    ("wide gpt", "tp2 dp2 mbs2 zero1", QUANTISED["nf4"]),
    ("wide llama", "dp3 mbs2 zero3 recompute=full", QUANTISED["int8"] | {"global_batch": 12}),
    ("llama", "tp2 dp2 sp mbs2 zero3", FEW_BLOCKS),
    ("llama", "pp4 dp2 mbs1 zero1", FEW_BLOCKS),
    ("gpt", "dp2 mbs2 zero2 recompute=full", {"freeze": ("first=3",)}),
    ("llama", "pp2 vpp2 mbs2", {"freeze": ("embedding", "first=3")}),
    ("mixture", "ep2 dp2 mbs2 zero1", FEW_BLOCKS),
    ("llama", "dp2 mbs2 zero1 overlap=dp", FEW_BLOCKS),
]
"""Towers before a decoder, adapters beside matrices in full or in fewer bits, frozen parts."""


def is_trained(name: str, plan: Any) -> bool:
    """Whether a parameter moves; nothing is said of parts of towers."""
    if plan.training.tuning is not None:
        return "_adapter" in name
    freeze, tied = plan.training.freeze, plan.model.tied_embeddings
    count = max([int(one.removeprefix("first=")) for one in freeze if "=" in one], default=0)
    still = ("embedding.", *["head.weight"] * tied) if "embedding" in freeze else ()
    return not name.startswith((*still, *(f"blocks.{layer}." for layer in range(count))))


@few(7)
@pytest.mark.parametrize(("name", "layout", "job"), JOBS, ids=[f"{name} {text}" for name, text, _ in JOBS])
def test_a_job_trains_as_in_one_process(name: str, layout: str, job: dict[str, Any], processes) -> None:
    """What is frozen stays bit for bit, and the rest moves."""
    alone = plan_for(f"mbs{job.get('global_batch', 8)}", MODELS[name], **job)
    expected = processes.run(1, training_of(name), alone, STEPS, True)[0]
    require_same(name, plan_for(layout, MODELS[name], **job), expected, processes)
    moved = {one for one, gone in expected[1].items() if abs(gone).max() > 0}
    if alone.model.tower is None:
        assert moved == {one for one in expected[1] if is_trained(one, alone)}


def test_the_references_learn(references) -> None:
    """A curve that stands still would agree with anything, and so would parameters."""
    for name, (curve, way) in references.items():
        fell, noticed = curve[0][0] - curve[-1][0], 20 * TOLERANCE * curve[0][0]
        gains_later = name == "kimi"  # so near to a guess that a first step gains nothing
        assert fell > 0.03 or (gains_later and abs(fell) > noticed), name
        assert min(norm for _, norm in curve) > 0
        still = [one for one, gone in way.items() if abs(gone).max() < NOTICEABLE]
        of_mixers = [
            one for one in still if not one.endswith("key.bias")
        ]  # it adds as much to every score of a row
        assert name in MIXTURES or not [
            one for one in of_mixers if "recurrence" not in MODELS[name] or ".recurrence." in one
        ]


@few(4)
@pytest.mark.parametrize(
    "layout",
    [
        "dp2 mbs2 zero3",
        "tp2 sp mbs2",
        "pp2 dp2 mbs1 zero1 schedule=zbv",
        "dp4 mbs2 zero3 shard2",
        "cp2 dp2 mbs2 zero3 context=all-to-all",
    ],
)
def test_sixteen_bits_follow_the_curve(layout: str, processes, references) -> None:
    """Weights in bf16 with an fp32 master stay within rounding of fp32."""
    plan = plan_for(layout, precision="bf16")
    curve = processes.run(plan.layout.num_gpus, train, plan, STEPS, True)[0]
    for (value, _), (expected, _) in zip(curve, references["gpt"][0], strict=True):
        assert value == pytest.approx(expected, rel=2e-3)


def shared_out(some: int) -> list[list[float]]:
    """What comes back of rows that experts double, in two parts each; rank 1 has `some` rows."""
    rows_RD = torch.ones((some if dist.get_rank() else 3), 4)
    alone = dist.new_subgroups(1)[0]
    exchange = Exchange(alone, dist.group.WORLD)
    found: list[list[float]] = exchange(
        rows_RD, torch.tensor([len(rows_RD)]), lambda rows, counts: rows
    ).tolist()
    return found


@pytest.mark.parametrize("some", [2, 0])
def test_a_rank_without_copies_shares_experts_too(some: int, processes) -> None:
    """Each of two ranks adds its part to all rows."""
    assert processes.run(2, shared_out, some) == [[[2.0] * 4] * 3, [[2.0] * 4] * some]
