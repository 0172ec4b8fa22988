"""`plot topology`: the links of a cluster, and what a plan does to them."""

from __future__ import annotations

import pytest

import meshwright as mw
from cost_models.files.loading import resolve_cluster
from cost_models.specs.cluster import ClusterSpec
from meshwright.plots.pictures import draw_topology

CLUSTERS = {
    ("dgx-h100", 16): {"node", "network"},
    ("dgx-h100", 1024): {"node", "network", "× 126"},
    ("pcie-a40-pairs", 8): {"pair", "box", "joins 4 × pair; 64 GB/s out of each"},
    ("gb200-nvl72-64", 128): {"rack", "× 60", "joins 64 × GPU, 2 times"},
    ("two-buildings", 8192): {"campus", "pod", "× 127", "joins 2 × building; 3.2 TB/s out of each"},
    ("pcie-a100", 3): {"node"},
    ("local", 1): {"node"},
}


@pytest.mark.parametrize(("cluster", "gpus"), CLUSTERS)
def test_a_picture_names_every_level_and_what_it_leaves_out(cluster: str, gpus: int) -> None:
    found = resolve_cluster(cluster, gpus)
    assert isinstance(found, ClusterSpec)
    drawing = draw_topology(found)
    texts = {text.get_text() for text in drawing.figure.axes[0].texts}
    assert CLUSTERS[cluster, gpus] <= texts
    levels = set(drawing.frame["level"])
    assert levels <= texts
    assert {line.split()[0] for line in drawing.table.splitlines()[1:]} == levels
    assert max(map(len, drawing.table.splitlines())) <= 80


def test_a_plan_says_which_axis_uses_which_links(meshwright, plan_file, tmp_path) -> None:
    answer = meshwright("plot", "topology", "dgx-h100", str(plan_file), "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert "is a plan for `dgx-a100-80gb`, not for `dgx-h100`" in answer.err
    training = mw.TrainingSpec(global_batch=64, sequence_length=1024)
    drawing = mw.estimate("gpt2-small", "dgx-h100", training, "dp16 mbs4 zero1", gpus=16).plot("topology")
    assert drawing.title.startswith("The fullest links are those of the network: busy")
    assert set(drawing.frame["axis"]) == {"dp"}
    assert drawing.frame["share"].between(0, 1, inclusive="left").all()
