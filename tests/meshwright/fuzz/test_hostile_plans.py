"""Plan files of every kind, and files that are none, before every verb that takes one: an answer, or words."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from effort import few
from fuzz_calls import call
from fuzz_files import CLUSTER, MODEL, POOLS

SIZES = ("--global-batch", "8", "--sequence", "64")
SHOP = {
    "kind": "recommender",
    "name": "shop",
    "dense_features": 4,
    "bottom_mlp": [8, 4],
    "interaction": {"kind": "none"},
    "top_mlp": [8, 1],
    "tables": [{"name": "user", "rows": 4000, "width": 16, "pooling": 2.0}],
}
SEARCHED = ("--time-limit", "5", "--fix", "tp=1", "--fix", "mbs=1")
CLUSTERS = "dgx-a100-80gb,dgx-h100"
SERVED = ("--serve", "--cache", "64KiB", "--batch", "64")
PLANS = {
    "given": ("estimate", "model.yaml", "cluster.yaml", *SIZES, "--layout", "tp2 pp2 mbs1 zero0"),
    "searched": ("plan", "model.yaml", "cluster.yaml", *SIZES, *SEARCHED),
    "priced": ("plan", "model.yaml", "cluster.yaml", *SIZES, *SEARCHED, "--objective", "memory"),
    "clusters": ("plan", "gpt2-tiny", CLUSTERS, *SIZES, *SEARCHED, "--gpus", "2,4", "--tokens", "1M"),
    "costs": ("plan", "gpt2-tiny", CLUSTERS, *SIZES, "--gpus", "4", "--tokens", "1M", "--price", "1,2"),
    "pools": ("plan", "model.yaml", "pools.yaml", *SIZES, "--time-limit", "5"),
    "replicas": ("plan", "model.yaml", "pools.yaml", *SIZES, "--time-limit", "5", "--allow", "replicas"),
    "tuned": ("plan", "gpt2-tiny", "dgx-h100", "--gpus", "2", *SIZES, *SEARCHED, "--task", "lora"),
    "trainer": ("plan", "gpt2-tiny", "dgx-h100", "--gpus", "2", *SIZES, *SEARCHED, "--for", "megatron"),
    "sharding": ("plan", "shop.yaml", "dgx-a100-80gb", "--gpus", "2", "--global-batch", "512"),
    "serving": ("plan", "shop.yaml", "dgx-a100-80gb", "--gpus", "2", *SERVED),
}
READERS = (
    ("explain", "FILE"),
    ("explain", "FILE", "--why-not", "tp2"),
    ("verify", "FILE", "--json"),
    ("report", "FILE", "-o", "page.html", "--points", "2"),
    ("report", "FILE", "-o", "page.html"),
    ("export", "FILE", "--to", "megatron"),
    ("export", "FILE", "--to", "torchrec"),
    ("export", "FILE", "--to", "slurm", "-o", "exported"),
    ("compare", "FILE", "tp2"),
    ("compare", "FILE", "FILE", "--json"),
    ("plot", "frontier", "FILE", "-o", "picture.svg"),
    ("plot", "memory", "FILE", "-o", "picture.svg"),
    ("plot", "timeline", "FILE", "-o", "picture.svg"),
    ("plot", "scaling", "FILE", "-o", "picture.svg"),
    ("forecast", "FILE", "--tokens", "1M"),
    ("forecast", "FILE", "--every", "10"),
    ("advise", "FILE"),
    ("plan", "--replay", "FILE", "--time-limit", "5"),
    ("reshard", "FILE", "FILE"),
    ("run", "FILE", "--dry-run"),
    ("emulate", "FILE", "--dry-run"),
    ("serve", "FILE", "--dry-run"),
    ("measure", "FILE", "FILE"),
    ("doctor", "--compare", "FILE"),
    ("import", "FILE", "model.yaml", "cluster.yaml"),
    ("estimate", "FILE", "cluster.yaml", *SIZES, "--layout", "dp4 mbs1"),
    ("estimate", "model.yaml", "FILE", *SIZES, "--layout", "dp4 mbs1"),
    ("estimate", "model.yaml", "cluster.yaml", "--training", "FILE", "--layout", "dp4 mbs1"),
    ("estimate", "model.yaml", "cluster.yaml", *SIZES, "--stack", "FILE", "--layout", "dp4 mbs1"),
    ("estimate", "gpt2-tiny", "dgx-h100", "--gpus", "2", *SIZES, "--profile", "FILE", "--layout", "dp2 mbs1"),
    ("estimate", "gpt2-tiny", "dgx-h100", "--gpus", "2", "--lengths", "FILE", *SIZES, "--layout", "dp2 mbs1"),
    ("validate", "--runs", "FILE"),
    ("calibrate", "--from-runs", "FILE", "-o", "fitted.yaml"),
    ("plan", "model.yaml", "cluster.yaml,FILE", *SIZES, "--time-limit", "2"),
)
NO_PLANS = {
    "empty": b"",
    "blank": b"\n \n",
    "binary": bytes(range(256)) * 64,
    "nested": b"[" * 100_000,
    "nested-yaml": b"a:\n" + b"".join(b" " * depth + b"a:\n" for depth in range(1, 2000)),
    "closed": b'{"kind": "plan", "a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "huge": b'{"kind": "plan", "model": "' + b"x" * 3_000_000 + b'"}',
    "numbers": b"kind: plan\nmodel: " + b"9" * 5_000 + b"\n",
    "anchors": b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    "list": b"- kind: plan\n- kind: plan\n",
    "kind": b"kind: plan\n",
    "unknown": b"kind: [plan]\nschema_version: {}\n",
    "utf16": "kind: plan\n".encode("utf-16"),
    "header": b"\x89PNG\r\n\x1a\n",
}


@pytest.fixture(scope="module", autouse=True)
def right_files(folder: Path) -> None:
    """What plans are of, and folders whose names are words of a layout or of a catalogue."""
    named = {"model": MODEL, "cluster": CLUSTER, "pools": POOLS, "shop": SHOP}
    for name, content in named.items():
        Path(f"{name}.yaml").write_text(json.dumps(content))
    for name, raw in NO_PLANS.items():
        Path(f"{name}.bad").write_bytes(raw)
    for word in ("tp2", "dp4", "gpt2-tiny", "dgx-h100", "folder"):
        Path(word).mkdir()


@cache
def _plan(kind: str) -> str:
    """The file of a plan, made once."""
    path = f"{kind}.plan.yaml"
    assert call(*PLANS[kind], "-o", path, "--quiet").code == 0
    return path


@few(8)
@pytest.mark.parametrize("reader", READERS, ids=" ".join)
@pytest.mark.parametrize("kind", PLANS)
def test_plans_of_every_kind(kind: str, reader: tuple[str, ...]) -> None:
    path = _plan(kind)
    call(*(word.replace("FILE", path) for word in reader))


@few(24)
@pytest.mark.parametrize("reader", READERS, ids=" ".join)
@pytest.mark.parametrize("name", [*(f"{name}.bad" for name in NO_PLANS), "folder", "nowhere.yaml"])
def test_what_is_no_plan(name: str, reader: tuple[str, ...]) -> None:
    answer = call(*(word.replace("FILE", name) for word in reader))
    assert answer.code in (1, 2) or "--lengths" in reader
