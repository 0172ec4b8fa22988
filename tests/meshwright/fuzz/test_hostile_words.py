"""Every word that a command line may hold: an answer, or an error that a person can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fuzz_words as w
import pytest
from fuzz_budget import inputs
from fuzz_calls import call
from fuzz_files import CLUSTER, MIXTURE, MODEL, POOLS
from hypothesis import given
from hypothesis import strategies as st

SIZES = ("--global-batch", "8", "--sequence", "64")
ASKED = ("model.yaml", "cluster.yaml", *SIZES)
VERBS = ("plan", "estimate", "compare", "explain", "verify", "plot", "catalog", "tokens", "run", "emulate")


@pytest.fixture(scope="module", autouse=True)
def right_files(folder: Path) -> None:
    """What the words speak of."""
    for name, content in (("model", MODEL), ("mixture", MIXTURE), ("cluster", CLUSTER), ("pools", POOLS)):
        Path(f"{name}.yaml").write_text(json.dumps(content))
    assert call("estimate", *ASKED, "--layout", "tp2 pp2 mbs1 zero0", "-o", "plan.yaml", "--quiet").code == 0


PRICED = ("estimate", "model.yaml", "cluster.yaml", *SIZES, "--layout")
MODELS = st.sampled_from(["model.yaml", "mixture.yaml"])


@inputs(0.31)
@given(data=st.data())
def test_words_of_every_kind(data: st.DataObject) -> None:
    """Layouts of a question, of pools and beside a plan, flags of `plan`, names, and verbs with any words."""
    draw = data.draw
    calls: list[Callable[[], tuple[str, ...]]] = [
        lambda: ("estimate", draw(MODELS), *PRICED[2:], draw(w.layouts()), *draw(w.flags("estimate"))),
        lambda: ("estimate", "model.yaml", "pools.yaml", *PRICED[3:], draw(w.layouts()), "--json"),
        lambda: ("plan", *ASKED, "--time-limit", "2", *draw(w.flags("plan"))),
        lambda: ("estimate", draw(w.models), draw(w.clusters), *PRICED[3:], draw(w.layouts())),
        lambda: ("compare", "plan.yaml", draw(w.layouts()), *draw(w.flags("estimate", 1))),
        lambda: (
            draw(st.sampled_from(VERBS)),
            *draw(st.lists(w.files, max_size=3)),
            *draw(w.flags("plan", 2)),
        ),
    ]
    call(*calls[draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5]))]())
