"""Configs of every family as `transformers` builds them and as the executor does: parameters and logits.

python benchmarks/hugging_face/run.py OUT.csv [LOGITS.json]     needs `transformers` 4.57, which nothing else does

LOGITS.json keeps some logits of some configs, with names and shapes of the weights, so that
`tests/executor/models/test_hugging_face_logits.py` compares with them where `transformers` is not.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Config
from transformers import AutoConfig, AutoModelForCausalLM

from cost_models.files.loading import resolve_model
from cost_models.operators.parameters import total_parameters
from cost_models.specs.transformer import TransformerSpec
from executor.boxes import Box
from executor.hugging_face.names import Names
from executor.hugging_face.reading import FromTensors
from executor.models.transformer import Transformer

SEQUENCES, TOKENS = 2, 40
KEPT = ("mistral", "qwen2", "gemma3", "cohere2", "gpt_neox", "gptj", "phi", "falcon, 40B", "cohere")
"""Windows in all blocks, in the last, in turns; halves side by side with two norms and with one."""
SPREAD = 0.2
"""Standard deviation of weights, so large that norms and windows matter."""


def made(config: Config, generator: torch.Generator) -> torch.nn.Module:
    """The model of `transformers`, with weights drawn in the order of its parameters."""
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * SPREAD
            parameter.copy_(
                drawn if parameter.requires_grad else torch.zeros(())
            )  # a router's balancing bias
    return theirs


def kept(config: Config) -> dict[str, Any]:
    """What a comparison without `transformers` needs: logits of the last tokens, and which weights there are."""
    generator = torch.Generator().manual_seed(0)
    theirs = made(config, generator)
    tokens = torch.randint(0, config["vocab_size"], (SEQUENCES, TOKENS), generator=generator)
    with torch.no_grad():
        logits = theirs(tokens).logits
    places = {parameter.data_ptr(): place for place, parameter in enumerate(theirs.parameters())}
    names = {
        name: places[one.data_ptr()] for name, one in theirs.state_dict().items() if one.data_ptr() in places
    }
    return {
        "config": config,
        "shapes": [list(parameter.shape) for parameter in theirs.parameters()],
        "names": names,
        "largest": float(logits.abs().max()),
        "last_logits": logits[:, -1].tolist(),
    }


def compare(config: Config) -> tuple[int, int, float]:
    """Parameters there and here, and the largest difference of logits as a share of the largest."""
    generator = torch.Generator().manual_seed(0)
    theirs = made(config, generator)
    spec = read(config)
    ours = filled(spec, config["model_type"], theirs.state_dict())
    tokens = torch.randint(0, spec.vocab_size, (SEQUENCES, TOKENS), generator=generator)
    with torch.no_grad():
        expected, got = theirs(tokens).logits, ours(tokens)
    count = sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad)
    return count, total_parameters(spec), float((got - expected).abs().max() / expected.abs().max())


def filled(spec: TransformerSpec, model_type: str, tensors: Mapping[str, torch.Tensor]) -> Transformer:
    """Our model with their weights."""
    model = Transformer(spec, vocabulary=spec.vocab_size).eval()
    values = FromTensors(Names(spec, model_type), tensors)
    with torch.no_grad():
        for name, one in model.named_parameters():
            shape = tuple(one.shape)
            values.fill(name, shape, Box((0,) * one.dim(), shape), one)
    return model


def read(config: Config) -> TransformerSpec:
    """As `meshwright` reads it from a file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        return resolve_model(folder).spec


def main(out: str, logits: str | None = None) -> None:
    if logits is not None:
        found = {name: kept(CASES[name]) for name in KEPT}
        Path(logits).write_text(json.dumps(found) + "\n", encoding="utf-8")
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["config", "parameters", "parameters_here", "logits_off"])
        for name, config in CASES.items():
            there, here, off = compare(config)
            table.writerow([name, there, here, f"{off:.1e}"])
            print(f"{name:32} {there:>9,} {'same' if there == here else here:>9} {off:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
