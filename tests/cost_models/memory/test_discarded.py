"""What trainers never keep, by DeepSeek-V3's report, sections 3.2.3 and 3.3.3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes, pending_bytes
from cost_models.operators.traffic import block_traffic
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

MODEL = catalog.load_model("deepseek-v3")
S, H = 4096, 7168
MIXTURES = 58 / 61
ROWS = 8 * 2048 * MIXTURES
"""Numbers that a token's experts take between their products."""
LAYOUT = parse_layout("tp1 pp16 ep64 dp128 mbs1 zero1")


def asked(precision: str = "fp8", **facts: Any) -> Question:
    training = TrainingSpec(global_batch=15360, sequence_length=S, precision=precision)
    cluster = catalog.load_cluster("dgx-h100")
    whole = complete_question(MODEL, cluster, training, stack="deepseek")
    return replace(whole, stack=whole.stack.model_copy(update={"always_discards": ()} | facts))


def kept(precision: str = "fp8", **facts: Any) -> float:
    """Bytes a token and block."""
    return float(activation_bytes(asked(precision, **facts), LayoutColumns.of([LAYOUT])).block[0, 0] / S)


@pytest.mark.parametrize(
    ("facts", "bf16", "fp8"),
    [
        ({"always_discards": ("norms",)}, 2 * H * (1 + MIXTURES), H * (1 + MIXTURES)),
        ({"always_discards": ("expert-activations",)}, 2 * ROWS, ROWS),
    ],
)
def test_a_token_keeps_less_by_hand(facts: dict[str, Any], bf16: float, fp8: float) -> None:
    """The inputs of the first product of attention and of the mixture; those of the experts' second product."""
    for precision, less in (("bf16", bf16), ("fp8", fp8)):
        assert kept(precision) - kept(precision, **facts) == pytest.approx(less, abs=1e-6)


def test_what_is_discarded_is_made_again_behind() -> None:
    """Two norms read and written, three passes over what experts' activations read and return."""
    columns = LayoutColumns.of([LAYOUT])
    plain, again = (
        block_traffic(asked(always_discards=facts), columns)
        for facts in ((), ("norms", "expert-activations"))
    )
    assert again.moved[0] == plain.moved[0]
    more = 2 * (2 * 2 * H + 3 * ROWS)
    assert (again.moved[1] - plain.moved[1]) / S == pytest.approx(more)


def test_gradients_of_products_wait_as_they_are_multiplied() -> None:
    columns = LayoutColumns.of([LAYOUT])
    cast, not_cast = (
        float(pending_bytes(asked(fp8_saves_inputs=narrow), columns)[0][0]) for narrow in (True, False)
    )
    assert 0.5 < cast / not_cast < 0.56
