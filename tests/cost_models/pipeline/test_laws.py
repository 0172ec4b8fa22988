"""Laws of prices over drawn questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from asking import ask, change
from effort import number
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from questions import random_model

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.pipeline import seconds
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.choices import ORDERS
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.kinds import decoder_of
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.rules.legality import check
from planner.search.search import place_layout

CLUSTERS = ("dgx-a100-80gb", "dgx-h100", "pcie-a100", "mi300x", "dgx-v100-32gb", "frontier")
STACKS = tuple(name for name in catalog.names("stacks") if name != "deepspeed-offload")


class Asked(NamedTuple):
    """A question and a placed layout that breaks no rule of it."""

    question: Question
    layout: Layout


def _one_of(draw: st.DrawFn, *values: Any) -> Any:
    return draw(st.sampled_from(values))


@st.composite
def models(draw: st.DrawFn) -> TransformerSpec:
    """A few narrow blocks of any kind, dense or a mixture."""
    drawn = random_model(np.random.default_rng(draw(st.integers(0, 10**6))))
    kinds = {"norm": _one_of(draw, "rmsnorm", "layernorm"), "qk_norm": draw(st.booleans())}
    kinds |= {"positions": _one_of(draw, "rotary", "learned", "alibi"), "max_positions": 4096}
    kinds |= {"attention_window": _one_of(draw, None, None, 128), "parallel_block": draw(st.booleans())}
    return TransformerSpec.model_validate(dict(drawn) | kinds)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    """One to sixteen GPUs of the catalogue, some with other rates than theirs."""
    name = _one_of(draw, *(known for known in CLUSTERS if known in catalog.names("clusters")))
    node = catalog.load_cluster(name)
    sizes = [gpus for gpus in (1, 2, 4, 8, 16) if node.links.inter_node or gpus <= node.gpus_per_node]
    cluster = resolve_cluster(name, _one_of(draw, *sizes))
    assert isinstance(cluster, ClusterSpec)
    return cluster


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Legal by themselves, whatever the layout."""
    cluster = draw(clusters())
    training = TrainingSpec(
        global_batch=_one_of(draw, 8, 16, 24, 64),
        sequence_length=_one_of(draw, 64, 256, 1024, 4096),
        precision=_one_of(draw, *(known for known in ("bf16", "fp16", "fp32") if known in cluster.gpu.peak)),
        dropout=_one_of(draw, 0.0, 0.1),
        optimizer=_one_of(draw, "adamw", "sgd", "lamb"),
    )
    return complete_question(draw(models()), cluster, training, stack=_one_of(draw, *STACKS))


@st.composite
def legal_questions(draw: st.DrawFn) -> Asked:
    """Some draws break a rule and are drawn again."""
    question = draw(questions())
    gpus, model = question.cluster.num_gpus, question.model
    divisors = [degree for degree in (1, 2, 4, 8, 16) if gpus % degree == 0]
    tp = _one_of(draw, *divisors)
    pp = _one_of(draw, *(degree for degree in divisors if tp * degree <= gpus and degree <= model.num_layers))
    rest = gpus // tp // pp
    cp = _one_of(draw, *(degree for degree in (1, 1, 1, 2) if rest % degree == 0))
    dp = rest // cp
    vpp = _one_of(draw, 1, 1, 2) if pp > 1 else 1
    stages = pp * vpp
    assume(stages <= model.num_layers)
    experts = _one_of(draw, 1, 2, 4) if model.has_experts else 1
    zero = _one_of(draw, *question.stack.zero_stages) if dp * cp > 1 else 0
    recompute = (_one_of(draw, "none", "selective", "full", "full:1", "full:1/selective"),)
    more: dict[str, Any] = {"mbs": _one_of(draw, 1, 2, 4), "zero": zero, "recompute": recompute}
    sp = tp > 1 and draw(st.booleans())
    more["order"] = _one_of(draw, *ORDERS)
    layout = Layout(tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp, ep=experts, sp=sp, **more)
    assume(not check(question, layout))
    return Asked(question, place_layout(question, layout))


def changed(question: Question, *, gpu: dict[str, Any] | None = None, **fields: Any) -> Question:
    """The same on other hardware."""
    device = question.cluster.gpu.model_copy(update=gpu or {})
    return change(question, cluster={"gpu": device, **fields})


def linked(question: Question, factor: float, *, bandwidth: bool, which: str) -> Question:
    """With links of `factor` times the bandwidth, or of so many times less latency."""
    links = question.cluster.links
    link = getattr(links, which)
    if link is None:
        return question
    better = {"bandwidth": link.bandwidth * factor} if bandwidth else {"latency": link.latency / factor}
    return changed(question, links=links.model_copy(update={which: link.model_copy(update=better)}))


def all_rates(question: Question, factor: float) -> Question:
    """Everything so many times as fast: rates, latencies, launches, the host, what was measured."""
    gpu = question.cluster.gpu
    faster = {
        "peak": {name: rate * factor for name, rate in gpu.peak.items()},
        "rate_per_watt": {name: rate * factor for name, rate in gpu.rate_per_watt.items()},
        "memory_bandwidth": gpu.memory_bandwidth * factor,
        "vector_rate": gpu.vector_rate and gpu.vector_rate * factor,
        "host_bandwidth": gpu.host_bandwidth and gpu.host_bandwidth * factor,
    }
    question = changed(question, gpu=faster)
    for which in ("intra_node", "inter_node"):
        question = linked(question, factor, bandwidth=True, which=which)
        question = linked(question, factor, bandwidth=False, which=which)
    times = [name for name in type(question.stack).model_fields if name.endswith("_seconds")]
    stack = question.stack.model_copy(update={name: getattr(question.stack, name) / factor for name in times})
    return replace(question, stack=stack, hardware=_faster_profile(question.hardware, factor))


HOST_CONSTANTS = [f"_{name}_HOST_SECONDS" for name in ("ROUTING", "EXPERT", "EXPERT_CAST")] + [
    "SLICE_SECONDS"
]
"""Times of launches by a trainer's host that `cost_models.pipeline.seconds` has itself, each with its source."""


@contextmanager
def faster_constants(factor: float) -> Iterator[None]:
    """The constants of the host so many times as fast."""
    with ExitStack() as stack:
        for name in HOST_CONSTANTS:
            stack.enter_context(mock.patch.object(seconds, name, getattr(seconds, name) / factor))
        yield


def _faster_profile(profile: HardwareProfile, factor: float) -> HardwareProfile:
    """Seconds divided, rates multiplied; shares, counts and tiles are what they were."""
    curves = (profile.collectives, profile.operators, profile.attention)
    assert not any(curves), "no profile of the catalogue has any"
    update: dict[str, Any] = {
        name: getattr(profile, name) / factor
        for name in type(profile).model_fields
        if name.endswith("_seconds") and getattr(profile, name) is not None
    }
    if profile.gemm_operand_bandwidth:
        update["gemm_operand_bandwidth"] = profile.gemm_operand_bandwidth * factor
    return profile.model_copy(update=update)


GPUS, BATCH, BLOCKS = 64, 64, 32  # llama2-7b: 32 blocks, 32 heads


def asked(stack: str = "megatron-core", **training: Any) -> Question:
    job = {"global_batch": BATCH, "sequence_length": 2048} | training
    return ask("llama2-7b", "dgx-a100-80gb", GPUS, stack=stack, **job)


def test_few_microbatches_leave_no_part_of_memory_negative() -> None:
    chunks = ("vpp2", "vpp4", "schedule=zero-bubble", "vpp2 schedule=zero-bubble")
    for words, microbatches in product(chunks, (1, 2, 5, 16)):
        question = asked("torchtitan", global_batch=microbatches)
        priced = estimate(question, parse_layout(f"tp8 pp8 dp1 {words}"))
        assert all(size >= 0 for rank in priced.rank_memory for size in rank.values()), (words, microbatches)


def test_a_faster_gpu_is_not_slower() -> None:
    for model, cluster, stack, batch, layout in [
        # the host lags behind
        ("qwen2-7b", "hgx-a800", "megatron-core", 2, "tp4 pp4 vpp2 dp2 zero1 sp layers=3,4*4,3*3"),
        ("megatron-39b", "hgx-a800", "deepspeed", 16, "tp4 pp2 dp8 zero1 recompute=full layers=24*2"),
        # gathers over tp, steps of a ring and data-parallel communication, all longer than compute
        ("gemma2-9b", "hgx-h800", "fsdp", 4, "tp8 dp4 zero3 sp recompute=selective layers=42"),
        ("llama3-8b", "hgx-h800", "megatron-core", 4, "tp4 cp2 dp4 zero1 layers=32"),
        # gathers, each of which waits for the device and is waited for
        ("llama2-13b", "hgx-a800", "deepspeed-v0.5", 16, "dp8 zero3 recompute=full layers=40"),
        # the head's besides that of the blocks
        ("llama3-70b", "hgx-h200", "nemo", 64, "tp2 dp64 zero1 sp layers=80"),
    ]:
        placed = parse_layout(layout)
        job = {"global_batch": batch, "sequence_length": 512}
        slow = ask(model, cluster, placed.num_gpus, stack=stack, **job)
        gpu, before = slow.cluster.gpu, estimate(slow, placed).step_seconds
        for factor in (1.1, 1.7, 4.0):
            peak = {name: factor * rate for name, rate in gpu.peak.items()}
            for faster in ({"peak": peak}, {"memory_bandwidth": factor * gpu.memory_bandwidth}):
                quick = change(slow, cluster={"gpu": gpu.model_copy(update=faster)})
                assert estimate(quick, placed).step_seconds <= before * (1 + 1e-12)


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_of_the_catalogue_splits_without_loss(name: str) -> None:
    """A parameter is on every tensor rank, as norms and routers are, or split: little is not, but for what leads to
    latents, and modulates a diffusion transformer."""
    model = decoder_of(catalog.load_model(name)).model_copy(update={"vocab_multiple": 1})
    one, two, four = (parameters(model, np.array([tp])) for tp in (1, 2, 4))
    copies = (2 * two.block - one.block)[0]
    assert four.block[0] == pytest.approx(copies + (one.block[0] - copies) / 4, rel=1e-6)
    assert 0 < copies < (0.4 if model.diffusion or model.latent_attention else 0.1) * one.block[0]
    last_biases = model.moe_share * model.num_experts * model.hidden_size * model.mlp_bias
    assert 2 * two.experts[0] == pytest.approx(one.experts[0] + last_biases)
    assert total_parameters(model) > 0


ROUNDING = 1e-9


@settings(max_examples=number(40, 3000))
@given(drawn=legal_questions())
def test_parts_add_up_and_none_is_negative(drawn: Asked) -> None:
    priced = estimate(drawn.question, drawn.layout)
    assert priced.time.total == pytest.approx(priced.step_seconds, rel=ROUNDING)
    assert priced.step_seconds > 0
    for part, taken in (*priced.time.items(), *priced.hidden_comm.items()):
        assert taken >= 0, part
    for rank in priced.rank_memory:
        assert rank.total == pytest.approx(sum(rank.values()))
        for part, size in rank.items():
            assert size >= 0, part
    assert priced.peak_bytes == max(rank.total for rank in priced.rank_memory)
    assert 0 < priced.mfu <= priced.hfu < 1
    tokens = drawn.question.training.tokens_per_step
    assert priced.tokens_per_second * priced.step_seconds == pytest.approx(tokens)


@settings(max_examples=number(40, 2500))
@given(
    drawn=legal_questions(),
    what=st.sampled_from(
        ["peak", "memory_bandwidth", "intra_node", "inter_node", "intra_latency", "inter_latency", "memory"]
    ),
    factor=st.floats(1.01, 4.0),
)
def test_more_of_anything_is_never_slower(drawn: Asked, what: str, factor: float) -> None:
    before = estimate(drawn.question, drawn.layout)
    after = estimate(_better(drawn.question, what, factor), drawn.layout)
    assert after.step_seconds <= before.step_seconds * (1 + ROUNDING)
    if what == "memory":
        assert after.step_seconds == before.step_seconds
        assert after.memory_limit > before.memory_limit
        assert after.fits >= before.fits


def _better(question: Question, what: str, factor: float) -> Question:
    gpu = question.cluster.gpu
    match what:
        case "peak":
            return changed(question, gpu={"peak": {name: rate * factor for name, rate in gpu.peak.items()}})
        case "memory_bandwidth" | "memory":
            return changed(question, gpu={what: getattr(gpu, what) * factor})
        case "intra_node" | "inter_node":
            return linked(question, factor, bandwidth=True, which=what)
        case _:
            which = what.replace("latency", "node")
            return linked(question, factor, bandwidth=False, which=which)


@settings(max_examples=number(25, 2000))
@given(drawn=legal_questions(), factor=st.sampled_from([2.0, 0.5, 3.0]))
def test_all_rates_twice_is_half_the_time(drawn: Asked, factor: float) -> None:
    """No constant of time hides in the code: every second of a step comes from a rate or a time that somebody wrote,
    or from one of the few that are named here."""
    before = estimate(drawn.question, drawn.layout)
    with faster_constants(factor):
        after = estimate(all_rates(drawn.question, factor), drawn.layout)
    assert after.step_seconds * factor == pytest.approx(before.step_seconds, rel=ROUNDING)
    for (part, taken), (_, then) in zip(after.time.items(), before.time.items(), strict=True):
        assert taken * factor == pytest.approx(then, rel=1e-6, abs=before.step_seconds * ROUNDING), part
    assert after.rank_memory == before.rank_memory


@given(drawn=legal_questions())
@settings(max_examples=number(25, 500))
def test_more_recompute_takes_longer_and_keeps_less(drawn: Asked) -> None:
    layouts = [drawn.layout.model_copy(update={"recompute": (own,)}) for own in ("none", "selective", "full")]
    priced = [estimate(drawn.question, layout) for layout in layouts]
    seconds = [one.step_seconds for one in priced]
    kept = [max(rank["activations"] for rank in one.rank_memory) for one in priced]
    assert all(more >= less * (1 - ROUNDING) for less, more in pairwise(seconds))
    assert kept == sorted(kept, reverse=True)
