"""Every word that a command line may hold: an answer, or an error that a person can read."""

from __future__ import annotations

import json
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


@inputs(0.13)
@given(layout=w.layouts(), flags=w.flags("estimate"), model=st.sampled_from(["model.yaml", "mixture.yaml"]))
def test_layouts(layout: str, flags: list[str], model: str) -> None:
    call("estimate", model, "cluster.yaml", *SIZES, "--layout", layout, *flags)


@inputs(0.03)
@given(layout=w.layouts())
def test_layouts_on_pools(layout: str) -> None:
    call("estimate", "model.yaml", "pools.yaml", *SIZES, "--layout", layout, "--json")


@inputs(0.04)
@given(flags=w.flags("plan"))
def test_questions(flags: list[str]) -> None:
    call("plan", *ASKED, "--time-limit", "2", *flags)


@inputs(0.04)
@given(model=w.models, cluster=w.clusters, layout=w.layouts(), flags=w.flags("estimate", 2))
def test_names(model: str, cluster: str, layout: str, flags: list[str]) -> None:
    call("estimate", model, cluster, *SIZES, "--layout", layout, *flags)


@inputs(0.03)
@given(layout=w.layouts(), flags=w.flags("estimate", 1))
def test_layouts_beside_a_plan(layout: str, flags: list[str]) -> None:
    call("compare", "plan.yaml", layout, *flags)


@inputs(0.04)
@given(verb=st.sampled_from(VERBS), words=st.lists(w.models, max_size=3), flags=w.flags("plan", 2))
def test_verbs(verb: str, words: list[str], flags: list[str]) -> None:
    call(verb, *(word for word in words if not word.startswith("gpt2")), *flags)
