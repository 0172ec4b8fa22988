"""Questions whose prices are tested: made of catalogue names, with single facts changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, LinkSpec
from cost_models.specs.hardware import CurvePoint
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


def ask(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec,
    gpus: int | None = None,
    *,
    stack: str | StackSpec | None = None,
    facts: Mapping[str, Any] | None = None,
    **training: Any,
) -> Question:
    """A question about a model on a cluster; `facts` are those of the stack that differ from its file."""
    model = catalog.load_model(model) if isinstance(model, str) else model
    cluster = resolve_cluster(cluster, gpus) if isinstance(cluster, str) else cluster
    question = complete_question(model, cluster, TrainingSpec.model_validate(training), stack=stack)
    return change(question, stack=facts or {})


def straight(seconds: float) -> tuple[CurvePoint, ...]:
    """A measured curve of so many seconds an element."""
    return tuple(CurvePoint(size=size, seconds=size * seconds) for size in (1.0, 1e9))


def on_a_cpu(gpus: int, stack: str = "meshwright", **hardware: Any) -> Question:
    """Two narrow blocks in fp32 on this machine, whose profile has these fields."""
    fields = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000}
    return Question(
        model=TransformerSpec.model_validate(fields),
        cluster=catalog.local_cluster(gpus),
        training=TrainingSpec(global_batch=8, sequence_length=32, precision="fp32"),
        stack=catalog.load_stack(stack),
        hardware=catalog.load_profile("datasheet-cpu").model_copy(update=hardware),
    )


def change(question: Question, **parts: Mapping[str, Any]) -> Question:
    """The question with other values in the fields of its parts: `change(question, hardware={...}, stack={...})`."""
    return replace(
        question,
        **{part: getattr(question, part).model_copy(update=fields) for part, fields in parts.items()},
    )


def columns(*layouts: str) -> LayoutColumns:
    """Columns of layouts in their notation."""
    return LayoutColumns.of([parse_layout(text) for text in layouts])


def only_links(question: Question) -> Question:
    """The question without start-ups, latencies and contention, full links: seconds are bytes / bandwidth."""
    free = {
        "link_efficiency": 1.0,
        "network_efficiency": 1.0,
        "collective_seconds": 0.0,
        "overlap_slowdown": 0.0,
    }
    links = question.cluster.links
    ends = {
        name: link.model_copy(update={"latency": 0.0}) for name, link in links if isinstance(link, LinkSpec)
    }
    return change(question, hardware=free, cluster={"links": links.model_copy(update=ends)})
