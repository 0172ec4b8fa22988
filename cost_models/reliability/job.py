"""A training job, as its forecast needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cost_models.axes.layout import Layout
from cost_models.defaults import OWN_STACKS
from cost_models.estimate import Breakdown
from cost_models.memory.states import moment_bytes
from cost_models.operators.parameters import total_parameters
from cost_models.operators.tuning import trained_parameters
from cost_models.question import Question
from cost_models.reliability.starting import Resume, resume_of, start_up
from cost_models.specs.training import STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job, as its forecast needs it."""

    steps: int
    step_seconds: float
    checkpoint_bytes: float
    """Weights and states of the whole model, once."""
    gpus: int
    nodes: int
    host_bandwidth: float | None
    """Bytes/s that a GPU has of the link to its host; None: unknown."""
    watts: float | None = None
    """Power limit of a GPU."""
    start: Breakdown | None = None
    """Seconds of the first start by part. None: unknown."""
    again: Breakdown | None = None
    """The same of a restart, which draws no weights: none is quicker."""
    resume: Resume | None = None
    """How a restart reads a checkpoint; None: each byte once."""

    @property
    def start_seconds(self) -> float:
        """Seconds of a start; 0 where they are unknown."""
        return 0.0 if self.start is None else self.start.total

    def reading(self, storage: float) -> float:
        """Seconds of a restart that reads a checkpoint from storage of so many bytes/s."""
        return self.checkpoint_bytes / storage if self.resume is None else self.resume.seconds(storage)

    @property
    def seconds(self) -> float:
        """Seconds of all steps, one after another."""
        return self.steps * self.step_seconds


def job_of(question: Question, step_seconds: float, layout: Layout | None = None) -> Job:
    """The job of a question, with steps of `step_seconds`; of a `layout` that our own executor runs, with its starts
    and how it reads checkpoints.

    Every rank saves an even share of the checkpoint, as torch.distributed.checkpoint spreads what several ranks hold.
    """
    training, cluster = question.training, question.cluster
    assert training.tokens is not None
    link = min((one.cluster.gpu.host_bandwidth or math.inf) for one in question.by_pool)
    job = Job(
        steps=math.ceil(training.tokens / training.tokens_per_step),
        step_seconds=step_seconds,
        checkpoint_bytes=checkpoint_bytes(question),
        gpus=cluster.num_gpus,
        nodes=cluster.nodes,
        host_bandwidth=None if math.isinf(link) else link / cluster.gpus_per_host_link,
        watts=cluster.gpu_watts or cluster.gpu.tdp_watts,
    )
    if layout is None or question.stack.name not in OWN_STACKS:
        return job
    start, again = (start_up(question, layout, drawn=drawn) for drawn in (True, False))
    return replace(job, start=start, again=again, resume=resume_of(question, layout, job.checkpoint_bytes))


def checkpoint_bytes(question: Question) -> float:
    """Bytes of weights, master weights and moments: 14 a parameter with Adam in 16 bits over fp32; of adapters alone
    where all else is frozen."""
    training = question.training
    state = STATE_BYTES[training.state_dtype]
    master = state if training.element_bytes < 4 else 0.0
    each = training.element_bytes + master + moment_bytes(question)
    if training.tuning is not None:
        return trained_parameters(question.model, training.tuning) * each
    return total_parameters(question.model) * each
