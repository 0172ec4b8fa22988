"""Plans: the best way to train a model on a cluster, with the proof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack, overload

from cost_models.files.models import read_once
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.operations import OperationsSpec
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.answers.planned import Planned
from meshwright.answers.ranked import Ranked
from meshwright.families import verbs_of_model
from meshwright.families.options import require_options
from meshwright.families.recommender.answers import ShardingPlanned
from meshwright.families.verbs import PlanAnswer
from meshwright.inputs.goals import Goal
from meshwright.inputs.limits import Limits
from meshwright.inputs.plan_inputs import PlanInputs
from meshwright.inputs.questions import Inputs, in_words
from planner.search.budget import Budget


class PlanOptions(TypedDict, total=False):
    """What `plan` takes besides model, cluster, training and prices."""

    gpus: int | str | Sequence[int] | None
    global_batch: int | str | None
    sequence: int | str | None
    precision: str | Sequence[str] | None
    dropout: float | None
    optimizer: str | None
    stack: str | None
    profile: str | HardwareProfile | None
    fix: Sequence[str]
    forbid: Sequence[str]
    allow: Sequence[str]
    together: Sequence[str]
    max_memory: str | None
    confidence: float | str | None
    host_memory: str | None
    trainer: str | None
    objective: str | None
    tokens: str | float | None
    deadline: str | None
    operations: str | OperationsSpec | None
    pick: str | None
    risk: str | None
    top: int | None
    time_limit: float | None
    budget: Budget | None


@overload
def plan(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | Path | TrainingSpec | None = None,
    *,
    price: str | float | None = None,
    **options: Unpack[PlanOptions],
) -> Planned: ...


@overload
def plan(
    model: str | TransformerSpec,
    cluster: list[str] | list[ClusterSpec] | tuple[str | ClusterSpec, ...],
    training: str | Path | TrainingSpec | None = None,
    *,
    price: str | Sequence[float] | None = None,
    **options: Unpack[PlanOptions],
) -> Ranked: ...


@overload
def plan(
    model: RecommenderSpec,
    cluster: str | ClusterSpec,
    training: str | Path | RecommenderTraining | None = None,
    *,
    price: None = None,
    **options: Unpack[PlanOptions],
) -> ShardingPlanned: ...


def plan(
    model: str | TransformerSpec | RecommenderSpec,
    cluster: str | ClusterSpec | MixedCluster | list[str] | list[ClusterSpec] | tuple[str | ClusterSpec, ...],
    training: str | Path | TrainingSpec | RecommenderTraining | None = None,
    *,
    gpus: int | str | Sequence[int] | None = None,
    global_batch: int | str | None = None,
    sequence: int | str | None = None,
    precision: str | Sequence[str] | None = None,
    dropout: float | None = None,
    optimizer: str | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    allow: Sequence[str] = (),
    together: Sequence[str] = (),
    max_memory: str | None = None,
    confidence: float | str | None = None,
    host_memory: str | None = None,
    trainer: str | None = None,
    objective: str | None = None,
    tokens: str | float | None = None,
    price: str | float | Sequence[float] | None = None,
    deadline: str | None = None,
    operations: str | OperationsSpec | None = None,
    pick: str | None = None,
    risk: str | None = None,
    top: int | None = None,
    time_limit: float | None = None,
    budget: Budget | None = None,
) -> PlanAnswer:
    """Find the best layouts of a model on a cluster, with the proof; of several clusters rank their best plans.

    Names and paths mean what they mean on the command line; `time_limit` is in seconds. The training job is a file,
    a `TrainingSpec`, or said by `global_batch`, `sequence`, `precision`, `dropout` and `optimizer`, which replace its
    fields.
    Several `gpus`, as a list or written like `64..1024`, are a choice, and so are several precisions (`bf16,fp8`);
    `objective`, `tokens`, `price`, `deadline` and `operations` (failures that count) say what the best is. A `trainer`
    is one whose rules the plan obeys (`--for`), `allow` opens what a search leaves alone (`offload`), and `confidence`
    is the least probability with which it must fit; `host_memory` replaces the cluster's. `pick` is which layout is
    saved as the plan: `recommended` (the default) or `fastest` on paper, and `risk` what of a step is minimised
    (`none`, `neutral`, `averse`: that on paper, its mean over the profile's scenarios, that of the slowest quarter of
    them). Several clusters have a price each, in their order, and one plan on each number of GPUs.

    Of a recommender, also by name, it finds where each embedding table lies, and answers with a `ShardingPlanned`;
    `fix`, `forbid` and `together` are words of shardings then, and options that mean nothing to it are refused.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
        InfeasibleError: nothing fits, or nothing meets the deadline.
    """
    inputs = Inputs(
        model=read_once(model),
        cluster="" if isinstance(cluster, (list, tuple)) else cluster,
        global_batch=global_batch,
        sequence=sequence,
        precision=in_words(precision),
        dropout=dropout,
        optimizer=optimizer,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
        confidence=confidence,
        host_memory=host_memory,
    )
    asked = PlanInputs(
        inputs=inputs,
        clusters=cluster if isinstance(cluster, (list, tuple)) else (),
        gpus=gpus,
        goal=Goal(objective=objective, tokens=tokens, price=price, deadline=deadline, operations=operations),
        limits=Limits(
            fix=tuple(fix),
            forbid=tuple(forbid),
            allow=tuple(allow),
            together=tuple(together),
            max_memory=max_memory,
        ),
        pick=pick,
        risk=risk,
    )
    verbs = verbs_of_model(inputs.model)
    require_options(verbs, "plan", asked.given)
    return verbs.ask(asked).answer(top, budget or Budget(time_limit=time_limit, keep_on_interrupt=True))
