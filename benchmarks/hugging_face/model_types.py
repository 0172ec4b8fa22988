"""Every `model_type` of `transformers` that generates text: its default config as built there, and as read here.

python benchmarks/hugging_face/model_types.py OUT.csv     needs `transformers` 5.24, which nothing else does

Columns: model_type; verdict (`same` parameters, `differs`, `refused`, `not built`); parameters there and here; words of
the refusal, or what is left out. Models are built on meta, without weights; trained parameters count, tied ones once.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cost_models.errors import InputError
from cost_models.files.loading import LoadedModel, resolve_model
from cost_models.operators.parameters import total_parameters


def text_of(config: Any) -> Any:
    """The config of the part that reads text."""
    return config.get_text_config()


def counted(config: Any) -> int:
    """Parameters of the model of `transformers`, tied ones once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def read(config: Any) -> LoadedModel:
    """The same config as this project reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config.to_dict(), default=str), "utf-8")
        return resolve_model(str(path))


def row(model_type: str) -> list[Any]:
    """One line of the table."""
    try:
        config = text_of(AutoConfig.for_model(model_type))
        there = counted(config)
    except Exception as error:  # what a class asks for besides its defaults is of every sort
        return [
            model_type,
            "not built",
            "",
            "",
            f"{type(error).__name__}: {str(error).splitlines()[0][:100]}",
        ]
    try:
        loaded = read(config)
    except InputError as error:
        told = str(error).split("`) ", 1)[-1].splitlines()[0]
        if error.problems:
            told = "; ".join(f"{one.where.split('  ')[-1]}: {one.what}" for one in error.problems)
        return [model_type, "refused", there, "", told if "config.json" not in told else "no family here"]
    here = total_parameters(loaded.spec)
    verdict = "same" if here == there else "differs"
    return [model_type, verdict, there, here, ", ".join(loaded.spec.left_out)]


def main(out: str) -> None:
    """Writes the table, and prints how many are of each verdict."""
    found = Counter[str]()
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model_type", "verdict", "parameters", "parameters_here", "told"])
        for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
            line = row(model_type)
            found[line[1]] += 1
            table.writerow(line)
            file.flush()
    print(dict(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
