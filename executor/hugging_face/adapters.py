"""Where adapters of ours lie in a folder as peft has it, and the config beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from cost_models.errors import InputError, Problem
from cost_models.operators.parameters import target_names
from cost_models.specs.training import TuningSpec
from executor.boxes import Box
from executor.hugging_face.names import Names, Part, Source, parts_of
from executor.models.tuning.adapters import ENDING, MATRICES

ADAPTERS = "adapter_model.safetensors"
_SIDES = {f"{ENDING}.down.": "lora_A", f"{ENDING}.up.": "lora_B"}


class AdapterNames:
    """As `Names`, of the adapters of a job.

    Raises:
        InputError: an adapter of ours is beside some rows of a matrix of theirs, for which peft has one adapter.
    """

    def __init__(self, names: Names, tuning: TuningSpec) -> None:
        self.names, self.tuning = names, tuning
        self.shapes: dict[str, tuple[int, ...]] = {}
        wanted = target_names(tuning)
        paths = [path for path, name in MATRICES.items() if name in wanted]
        self.modules: dict[str, None] = {}
        problems: dict[str, None] = {}
        for block in range(names.spec.num_layers):
            for matrix in (f"blocks.{block}.{path}.weight" for path in paths):
                if matrix not in names:
                    continue
                source = names.sources(matrix)[0]
                shape = names.shapes[source.name]
                inputs, outputs = shape if source.transposed else shape[::-1]
                module = source.name.removesuffix(".weight")
                inside = re.split(r"\.\d+\.", module, maxsplit=1)[1]
                self.modules[inside] = None
                if len(source.rows) != outputs:
                    problems[inside] = None
                self.shapes[f"base_model.model.{module}.lora_A.weight"] = (tuning.rank, inputs)
                self.shapes[f"base_model.model.{module}.lora_B.weight"] = (outputs, tuning.rank)
        if problems:
            raise InputError(
                "peft has one adapter where several of ours lie side by side",
                problems=[
                    Problem("", f"`{module}` joins matrices that have an adapter each") for module in problems
                ],
                hint="name others with --targets, or keep adapters by --checkpoint",
            )

    def parts(self, name: str, box: Box) -> Iterator[Part]:
        """Where a box of an adapter's A or B lies."""
        side = next(one for one in _SIDES if one in name)
        base = self.names.sources(name.replace(side, "."))[0]
        rows = base.rows if _SIDES[side] == "lora_B" else np.arange(self.tuning.rank)
        theirs = f"base_model.model.{base.name.removesuffix('weight')}{_SIDES[side]}.weight"
        yield from parts_of(Source(name=theirs, rows=rows, reach=base.reach), box)

    def config(self, base: str) -> dict[str, Any]:
        """Of these adapters beside the model in a folder."""
        usual = "SEQ_2_SEQ_LM" if self.names.spec.stacks else "CAUSAL_LM"
        return {
            "peft_type": "LORA",
            "task_type": None if self.names.spec.encoder else usual,  # peft has none for masked tokens
            "base_model_name_or_path": base,
            "r": self.tuning.rank,
            "lora_alpha": self.tuning.scale * self.tuning.rank,
            "lora_dropout": self.tuning.dropout,
            "target_modules": list(self.modules),
            "fan_in_fan_out": bool(self.names.family.transposed),
            "bias": "none",
            "inference_mode": True,
        }
