"""Windows and parallel residuals of Hugging Face configs give the logits that `transformers` gives.

Kept by `benchmarks/hugging_face/run.py`, which compares all families where `transformers` is installed: weights are
drawn again from the same seed, in the order of its parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cost_models.files.loading import resolve_model
from executor.boxes import Box
from executor.hugging_face.names import Names
from executor.hugging_face.reading import FromTensors
from executor.models.transformer import Transformer

FOLDER = Path(__file__).parents[3] / "benchmarks" / "hugging_face"
KEPT: dict[str, dict[str, Any]] = json.loads((FOLDER / "logits.json").read_text("utf-8"))
SEQUENCES, TOKENS, SPREAD = 2, 40, 0.2
TOLERANCE = 1e-5


def last_logits(kept: dict[str, Any], folder: Path, **changed: object) -> torch.Tensor:
    """(B, V) of the last tokens, by the model that a config is read as; some of its fields changed."""
    config = kept["config"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = resolve_model(str(folder)).spec.model_copy(update=changed)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) * SPREAD for shape in kept["shapes"]]
    model = Transformer(spec, vocabulary=spec.vocab_size).eval()
    named = {name: weights[place] for name, place in kept["names"].items()}
    values = FromTensors(Names(spec, config["model_type"]), named)
    with torch.no_grad():
        for name, one in model.named_parameters():
            shape = tuple(one.shape)
            values.fill(name, shape, Box((0,) * one.dim(), shape), one)
    tokens = torch.randint(0, spec.vocab_size, (SEQUENCES, TOKENS), generator=generator)
    with torch.no_grad():
        logits: torch.Tensor = model(tokens)
    return logits[:, -1]


@pytest.mark.parametrize("name", list(KEPT))
def test_logits_are_those_of_transformers(name: str, tmp_path) -> None:
    kept = KEPT[name]
    off = (last_logits(kept, tmp_path) - torch.tensor(kept["last_logits"])).abs().max()
    assert float(off) <= TOLERANCE * kept["largest"]
