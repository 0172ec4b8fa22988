"""What to do with a plan: how it is run, and numbers of GPUs beside one that divides badly."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from cost_models.defaults import OWN_STACKS
from cost_models.units import counted
from planner.formats.trainers import trainers_of
from planner.objectives import Certificate
from planner.plan import Plan

_ODD_FACTOR = 7
"""Prime factors of a number of GPUs from which on few degrees divide both it and a model."""


def running_command(plan: Plan, path: Path, writer: str) -> str:
    """How to run a plan: here where one node is enough and the stack is our own, else as files of the trainer whose
    exporter writes it; where none does (""), of its stack's."""
    cluster = plan.question.cluster
    if plan.stack.name in OWN_STACKS:
        here = cluster.num_gpus <= cluster.gpus_per_node or cluster.gpu.kind == "cpu"
        return f"meshwright run {path}" if here else f"meshwright export {path} --to slurm"
    trainer = writer or next(iter(trainers_of(plan.stack)), "")
    return f"meshwright export {path} --to {trainer}" if trainer else f"meshwright run {path}"


def odd_count_note(gpus: int, certificate: Certificate) -> str:
    """A note where the number of GPUs has a factor that leaves few layouts; else nothing."""
    largest = _largest_factor(gpus)
    if largest < _ODD_FACTOR:
        return ""
    less = next(one for one in range(gpus, 0, -1) if _largest_factor(one) <= 3)
    more = next(one for one in count(gpus) if _largest_factor(one) <= 3)
    layouts = counted(certificate.layouts, "layout")
    return f"note: {gpus} GPUs are a multiple of {largest}, which leaves {layouts}; --gpus {less} or {more} has more"


def _largest_factor(number: int) -> int:
    """The largest prime factor; 1 of 1."""
    largest, factor = 1, 2
    while number > 1:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return largest
