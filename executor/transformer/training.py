"""Training transformers: checks before a run starts, and the call on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.defaults import OWN_COMPILED
from cost_models.errors import HostError, InputError
from cost_models.files.catalog import load_stack
from cost_models.schedules.registry import SPLIT_BACKWARD
from executor.axes.offload.reporting import drive_folder, require_drive, require_offload
from executor.data.tokens import open_tokens, require_a_sequence, require_whole
from executor.families import Training
from executor.requirements import require_fp8_gemms, require_torchao
from executor.run_config import RANDOM, TEXT, RunConfig
from planner.plan import Plan
from planner.rules.legality import require_offload_room
from planner.rules.stack import require_runnable

_BYTE_VOCABULARY = 256


class TransformerTraining(Training[Plan]):
    """Training of transformers on tokens."""

    trainer = "executor.transformer.train:train"

    def require_trainable(self, plan: Plan, config: RunConfig, on_note: Callable[[str], None]) -> RunConfig:
        """Raise an error where plan, flags, inputs or drive rule out training; returns the flags to train with."""
        config = config.model_copy(update={"compile": config.compile or plan.stack.compiled})
        require_trainable(plan, byte_text=config.data == TEXT)
        require_offload(plan, config)
        if os.environ.get("RANK", "0") == "0":
            require_inputs(plan, config, on_note)
            require_drive(plan, drive_folder(config), config.nodes)
        if config.compile:
            _require_compilable(plan)
        return config

    def require_devices(self, plan: Plan, name: str, *, on_gpu: bool) -> None:
        """Raise HostError where the device has no fp8 products, or no symmetric memory, that the plan needs."""
        require_torchao(plan, name)
        require_fp8_gemms(plan, name, on_gpu=on_gpu)
        if "tp" in (plan.layout.overlap or ()) and not on_gpu:
            raise HostError(
                f"{name} has `overlap=tp`, which sends through the symmetric memory of GPUs",
                hint="leave `tp` out",
            )

    def of_rank(self, plan: Plan, rank: int) -> dict[str, Any]:
        """Fields that describe a rank that ran out of memory: its pipeline stage, and predicted bytes by part."""
        from executor.measure.report import predicted_parts

        stage = plan.layout.place_along("pp", rank)
        return {"place": f"stage {stage}", "predicted": predicted_parts(plan.prediction.rank_memory[stage])}


def require_trainable(plan: Plan, *, byte_text: bool) -> None:
    """Raise InputError if the executor cannot train the plan, or if hosts cannot hold what it offloads."""
    require_runnable(plan.question, plan.layout)
    require_offload_room(plan.question, plan.layout)
    if byte_text and plan.model.vocab_size < _BYTE_VOCABULARY:
        raise InputError(
            f"text of bytes needs a vocabulary of {_BYTE_VOCABULARY}; model `{plan.model.name}` has"
            f" {plan.model.vocab_size}",
            hint="--data random, or a folder that meshwright tokens made",
        )


def require_inputs(plan: Plan, config: RunConfig, on_note: Callable[[str], None]) -> None:
    """Raise InputError where tokens or weights are broken or do not fit the plan, or weights cannot be written."""
    if config.data not in (TEXT, RANDOM):
        require_whole(Path(config.data), on_note)
        header, _ = open_tokens(Path(config.data), plan.model.vocab_size)
        require_a_sequence(header.tokens, sum(plan.training.sequences), config.data)
    if config.weights is not None:
        from executor.hugging_face.reading import Folder

        Folder(config.weights, plan.model)
    if config.save_weights is not None:
        from executor.hugging_face.writing import require_writable

        require_writable(plan, config.save_weights, config.weights)


def _require_compilable(plan: Plan) -> None:
    """Raise InputError where the plan's blocks cannot be compiled, whatever stack it was made for."""
    schedule = plan.layout.schedule
    if plan.training.tuning is not None:
        raise InputError("blocks with adapters are not compiled", hint="leave out `compile`")
    if schedule in SPLIT_BACKWARD:
        raise InputError(
            f"a compiled block has one backward pass, which `schedule={schedule}` splits",
            hint="leave out `compile`, or use another schedule",
        )
    require_runnable(replace(plan.question, stack=load_stack(OWN_COMPILED)), plan.layout)
