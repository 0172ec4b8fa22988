"""QLoRA: frozen matrices in nf4 or int8 train as those do that were widened by hand, in every layout."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from training import LLAMA, plan_for, train_weights

from cost_models.errors import InputError
from executor.models.quantised import Part, dynamic_numbers, nf4_numbers
from planner.rules.stack import require_runnable

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
    found = processes.run(1, train_weights, plan_for("mbs2", model, tuning=TUNING | {"base": base}), 4, True)
    expected, exact = processes.run(1, _beside, plan_for("mbs2", model, tuning=TUNING), base)[0]
    assert [one for one, _ in found[0][0]] == pytest.approx(expected, rel=TOLERANCE)
    assert abs(expected[0] - exact) > TOLERANCE  # what is kept in fewer bits is another model


def test_blocks_that_reach_into_the_next_row_are_refused() -> None:
    plan = plan_for("mbs2", LLAMA, tuning=TUNING | {"base": "nf4"})
    with pytest.raises(InputError, match="has rows of other lengths"):
        require_runnable(plan.question, plan.layout)
    whole = plan_for("mbs2", LLAMA | WIDE, tuning=TUNING | {"base": "nf4"})
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
