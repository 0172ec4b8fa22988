"""Training in fp8 and beside frozen matrices in nf4 or int8: every layout trains alike, and what is refused.

Products in fp8 are emulated here: operands are rounded as on a GPU and multiplied in fp32. The rest of the model runs
in fp32, not in bf16 as it would, so that layouts can be compared. A scale is a power of two, hence an operand is
rounded alike wherever its row is cut (executor/engine/fp8.py). What is left is rounding of fp32, 2^-23: an operand
that lies that close to a middle between two numbers of e4m3, which are 2^-3 apart, goes the other way, one of about
2^20. A step here rounds about 2^21 operands, so a few of them change, by an eighth at most, each one of 64 and more
that a sum has: the loss may move by 1e-4 of itself and the norm of the gradient by 1e-3. Rounding to fp8 itself moves
the norm by 1e-2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any
from unittest import mock

import pytest
import torch
from effort import few
from initialising import initialise
from torch import Tensor, nn
from training import LATENT, LLAMA, MOE, engine_and_batches, train_weights
from training import plan_for as plan_here

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import HostError, InputError
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor import requirements as fp8_support
from executor.emulate.one_rank import emulate
from executor.launch.launch import run_plan
from executor.models.quantised import Part, dynamic_numbers, nf4_numbers
from executor.run_config import RunConfig
from planner.plan import Plan, make_plan
from planner.rules.legality import check
from planner.rules.stack import require_runnable

STEPS = 2
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-4, 1e-3
BIASED: dict[str, Any] = LLAMA | {"hidden_size": 64, "attention_bias": True, "mlp_bias": True}
NARROW: dict[str, Any] = LATENT | {
    "hidden_size": 64,
    "head_dim": 24,
    "latent_attention": {"kv_rank": 16, "query_rank": 16, "position_dim": 16, "value_dim": 8},
}
MODELS = {"biased": BIASED, "latent": NARROW}


def question_for(
    model: dict[str, Any], ranks: int = 1, precision: Precision = "fp8", cluster: str = "dgx-h100"
) -> Question:
    job = TrainingSpec(global_batch=8, sequence_length=32, precision=precision)
    spec = TransformerSpec.model_validate(model)
    return complete_question(spec, resolve_cluster(cluster, ranks), job, stack="meshwright")


def plan_for(layout: str, model: dict[str, Any] = BIASED, precision: Precision = "fp8") -> Plan:
    parsed = parse_layout(layout)
    question = question_for(model, parsed.num_gpus, precision)
    return make_plan(question, estimate(question, parsed))


@contextmanager
def emulated(wide: torch.dtype) -> Iterator[None]:
    """Engines made inside emulate products in fp8, and compute all else in this type."""
    from executor import run_config
    from executor.axes import axis

    options = partial(run_config.EngineOptions, emulate_fp8=True)
    with (
        mock.patch.dict(axis._COMPUTE_DTYPES, {"bf16": wide}),
        mock.patch.object(run_config, "EngineOptions", options),
    ):
        yield


def curve(plan: Plan, wide: torch.dtype = torch.float32) -> list[tuple[float, float]]:
    """(loss, norm of the gradient) of each step."""
    with emulated(wide):
        return train_weights(plan, STEPS, True)[0]


@pytest.fixture(scope="module")
def references(processes) -> dict[tuple[str, Precision], list[tuple[float, float]]]:
    """What each model does in one process, the whole batch in one microbatch, in fp8 and without it."""
    precisions: tuple[Precision, ...] = ("fp8", "bf16")
    return {
        (name, precision): processes.run(1, curve, plan_for("mbs8", model, precision))[0]
        for name, model in MODELS.items()
        for precision in precisions
    }


@few(3)
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("biased", "tp2 mbs4"),
        ("biased", "tp2 sp mbs4 recompute=selective"),
        ("latent", "tp2 sp mbs4"),
        ("biased", "dp2 mbs2 zero1"),
        ("biased", "dp2 mbs2 zero3 recompute=full"),
        ("biased", "pp2 mbs2"),
        ("biased", "cp2 mbs2 zero2"),
    ],
)
def test_every_layout_trains_alike(name: str, layout: str, references, processes) -> None:
    plan = plan_for(layout, MODELS[name])
    for found in processes.run(plan.layout.num_gpus, curve, plan):
        for (loss, norm), (expected_loss, expected_norm) in zip(found, references[name, "fp8"], strict=True):
            assert loss == pytest.approx(expected_loss, rel=LOSS_TOLERANCE)
            assert norm == pytest.approx(expected_norm, rel=NORM_TOLERANCE)


def test_fp8_is_another_curve_and_not_far(references) -> None:
    for name in MODELS:
        pairs = zip(references[name, "fp8"], references[name, "bf16"], strict=True)
        off = [(abs(loss / wide - 1), abs(norm / wide_norm - 1)) for (loss, norm), (wide, wide_norm) in pairs]
        assert max(loss for loss, _ in off) < 0.01
        assert 3 * NORM_TOLERANCE < max(norm for _, norm in off) < 0.1


def meetings(plan: Plan) -> Counter[str]:
    """Collectives of one step, those inside operators on split tensors with them."""
    from torch.distributed.tensor.debug import CommDebugMode

    with emulated(torch.float32):
        made, batch = engine_and_batches(plan)
        with CommDebugMode() as watch:
            made.step(*batch(0))
    return Counter({str(name): count for name, count in watch.get_comm_counts().items()})


@pytest.mark.parametrize("layout", ["tp2 mbs8", "tp2 sp mbs8"])
def test_tensor_ranks_agree_on_no_scales(layout: str, processes) -> None:
    """They meet as often as without fp8."""
    fp8, wide = (
        processes.run(2, meetings, plan_for(layout, BIASED, precision))[0] for precision in ("fp8", "bf16")
    )
    assert fp8 == wide
    assert fp8.total() > BIASED["num_layers"]


def slice_of(model: dict[str, Any], dtype: torch.dtype) -> Any:
    """A whole small model, in one process."""
    from executor.engine.weights import made_of
    from executor.models.transformer import Transformer

    with made_of(dtype):
        made = Transformer(TransformerSpec.model_validate(model), vocabulary=256)
    initialise(made, 0, tied=False)
    return made


@pytest.mark.parametrize("model", [BIASED, NARROW], ids=list(MODELS))
def test_the_matrices_of_the_blocks_and_no_others(model: dict[str, Any]) -> None:
    from executor.engine.fp8 import Float8Linear, multiply_in_fp8

    made = slice_of(model, torch.bfloat16)
    matrices = {name for name, module in made.named_modules() if isinstance(module, nn.Linear)}
    before = {name: id(parameter) for name, parameter in made.named_parameters()}
    multiply_in_fp8(made, emulate=True)
    found = {name for name, module in made.named_modules() if isinstance(module, Float8Linear)}
    assert found == matrices - {"head"}
    assert len(found) == model["num_layers"] * (8 if model is NARROW else 7)
    assert {name: id(parameter) for name, parameter in made.named_parameters()} == before


def test_a_block_keeps_what_it_keeps_in_bf16() -> None:
    """The same bytes for the backward pass: inputs in 16 bits, no operands in fp8."""
    from executor.engine.fp8 import multiply_in_fp8

    kept = {}
    for precision in ("bf16", "fp8"):
        made = slice_of(BIASED, torch.bfloat16)
        if precision == "fp8":
            multiply_in_fp8(made, emulate=True)
        weights = {parameter.untyped_storage()._cdata for parameter in made.parameters()}
        storages: dict[int, Any] = {}

        def pack(tensor: torch.Tensor, storages: dict[int, Any] = storages) -> torch.Tensor:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
            return tensor

        x = torch.randn(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made.blocks["0"](x)
        kept[precision] = sum(one.nbytes() for key, one in storages.items() if key not in weights)
    assert kept["fp8"] == kept["bf16"] > 0


def test_casts_hold_an_operand_in_fp32_for_a_moment() -> None:
    """The peak of a rank without values is higher by what is predicted of it, or up to a quarter less: in bf16 the
    gated MLP's own gradients peak in a moment that the model does not follow."""
    model = BIASED | {"ffn_hidden_size": 1024, "num_layers": 2}
    plans = [plan_for("mbs8", model, precision) for precision in ("bf16", "fp8")]
    wide, fp8 = (emulate(plan, 0, fake=True).peak_bytes for plan in plans)
    expected = 9 * 8 * 32 * 1024
    working = [plan.prediction.rank_memory[0]["working"] for plan in plans]
    assert working[1] - working[0] == pytest.approx(expected)
    assert 0.75 * expected < fp8 - wide < expected


def refused(layout: str, model: dict[str, Any] = BIASED) -> str:
    """Why a layout is no plan in fp8."""
    parsed = parse_layout(layout)
    return " / ".join(problem.what for problem in check(question_for(model, parsed.num_gpus), parsed))


def test_layouts_that_cannot_multiply_in_fp8_are_no_plans() -> None:
    assert "with tp2 some are 8" in refused("tp2 mbs2", BIASED | {"num_kv_heads": 1, "head_dim": 16})
    assert "with tp1 cp4 some are 8" in refused("cp4 mbs2")
    assert "experts do not multiply in fp8" in refused("mbs2", MOE | {"hidden_size": 64})
    assert "each half of a backward pass" in refused("pp2 mbs2 schedule=zbv")
    assert not refused("tp2 mbs2")
    with pytest.raises(InputError, match="`a100-sxm-80gb` has no fp8 matrix rate"):
        estimate(question_for(BIASED, 1, cluster="dgx-a100-80gb"), parse_layout("mbs2"))


def test_a_host_that_cannot_says_so_before_it_starts(monkeypatch) -> None:
    plan = plan_for("mbs2")
    for start in (partial(run_plan, config=RunConfig(backend="gloo")), partial(emulate, rank=0)):
        with pytest.raises(HostError, match="plan trains in fp8, which it cannot on CPU processes") as told:
            start(plan)
        assert told.value.hint == "plan with --precision bf16"
    with pytest.raises(HostError, match="plan trains in fp8, and this host has no GPU"):
        fp8_support.require_fp8_gemms(plan, "plan", on_gpu=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    fp8_support.require_fp8_gemms(plan, "plan", on_gpu=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(HostError, match="NVIDIA A100-SXM4-80GB has no products in fp8"):
        fp8_support.require_fp8_gemms(plan, "plan", on_gpu=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(fp8_support, "find_spec", lambda name: None)
    with pytest.raises(HostError, match="for which torchao is not installed") as told:
        emulate(plan, 0, fake=True)
    assert "pip install 'torchao>=0.18'" in told.value.hint


WIDE: dict[str, Any] = {"hidden_size": 128, "ffn_hidden_size": 256, "num_layers": 2}
TUNING = {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}
TOLERANCE = 1e-5
# QLoRA, appendix E
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def test_numbers_are_those_of_the_papers() -> None:
    """bitsandbytes' `create_dynamic_map()` begins so; 256 of them, of which zero and one have no opposite."""
    assert nf4_numbers() == pytest.approx(NF4, abs=2e-7)
    numbers = dynamic_numbers()
    assert len(numbers) == 256
    assert numbers[-1] == 1.0
    assert numbers[0] == pytest.approx(-(1 - 0.9 / 128))
    assert numbers[127:130] == pytest.approx((0.0, 5.5e-7, 3.25e-6))


def by_hand(matrix: Tensor, base: str) -> Tensor:
    """What quantising and widening make of a matrix, written down once more from the papers."""
    if base == "int8":
        largest = matrix.abs().amax(1, keepdim=True)
        return (matrix * 127 / largest).round() * largest / 127
    blocks = matrix.reshape(-1, 64)
    largest = blocks.abs().amax(1)
    rest = largest - largest.mean()
    dynamic, widened = torch.tensor(dynamic_numbers()), []
    for group in rest.split(256):
        at = (group[:, None] / group.abs().max() - dynamic).abs().argmin(1)
        widened.append(dynamic[at] * group.abs().max() + largest.mean())
    codes = (blocks[..., None] / largest[:, None, None] - torch.tensor(NF4)).abs().argmin(-1)
    return (torch.tensor(NF4)[codes] * torch.cat(widened)[:, None]).view_as(matrix)


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_a_matrix_is_widened_as_by_hand(base: Any) -> None:
    """All of it, and from any rows of it: 0.6 % of what an nf4 block spans, half a 127th of an int8 row."""
    matrix = torch.randn(300, 192, generator=torch.Generator().manual_seed(0))
    part = Part(base=base, full_shape=(300, 192), row=0, column=0, columns=192)
    kept = [one.clone() for one in part.quantised(matrix, 0, None) if one is not None]
    kept[0] = kept[0].to(torch.int8 if base == "int8" else torch.uint8)
    kept[1] = kept[1].to(torch.uint8)
    assert (part.wide(torch.float32, *kept) - by_hand(matrix, base)).abs().max() < 1e-6
    room = part.stored(300)
    assert [one.shape for one in kept] == [one.shape for one in room.values()]
    assert sum(one.nbytes for one in kept) == sum(prod(one.shape) for one in room.values())


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_steps_are_those_beside_matrices_widened_by_hand(processes, base: str) -> None:
    model = LLAMA | WIDE
    found = processes.run(1, train_weights, plan_here("mbs2", model, tuning=TUNING | {"base": base}), 4, True)
    expected, exact = processes.run(1, _beside, plan_here("mbs2", model, tuning=TUNING), base)[0]
    assert [one for one, _ in found[0][0]] == pytest.approx(expected, rel=TOLERANCE)
    assert abs(expected[0] - exact) > TOLERANCE  # what is kept in fewer bits is another model


def test_blocks_that_reach_into_the_next_row_are_refused() -> None:
    plan = plan_here("mbs2", LLAMA, tuning=TUNING | {"base": "nf4"})
    with pytest.raises(InputError, match="has rows of other lengths"):
        require_runnable(plan.question, plan.layout)
    whole = plan_here("mbs2", LLAMA | WIDE, tuning=TUNING | {"base": "nf4"})
    require_runnable(whole.question, whole.layout)


def _beside(plan: Any, base: str) -> tuple[list[float], float]:
    """Losses of adapters beside matrices that were widened before; and the first beside those as they were."""
    from executor.data.batches import Batches
    from executor.engine.engine import Engine
    from executor.models.initial import InitialValues
    from executor.run_config import EngineOptions, Rate

    class ByHand(InitialValues):
        def fill(self, name: str, shape: Any, box: Any, into: Tensor) -> None:
            super().fill(name, shape, box, into)
            if name.startswith("blocks.") and into.dim() == 2 and "_adapter" not in name:
                into.copy_(by_hand(into, base))

    def losses(values: Any, steps: int) -> list[float]:
        engine = Engine(plan, torch.device("cpu"), EngineOptions(sgd=True, rate=Rate(peak=0.1)), filled=False)
        engine.fill_frozen(values)
        engine.fill()
        batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
        return [engine.step(*batches.between(step, 0, 8))[0] for step in range(steps)]

    usual = InitialValues.of(plan, EngineOptions())
    return losses(ByHand(seed=0, tied=plan.model.tied_embeddings), 4), losses(usual, 1)[0]
