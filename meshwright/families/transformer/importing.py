"""Transformers that another trainer runs today: what its command says, as a question and a layout to price."""

from __future__ import annotations

from pathlib import Path

from cost_models.defaults import complete_question
from cost_models.errors import InputError, Problem
from cost_models.files.reading import read_text
from cost_models.question import Question
from cost_models.specs.pools import MixedCluster
from meshwright.families.transformer.estimating import EstimateQuestion
from meshwright.inputs.questions import Inputs, cluster_of, read_host_memory, with_host_memory
from planner.importers.launches import launch_of
from planner.importers.megatron import read_megatron
from planner.importers.registry import is_command

_SAID = {
    "model": "MODEL",
    "global_batch": "--global-batch",
    "precision": "--precision",
    "training": "--training",
}
"""What the command itself says."""


def ask_import(source: str | Path, inputs: Inputs, also: str = "") -> EstimateQuestion:
    """Read a command that starts Megatron-LM, or the script that holds it; nothing of it is run.

    Raises:
        InputError: the command cannot be read, contradicts itself or what is said beside it.
    """
    if twice := [words for name, words in _SAID.items() if getattr(inputs, name)]:
        problems = [Problem(one, "the command says it") for one in twice]
        raise InputError("said beside a command that says it", problems=problems, hint="leave it out")
    text = str(source) if is_command(str(source)) else read_text(Path(source))
    reading = read_megatron(launch_of(text, also), gpus=inputs.gpus, stack=inputs.stack)
    cluster = cluster_of(inputs.cluster, reading.layout.num_gpus)
    if isinstance(cluster, MixedCluster):
        raise InputError("Megatron-LM trains on one kind of GPU, and the cluster has several pools")
    cluster = with_host_memory(cluster, read_host_memory(inputs.host_memory))
    question: Question = complete_question(
        reading.model, cluster, reading.training, stack=reading.stack, profile=inputs.profile
    )
    return EstimateQuestion(question=question, layout=reading.layout, assumptions=reading.assumptions)
