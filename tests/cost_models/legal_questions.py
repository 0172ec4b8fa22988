"""Questions that may be asked, with a layout that may run: small models on small clusters of any speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

from asking import change
from hypothesis import assume
from hypothesis import strategies as st

from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline import seconds
from cost_models.question import Question
from cost_models.specs.choices import ORDERS
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
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
    """Two to twelve blocks, dense or a mixture."""
    heads = _one_of(draw, 4, 8, 16)
    fields: dict[str, Any] = {
        "num_layers": draw(st.integers(2, 12)),
        "num_heads": heads,
        "num_kv_heads": _one_of(draw, heads, heads // 2, heads // 4),
        "hidden_size": heads * _one_of(draw, 32, 64, 128),
        "vocab_size": _one_of(draw, 256, 1000, 50257),
        "gated_mlp": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "norm": _one_of(draw, "rmsnorm", "layernorm"),
        "positions": _one_of(draw, "rotary", "learned", "alibi"),
        "qk_norm": draw(st.booleans()),
        "parallel_block": draw(st.booleans()),
        "max_positions": 4096,
    }
    if draw(st.integers(0, 3)) == 0:
        fields |= {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 128}
    if draw(st.integers(0, 5)) == 0:
        fields["attention_window"] = _one_of(draw, 16, 128, 1024)
    return TransformerSpec(name="drawn", **fields)


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
def asked(draw: st.DrawFn) -> Asked:
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
