"""What the order of the mesh axes does to prices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.specs.choices import ORDERS, Order
from cost_models.specs.training import TrainingSpec

QUESTION = complete_question(
    catalog.load_model("llama3-8b"),
    resolve_cluster("dgx-h100", 64),
    TrainingSpec(global_batch=64, sequence_length=8192),
)


def test_the_axis_inside_the_node_is_the_cheap_one() -> None:
    """tp2 pp4 in a node: boundaries on NVLink, gradients over the network; by default the other way round."""
    data, stages = (
        estimate(QUESTION, parse_layout(f"tp2 pp4 dp8 zero1 sp order={order}"))
        for order in ("tp-cp-dp-pp", "tp-pp-dp-cp")
    )
    assert stages.time["pp_comm"] < data.time["pp_comm"]
    reduced = [one.time["dp_comm"] + one.hidden_comm["dp_comm"] for one in (data, stages)]
    assert reduced[0] < reduced[1]
    assert data.rank_memory == stages.rank_memory
    assert data.time["compute"] == stages.time["compute"]


@given(
    st.sampled_from(ORDERS), st.sampled_from(["tp4 dp16", "tp2 pp8 dp4 zero1", "cp4 dp16 zero1", "pp4 cp16"])
)
def test_parts_sum_in_every_order(order: Order, text: str) -> None:
    priced = estimate(QUESTION, Layout(**parse_layout(text).model_dump() | {"order": order}))
    assert priced.time.total == pytest.approx(priced.step_seconds, rel=1e-9)
    assert all(seconds >= 0 for seconds in (*priced.time.values(), *priced.hidden_comm.values()))
