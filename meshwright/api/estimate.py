"""Estimates: the price of one layout, as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cost_models.files.models import read_once
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.answers.estimated import Estimated
from meshwright.families import verbs_of_model
from meshwright.families.options import require_options
from meshwright.inputs.plan_inputs import given
from meshwright.inputs.questions import Inputs


def estimate(
    model: str | TransformerSpec | RecommenderSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | Path | TrainingSpec | RecommenderTraining | None,
    layout: str,
    *,
    gpus: int | None = None,
    global_batch: int | str | None = None,
    sequence: int | str | None = None,
    precision: str | None = None,
    dropout: float | None = None,
    optimizer: str | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    confidence: float | str | None = None,
    host_memory: str | None = None,
    trainer: str | None = None,
) -> Estimated:
    """Price one layout, written in its notation.

    The question is said as to `plan`; a `trainer` is one whose rules the layout must obey (`--for`), and
    `confidence` the least probability with which it must fit, `host_memory` what each host has instead.

    Of a recommender the layout is a sharding, and the answer a `ShardingEstimated`.

    Raises:
        InputError: what was asked is wrong, or the layout cannot run.
    """
    inputs = Inputs(
        model=read_once(model),
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        optimizer=optimizer,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
        confidence=confidence,
        host_memory=host_memory,
    )
    verbs = verbs_of_model(inputs.model)
    require_options(verbs, "estimate", given(inputs))
    return cast(Estimated, verbs.ask_estimate(inputs, layout).answer())
