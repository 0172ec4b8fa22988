"""Every kind of file in every state: an answer, or an error that a person can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz_budget import inputs
from fuzz_calls import call
from fuzz_files import CLUSTER, MODEL, texts, write
from hypothesis import given
from hypothesis import strategies as st

SIZES = ("--global-batch", "8", "--sequence", "64")
LAYOUTS = ("tp2 pp2", "dp4 zero1", "tp4 sp", "pp2 dp2 mbs2 recompute=full", "ep2 dp4", "pp4")


@pytest.fixture(scope="module", autouse=True)
def right_files(folder: Path) -> None:
    """What goes with the file that is drawn."""
    Path("model.yaml").write_text(json.dumps(MODEL))
    Path("cluster.yaml").write_text(json.dumps(CLUSTER))


@inputs(0.09)
@given(raw=texts("model"), layout=st.sampled_from(LAYOUTS))
def test_models(raw: bytes, layout: str) -> None:
    call("estimate", write("model", raw), "cluster.yaml", *SIZES, "--layout", layout)


@inputs(0.03)
@given(raw=texts("config"), layout=st.sampled_from(LAYOUTS))
def test_hugging_face_configs(raw: bytes, layout: str) -> None:
    call("estimate", write("config", raw), "cluster.yaml", *SIZES, "--layout", layout, "--json")


@inputs(0.08)
@given(raw=texts("cluster"), layout=st.sampled_from(LAYOUTS))
def test_clusters(raw: bytes, layout: str) -> None:
    call("estimate", "model.yaml", write("cluster", raw), *SIZES, "--layout", layout, "--json")


@inputs(0.03)
@given(raw=texts("pools"))
def test_pools(raw: bytes) -> None:
    call("estimate", "model.yaml", write("pools", raw), *SIZES, "--layout", "pp2 dp2 mbs1 zero0")


@inputs(0.04)
@given(raw=texts("training"), layout=st.sampled_from(LAYOUTS))
def test_training_jobs(raw: bytes, layout: str) -> None:
    training = write("training", raw)
    call("estimate", "model.yaml", "cluster.yaml", "--training", training, "--layout", layout)


@inputs(0.05)
@given(raw=texts("stack"), layout=st.sampled_from(LAYOUTS))
def test_stacks(raw: bytes, layout: str) -> None:
    call("estimate", "model.yaml", "cluster.yaml", *SIZES, "--stack", write("stack", raw), "--layout", layout)


@inputs(0.05)
@given(raw=texts("profile"), layout=st.sampled_from(LAYOUTS))
def test_profiles(raw: bytes, layout: str) -> None:
    profile = write("profile", raw)
    call(
        "estimate",
        "gpt2-tiny",
        "dgx-a100-80gb",
        "--gpus",
        "4",
        *SIZES,
        "--profile",
        profile,
        "--layout",
        layout,
    )


@inputs(0.05)
@given(raw=texts("plan"), other=st.sampled_from(LAYOUTS))
def test_plans(raw: bytes, other: str) -> None:
    call("compare", write("plan", raw), other)
