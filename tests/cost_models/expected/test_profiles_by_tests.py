"""Profiles never fitted to a step: AMD's, by tests of kernels and collectives published for them and for H100."""

from __future__ import annotations

import pytest
from calling import told

from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of
from cost_models.defaults import complete_question, nearest_profile
from cost_models.expected import expected_step
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate, trust_of
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

AMD = {"mi300x": "mi300x", "mi325x": "mi300x", "mi355x": "mi355x", "frontier": "mi250x-gcd"}
"""Cluster → the GPU whose profile prices it."""
LAYOUT = "tp1 dp16 mbs1 zero1"


def asked(cluster: str, stack: str) -> Question:
    training = TrainingSpec(global_batch=128, sequence_length=4096)
    model = catalog.load_model("llama3-8b")
    return complete_question(model, resolve_cluster(cluster, 16), training, stack=stack)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "deepspeed", "jax", "meshwright"])
@pytest.mark.parametrize("cluster", AMD)
def test_every_amd_cluster_has_a_profile_of_its_own(cluster: str, stack: str) -> None:
    trust = trust_of(asked(cluster, stack))
    assert trust.profile.startswith(AMD[cluster])
    assert trust.borrowed == "h100-sxm"
    assert "constants of h100-sxm x ratios of published tests" in str(trust)


def test_intervals_are_wider_than_those_of_borrowed_constants() -> None:
    """No step was compared: an interval is half as wide again, in logarithms, as where H100's constants are its own."""
    widths = {}
    for cluster in ("dgx-h100", "mi300x"):
        question = asked(cluster, "megatron-core")
        found = expected_step(question, estimate(question, parse_layout(LAYOUT)))
        assert found is not None
        assert found.low < found.on_paper < found.high
        widths[cluster] = found.high / found.low
    assert widths["mi300x"] > max(1.7, widths["dgx-h100"] ** 1.5)


def test_memory_and_links_reach_what_tests_do_relative_to_h100() -> None:
    """BabelStream's triad: 4.09 TB/s and 2.97 TB/s (Azure AI benchmarking guide)."""
    h100, mi300x = (device_of(asked(name, "megatron-core")) for name in ("dgx-h100", "mi300x"))
    assert mi300x.memory_rate / h100.memory_rate == pytest.approx(4.09 / 2.97, rel=1e-3)


def test_what_a_user_reads_names_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate", "llama3-8b", "mi325x", "--gpus", "16", "--global-batch", "128"
    answer = told(capsys, *words, "--sequence", "4096", "--layout", LAYOUT)
    assert "hardware profile mi300x-megatron-core (constants of" in answer.out
    assert "No run was measured on this GPU" in answer.out


def test_constants_that_were_borrowed_are_not_lent_on() -> None:
    """A GPU that nobody knows, with the peak of one whose profile is borrowed."""
    known = catalog.load_gpu("mi250x-gcd")
    unknown = known.model_copy(update={"name": "unknown"})
    for stack in ("meshwright", "megatron-core", "fsdp"):
        assert nearest_profile(unknown, stack).borrowed_from is None
        assert nearest_profile(known, stack).borrowed_from
