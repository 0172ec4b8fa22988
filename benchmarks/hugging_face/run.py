"""Configs of every family as `transformers` builds them and as the executor does: parameters and logits.

python benchmarks/hugging_face/run.py OUT.csv        needs `transformers` 4.57, which nothing else here does
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from pathlib import Path

import torch
from cases import CASES, Config
from copying import copy_weights
from transformers import AutoConfig, AutoModelForCausalLM

from cost_models.files.loading import resolve_model
from cost_models.operators.parameters import total_parameters
from cost_models.specs.transformer import TransformerSpec
from executor.models.transformer import Transformer

SEQUENCES, TOKENS = 2, 40
SPREAD = 0.2
"""Standard deviation of weights, so large that norms and windows matter."""


def compare(config: Config) -> tuple[int, int, float]:
    """Parameters there and here, and the largest difference of logits as a share of the largest."""
    generator = torch.Generator().manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * SPREAD)
    spec = read(config)
    ours = Transformer(spec, vocabulary=spec.vocab_size).eval()
    copy_weights(ours, spec, config["model_type"], dict(theirs.state_dict()))
    tokens = torch.randint(0, spec.vocab_size, (SEQUENCES, TOKENS), generator=generator)
    with torch.no_grad():
        expected, got = theirs(tokens).logits, ours(tokens)
    count = sum(parameter.numel() for parameter in theirs.parameters())
    return count, total_parameters(spec), float((got - expected).abs().max() / expected.abs().max())


def read(config: Config) -> TransformerSpec:
    """As `meshwright` reads it from a file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        return resolve_model(folder).spec


def main(out: str) -> None:
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["config", "parameters", "parameters_here", "logits_off"])
        for name, config in CASES.items():
            there, here, off = compare(config)
            table.writerow([name, there, here, f"{off:.1e}"])
            print(f"{name:32} {there:>9,} {'same' if there == here else here:>9} {off:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])
