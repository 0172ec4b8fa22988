"""A training job as its forecast sees it: steps, the bytes of a checkpoint, and the GPUs that do both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.memory.states import MOMENTS
from cost_models.operators.parameters import total_parameters
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a forecast depends on except the operations."""

    steps: int
    step_seconds: float
    checkpoint_bytes: float
    """Weights and states of the whole model, once."""
    gpus: int
    nodes: int
    host_bandwidth: float | None
    """Bytes/s that a GPU has of the link to its host; None where nobody knows."""
    watts: float | None = None
    """Power limit of a GPU."""

    @property
    def seconds(self) -> float:
        """Seconds of all steps, one after another."""
        return self.steps * self.step_seconds


def job_of(question: Question, step_seconds: float) -> Job:
    """The job that a question asks about, with steps of so many seconds.

    Every rank saves an even share of the checkpoint, as torch.distributed.checkpoint spreads what several ranks hold.
    """
    training, cluster = question.training, question.cluster
    assert training.tokens is not None
    link = min((one.cluster.gpu.host_bandwidth or math.inf) for one in question.by_pool)
    return Job(
        steps=math.ceil(training.tokens / training.tokens_per_step),
        step_seconds=step_seconds,
        checkpoint_bytes=checkpoint_bytes(question),
        gpus=cluster.num_gpus,
        nodes=cluster.nodes,
        host_bandwidth=None if math.isinf(link) else link / cluster.gpus_per_host_link,
        watts=cluster.gpu_watts or cluster.gpu.tdp_watts,
    )


def checkpoint_bytes(question: Question) -> float:
    """Bytes of weights, master weights and moments: 14 a parameter with Adam in 16 bits over fp32."""
    training = question.training
    state = STATE_BYTES[training.state_dtype]
    moment = STATE_BYTES[training.moment_dtype or training.state_dtype]
    master = state if training.element_bytes < 4 else 0.0
    each = training.element_bytes + master + moment * MOMENTS[training.optimizer]
    return total_parameters(question.model) * each
