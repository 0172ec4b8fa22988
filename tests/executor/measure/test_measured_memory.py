"""Peak memory as predicted, as our tracker measures it rank by rank, and as torch's own trackers do.

Not here because the model misses them: Llama shapes under tensor parallelism, 3 % low (6 % with a pipeline), on a CPU,
where RMS norm's backward pass is many kernels whose temporaries the model does not follow; two
stacks under full recompute, 2.5 % low, whose peak is in the backward pass of attention with biases, not of the MLP.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from covering import cases_of, in_every_run
from effort import few, some_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from training import GPT, LLAMA, MOE, T5, engine_and_batches, plan_for

from executor.axes.context import share_sequence
from executor.engine.engine import loss, recompute_activations
from executor.measure.memory import OTHER_PART, StorageTracker
from executor.measure.report import predicted_parts
from executor.models.positions import WholeSequence
from executor.models.transformer import Transformer
from planner.plan import Plan


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))


def test_equals_torch_mem_tracker() -> None:
    """Same model, same step: the same peak to the byte."""
    model, x = two_layers(), torch.randn(32, 64)
    theirs = MemTracker()
    theirs.track_external(model, x)
    with theirs:
        model(x).sum().backward()
    expected = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    model.zero_grad()
    ours = StorageTracker()
    ours.name("weights", model.parameters())
    ours.name(OTHER_PART, [x])
    with ours:
        model(x).sum().backward()
    assert sum(ours.peak.values()) == expected


def peak(plan: Plan) -> dict[str, int]:
    """Measured parts of this rank, after a first step.

    Of several ranks the lesser of two steps: what gloo's threads have sent but not yet let go of counts too, so where
    others keep a machine busy a step may hold more than it needs, never less.
    """
    from executor.measure.memory import measure_memory

    engine, batch = engine_and_batches(plan)
    engine.step(*batch(0))
    steps = (1, 2) if plan.layout.num_gpus > 1 else (1,)
    measured = [measure_memory(engine, *batch(step)) for step in steps]
    return min(measured, key=lambda parts: sum(parts.values()))


STEP_COUNTER = 4
"""AdamW keeps its step in a tensor of one element for each parameter, one here."""


TOTAL_ERROR, STATES_ERROR = 0.02, 0.01
_SIZE: dict[str, Any] = {"hidden_size": 256, "vocab_size": 512, "max_positions": 256}
_JOB: dict[str, Any] = {"global_batch": 8, "sequence_length": 256}
_GATED = LLAMA | _SIZE | {"ffn_hidden_size": 688}
_MAMBA = {"kind": "mamba2", "heads": 16, "head_dim": 32, "groups": 2, "state_dim": 64}
_DELTA = {"kind": "gated-delta", "heads": 8, "head_dim": 32, "groups": 4, "state_dim": 32}
_EXPERTS = {"moe_ffn_hidden_size": 344, "shared_expert_ffn_hidden_size": 344, "experts_per_token": 4}
"""Every token goes to every expert, as the model takes loads to be even."""
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": GPT | _SIZE,
    "llama": _GATED,
    "side by side": GPT | _SIZE | {"parallel_block": True},
    "two norms": GPT | _SIZE | {"parallel_block": True, "parallel_norms": 2},
    "around": _GATED | {"norm_placement": "around"},
    "after": _GATED | {"norm_placement": "after"},
    "stacks": T5 | _SIZE | {"activation": "gelu"},
    "states": _GATED | {"recurrence": _MAMBA},
    "delta nets": _GATED | {"attention_gate": True, "recurrence": _DELTA},
    "mixture": MOE | _SIZE | {"ffn_hidden_size": 688} | _EXPERTS,
}
CASES = in_every_run(cases_of("peaks"))
TURN_ERROR = 0.12
"""Where a V turns, what its two stages hand one another counts twice, and so do the gradients of the block at work."""


@few(8)
@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_peak_is_what_the_plan_says(layout: str, shape: str, processes) -> None:
    """The total within 2 % on every rank; weights, gradients and optimizer states within 1 %.

    Under ZeRO-3 only the total: the block gathered at the peak is measured as weights and predicted as working memory.
    """
    plan = plan_for(layout, SHAPES[shape], **_JOB)
    ranks = processes.run(plan.layout.num_gpus, peak, plan)
    for rank, measured in enumerate(ranks):
        stage = plan.layout.place_along("pp", rank)
        predicted = predicted_parts(plan.prediction.rank_memory[stage])
        assert sum(predicted.values()) == pytest.approx(sum(measured.values()), rel=TOTAL_ERROR)
        for part in () if plan.layout.zero == 3 else ("weights", "gradients", "optimizer"):
            assert predicted[part] == pytest.approx(measured[part], rel=STATES_ERROR, abs=STEP_COUNTER)


SCANS_ERROR = 0.03
"""What a scan of plain products holds is fitted, within 5 % of it; `recompute=full` is priced 4 % high."""


@few(1)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [("delta nets", "mbs2 recompute=selective"), ("states", "mbs2"), ("states", "tp2 mbs2")],
)
def test_peak_of_scans(shape: str, layout: str, processes) -> None:
    """Blocks that all have recurrences: where they are in turns, the widest is priced as if it came last."""
    plan = plan_for(layout, SHAPES[shape], **_JOB)
    predicted = sum(predicted_parts(plan.prediction.rank_memory[0]).values())
    for measured in processes.run(plan.layout.num_gpus, peak, plan):
        assert predicted == pytest.approx(sum(measured.values()), rel=SCANS_ERROR)


IN_16_BITS = (("gpt", "dp2 mbs2 zero1"), ("gpt", "dp2 mbs2 zero3"), ("llama", "mbs2 recompute=selective"))
"""Few in every run: most CPUs multiply 16 bits ten times slower than 32."""


@few(1)
@pytest.mark.parametrize(("shape", "layout"), IN_16_BITS)
def test_peak_in_16_bits(shape: str, layout: str, processes) -> None:
    """Weights in bf16 and the fp32 copies of them, wherever they are: the total within 2 %, the states within 1 %."""
    plan = plan_for(layout, SHAPES[shape], precision="bf16", **_JOB | {"global_batch": 4})
    predicted = predicted_parts(plan.prediction.rank_memory[0])
    for measured in processes.run(plan.layout.num_gpus, peak, plan):
        assert sum(predicted.values()) == pytest.approx(sum(measured.values()), rel=TOTAL_ERROR)
        for part in ("optimizer",) if plan.layout.zero == 3 else ("weights", "optimizer"):
            assert predicted[part] == pytest.approx(measured[part], rel=STATES_ERROR, abs=STEP_COUNTER)


ADAPTERS: dict[str, Any] = {"rank": 8, "targets": ("all-linear",)}
TUNED = some_of(
    [
        (shape, layout, base)
        for shape in ("gpt", "adapted llama")
        for layout in ("mbs2", "mbs2 recompute=full", "dp2 mbs2 zero3")
        for base in (None, "nf4", "int8")
    ],
    ("gpt", "mbs2 recompute=full", "int8"),
    ("adapted llama", "mbs2", None),
    ("adapted llama", "mbs2 recompute=full", "nf4"),
)


@few(1)
@pytest.mark.parametrize(("shape", "layout", "base"), TUNED)
def test_peak_of_adapters(shape: str, layout: str, base: str | None, processes) -> None:
    """Beside frozen weights, quantised or not: norms keep no normalised input for a frozen gain, gradients inside the
    MLP come twice, biases are kept as they are."""
    shapes = SHAPES | {"adapted llama": SHAPES["llama"] | {"ffn_hidden_size": 704}}
    plan = plan_for(layout, shapes[shape], tuning=ADAPTERS | {"base": base}, **_JOB)
    predicted = predicted_parts(plan.prediction.rank_memory[0])
    for measured in processes.run(plan.layout.num_gpus, peak, plan):
        assert sum(predicted.values()) == pytest.approx(sum(measured.values()), rel=TOTAL_ERROR)
        for part in () if plan.layout.zero == 3 else ("weights", "gradients", "optimizer"):
            assert predicted[part] == pytest.approx(measured[part], rel=STATES_ERROR, abs=64)


@few(1)
@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_the_peak_of_a_v_is_never_understated(schedule: str, processes) -> None:
    """Within 2 % where both ends are, above the measured peak at the turn."""
    plan = plan_for(f"pp2 mbs2 schedule={schedule}", SHAPES["gpt"], **_JOB)
    ends, turn = processes.run(2, peak, plan)
    predicted = [sum(predicted_parts(parts).values()) for parts in plan.prediction.rank_memory]
    assert predicted[0] == pytest.approx(sum(ends.values()), rel=TOTAL_ERROR)
    assert sum(turn.values()) <= predicted[1] <= (1 + TURN_ERROR) * sum(turn.values())


MICROBATCH, SEQUENCE = 2, 1024
SIZE: dict[str, Any] = {"hidden_size": 1024, "num_heads": 16, "num_layers": 12, "vocab_size": 8192}
SIZE |= {"max_positions": SEQUENCE}
LARGE_SHAPES: dict[str, dict[str, Any]] = {
    "gpt": GPT | SIZE,
    "llama": LLAMA | SIZE | {"ffn_hidden_size": 2752},
}
ERROR = 0.0005
NORMS_KEPT = 0.025
"""A Llama shape without recomputation: RMS norms written out keep a little less than the model says."""


@pytest.mark.parametrize(("shape", "recompute"), [*product(LARGE_SHAPES, ("none", "full", "selective"))])
@few(1)
def test_the_peak_of_a_step_is_what_torch_tracks(shape: str, recompute: str) -> None:
    plan = plan_for(
        f"mbs{MICROBATCH} recompute={recompute}",
        LARGE_SHAPES[shape],
        global_batch=8,
        sequence_length=SEQUENCE,
    )
    predicted = predicted_parts(plan.prediction.rank_memory[0])
    training = sum(predicted.values()) - predicted["optimizer"]  # no update is tracked
    loose = shape == "llama" and recompute == "none"
    assert training == pytest.approx(tracked_peak(plan), rel=NORMS_KEPT if loose else ERROR)


def tracked_peak(plan: Plan) -> float:
    """Bytes at the peak of one microbatch, forward and backward, with gradients that stay from step to step."""
    model = plan.model
    with FakeTensorMode():
        part = Transformer(model, vocabulary=model.vocab_size, dropout=0.0, has_embedding=True, has_head=True)
        share_sequence(part, WholeSequence())
        recompute_activations(part, plan.layout.stage_recompute[0])
        for parameter in part.parameters():
            parameter.grad = torch.zeros_like(parameter)
        tracker = MemTracker()
        tracker.track_external(part)
        tokens = torch.zeros((MICROBATCH, SEQUENCE), dtype=torch.long)
        with tracker:
            loss(part(tokens), tokens).backward()  # type: ignore[no-untyped-call]
    (device,) = tracker.get_tracker_snapshot("peak").values()
    return float(device["Total"])
