"""`transformers` computes the same logits from the same folder, and reads what is written; skipped without it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from hub_folders import CONFIGS, plan_of, same_bits, train_from, written
from processes import Processes

from cost_models.files.models import resolve_model
from executor.boxes import Box
from executor.hugging_face.reading import Folder, FromTensors
from executor.models.transformer import Transformer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_logits_are_those_of_transformers(processes: Processes, tmp_path: Path, model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path / "in")
    spec = resolve_model(str(tmp_path / "in")).spec
    plan = plan_of(spec, "mbs2")
    processes.run(1, train_from, plan, tmp_path / "in", tmp_path / "out", 2)
    trained = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation="eager"
    ).eval()
    tokens = torch.randint(0, spec.vocab_size, (2, 24))
    for folder, model in ((tmp_path / "in", theirs), (tmp_path / "out", trained)):
        with torch.no_grad():
            expected = model(tokens).logits
            off = (_ours(folder)(tokens) - expected).abs().max() / expected.abs().max()
        assert float(off) < TOLERANCE
    assert not same_bits(written(tmp_path / "in"), written(tmp_path / "out"))


def _ours(path: Path) -> Transformer:
    spec = resolve_model(str(path)).spec
    folder, model = Folder(path, spec), Transformer(spec, vocabulary=spec.vocab_size).eval()
    values = FromTensors(folder.names, folder)
    for name, one in model.named_parameters():
        values.fill(name, tuple(one.shape), Box((0,) * one.dim(), tuple(one.shape)), one)
    return model
