"""Published configs as `transformers` builds them, without their weights, and as they are read here: parameters.

python benchmarks/hugging_face/published.py OUT.csv     needs `transformers` 4.57, which nothing else does

`published.json` has the figures of `config.json` on the Hub by the model's name there.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import torch
from run import read
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import no_init_weights

from cost_models.operators.parameters import total_parameters

CONFIGS = Path(__file__).parent / "published.json"
AS_CLASS = {"kimi_k2": "deepseek_v3"}
"""`model_type` whose code is on the Hub only → the class of `transformers` with the same blocks."""

PLAIN = {"xielu": "silu"}
"""Activation that cannot be made without memory → one that can; its two learned factors a block are not counted."""


def count(config: dict[str, Any]) -> int:
    """Parameters of the text part that `transformers` trains; tied ones once."""
    text = dict(config.get("text_config", config))
    text["model_type"] = AS_CLASS.get(text["model_type"], text["model_type"])
    if text.get("hidden_act") in PLAIN:
        text["hidden_act"] = PLAIN[text["hidden_act"]]
    if "tie_word_embeddings" in config:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    with torch.device("meta"), no_init_weights():
        made = AutoConfig.for_model(**text)
        model = AutoModelForCausalLM.from_config(made, attn_implementation="eager", dtype=torch.bfloat16)
    model.tie_weights()  # which making them without weights leaves out
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def main(out: str) -> None:
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", "model_type", "parameters", "parameters_here", "off"])
        for name, config in json.loads(CONFIGS.read_text("utf-8")).items():
            there, here = count(config), total_parameters(read(config))
            table.writerow([name, config["model_type"], there, here, f"{here / there - 1:.1e}"])
            print(f"{name:44} {there:>17,} {here:>17,} {here / there - 1:+.2e}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
