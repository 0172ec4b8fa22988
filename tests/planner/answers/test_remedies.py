"""When nothing fits, each change that is offered makes something fit, and and "the fewest" are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import ask
from small import MODEL, small_cluster, small_question

from cost_models.errors import Alternative, DoesNotFitError, InfeasibleError
from cost_models.files import catalog
from cost_models.question import Question
from planner.answers import feasibility
from planner.answers.feasibility import larger_hosts, with_remedies
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered must not hang on how busy the machine is."""
    monkeypatch.setattr(feasibility, "SECONDS_OF_REMEDIES", 60.0)
    monkeypatch.setattr(feasibility, "SECONDS_OF_A_REMEDY", 60.0)


def offered(question: Question, limits: Restrictions | None = None) -> dict[str, Alternative]:
    """By their first words."""
    whole = small_cluster(8, f"{question.cluster.gpu.memory!r} B")
    kept = limits or Restrictions()
    with pytest.raises(DoesNotFitError) as caught, with_remedies(question, kept, whole_nodes=whole):
        search(question, restrictions=kept)
    assert all(one.peak_bytes <= one.memory_limit for one in caught.value.would_fit)
    return {one.change: one for one in caught.value.would_fit}


def fits(question: Question, limits: Restrictions | None = None) -> bool:
    try:
        return bool(search(question, top=1, restrictions=limits).estimates)
    except InfeasibleError:
        return False


def test_fewer_blocks_are_the_most_that_fit() -> None:
    question = small_question(1, memory="260 MiB")
    (change,) = [change for change in offered(question) if change.startswith("num_layers")]
    blocks = int(change.split()[1])
    assert 0 < blocks < MODEL.num_layers
    for number, wanted in ((blocks, True), (blocks + 1, False)):
        model = MODEL.model_copy(update={"num_layers": number})
        assert fits(replace(question, model=model)) is wanted


def test_states_in_16_bits_and_larger_gpus() -> None:
    question = small_question(1, memory="300 MiB")
    found = offered(question)
    assert "--state-dtype bf16" in found
    assert "state_dtype: bf16 and gradient_dtype: bf16 in --training FILE" in found
    larger = [change for change in found if change.endswith(" --gpus 1")]
    gpus = [catalog.load_cluster(change.split()[0]).gpu for change in larger]
    assert len({gpu.name for gpu in gpus}) == feasibility.MAX_LARGER
    assert [gpu.memory for gpu in gpus] == sorted(gpu.memory for gpu in gpus)
    assert not any("num_layers: 4" in change for change in found)


def test_shorter_sequences_only_where_activations_are_too_large() -> None:
    long = small_question(1, memory="2 GiB", sequence_length=2**16, global_batch=1)
    halves = [change for change in offered(long) if change.startswith("--sequence")]
    assert halves
    assert not fits(long)
    states = small_question(1, memory="150 MiB", sequence_length=2**10)
    assert not any(change.startswith("--sequence") for change in offered(states))


def test_the_restriction_to_leave_out_is_named() -> None:
    question = small_question(4, memory="250 MiB")
    assert fits(question)
    limits = parse_restrictions(["tp=1", "pp=1"], ["zero2"])
    stuck = replace(limits, max_memory=100 * 2.0**20)
    assert not fits(question, stuck)
    found = [change for change in offered(question, stuck) if change.startswith("without")]
    assert found
    assert "without --forbid zero=2" not in found


def test_a_recompute_policy_that_was_left_out_is_offered() -> None:
    full = small_question(1, memory="600 MiB", sequence_length=2**12)
    lean = full.training.model_copy(update={"recompute": ("none",)})
    assert fits(full)
    assert "recompute: full in --training FILE" in offered(replace(full, training=lean))


def test_a_host_smaller_than_the_states_says_how_large_one_must_be() -> None:
    cluster = small_cluster(1, "200 MiB").model_copy(update={"host_memory": float(2**30)})
    question = replace(small_question(1, memory="200 MiB"), cluster=cluster)
    states = 600 * 2**30  # a model of such size, where everything but one block is on the host
    changes = list(larger_hosts(question, Restrictions(), states))
    assert [one.words for one in changes] == [f"--host-memory {2**power}GiB" for power in (10, 11, 12, 13)]
    assert all(one.question.cluster.host_memory > 600 * 2**30 for one in changes)
    assert next(larger_hosts(question, Restrictions(), 0.0)).words == "--host-memory 2GiB"  # more than it has


def test_the_same_machine_comes_first_and_no_other_class_of_machines_is_named() -> None:
    """One 4090 and Llama 3 8B: an MI250X of Frontier was named, and not FSDP with offload, which fits."""
    question = ask("llama3-8b", "pcie-4090", 1, global_batch=8, sequence_length=8192)
    with pytest.raises(DoesNotFitError) as caught, with_remedies(question, Restrictions()):
        search(question)
    told = [one.change for one in caught.value.would_fit]
    stacks = [change for change in told if change.startswith("--stack ")]
    assert "--stack fsdp --allow offload" in stacks
    others = told[len(stacks) :]
    assert told[: len(stacks)] == stacks
    named = [change for change in others if not change.startswith("-")]
    machines = [catalog.load_cluster(change.split()[0]) for change in named if change.endswith(" --gpus 1")]
    assert all(one.links.intra_node.kind == "pcie" and one.gpu.kind == "cuda" for one in machines)
