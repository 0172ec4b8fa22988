"""`transformers` computes the same logits from the same folder, and reads what is written; skipped without it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_folders import CONFIGS, ENCODERS, LLAVA, STACKS, make_folder, plan_of, same_bits, train_from, written

from cost_models.files.loading import resolve_model
from executor.boxes import Box
from executor.data.batches import Batches
from executor.hugging_face.reading import Folder, FromTensors
from executor.models.transformer import Transformer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_logits_are_those_of_transformers(processes, tmp_path, model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
    torch.manual_seed(0)
    kind = _kind(model_type)
    theirs = kind.from_config(config, attn_implementation="eager").eval()
    for name, one in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"):
            one.normal_(std=0.3)
    theirs.save_pretrained(tmp_path / "in")
    spec = resolve_model(str(tmp_path / "in")).spec
    plan = plan_of(spec, "mbs2")
    processes.run(1, train_from, plan, tmp_path / "in", tmp_path / "out", 2)
    trained = kind.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokens = torch.randint(2, spec.vocab_size, (2, 24))  # below are those of padding, which have no positions
    for folder, model in ((tmp_path / "in", theirs), (tmp_path / "out", trained)):
        with torch.no_grad():
            both = {"decoder_input_ids": tokens[:, 3:]} if model_type in STACKS else {}
            expected = model(tokens, **both).logits
            off = (_ours(folder)(tokens, *both.values()) - expected).abs().max() / expected.abs().max()
        assert float(off) < TOLERANCE
    assert not same_bits(written(tmp_path / "in"), written(tmp_path / "out"))


def _kind(model_type: str) -> Any:
    encodes = model_type in ENCODERS
    if model_type in STACKS:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForMaskedLM if encodes else transformers.AutoModelForCausalLM


def _ours(path: Path) -> Transformer:
    spec = resolve_model(str(path)).spec
    folder, model = Folder(path, spec), Transformer(spec, vocabulary=spec.vocab_size).eval()
    values = FromTensors(folder.names, folder)
    for name, one in model.named_parameters():
        values.fill(name, tuple(one.shape), Box((0,) * one.dim(), tuple(one.shape)), one)
    return model


STEPS = 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["full", "lora"])
@pytest.mark.parametrize(
    ("model_type", "layout"),
    [
        ("llama", "mbs8"),
        ("cohere", "tp2 pp2 mbs2"),
        ("qwen3", "tp2 dp2 mbs4 zero1"),
        ("bert", "tp2 pp2 mbs2"),
        ("t5", "tp2 dp2 mbs2 zero1"),
    ],
)
def test_steps_are_those_of_peft(processes, tmp_path, model_type: str, layout: str, task: str) -> None:
    """Losses of full and of adapters' training, with the same optimizer on the same tokens; what is written is read."""
    peft = pytest.importorskip("peft")
    spec, _ = make_folder(tmp_path / "in", model_type)
    tuning = {"rank": 4, "alpha": 8.0, "targets": ("attention", "down")}
    plan = plan_of(spec, layout, **({} if task == "full" else {"tuning": tuning}))
    base = _kind(model_type).from_pretrained(tmp_path / "in", attn_implementation="eager")
    model, first = base, tmp_path / "in"
    if task == "lora":
        first = tmp_path / "begun"
        processes.run(plan.num_ranks, train_from, plan, tmp_path / "in", first, 0)
        model = peft.PeftModel.from_pretrained(base, first, is_trainable=True)
    model.train()
    trained = [one for one in model.parameters() if one.requires_grad]
    adam = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    batches = Batches(plan.training, vocabulary=spec.vocab_size, seed=0, encoder=spec.encoder)
    losses = []
    for step in range(STEPS):
        *inputs, targets = batches.between(step, 0, plan.training.global_batch)
        given = dict(zip(("input_ids", "decoder_input_ids"), inputs, strict=False))
        logits = model(**given).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss))
    found = processes.run(plan.num_ranks, train_from, plan, tmp_path / "in", tmp_path / "out", STEPS)[0][0]
    assert [loss for loss, _ in found] == pytest.approx(losses, rel=TOLERANCE)
    assert abs(losses[0] - losses[-1]) > 100 * TOLERANCE
    theirs = dict(peft.get_peft_model_state_dict(model) if task == "lora" else model.state_dict())
    for name, one in written(tmp_path / "out").items():
        if name.endswith("key.bias"):  # it has no gradient but rounding
            continue
        assert float((one - theirs[name]).norm()) <= 1e-3 * float(theirs[name].norm()), name


@pytest.mark.filterwarnings("ignore")
def test_logits_behind_a_tower_are_those_of_transformers(tmp_path) -> None:
    torch.manual_seed(0)
    config = transformers.LlavaConfig(**LLAVA)
    theirs = transformers.LlavaForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    ).eval()
    for one in theirs.parameters():
        one.data.normal_(std=0.1)
    theirs.save_pretrained(tmp_path)
    tokens, images = torch.randint(2, 255, (2, 24)), torch.randn(2, 2, 3, 8, 8)
    tokens[:, :8] = config.image_token_index
    with torch.no_grad():
        expected = theirs(input_ids=tokens, pixel_values=images.flatten(0, 1)).logits
        found = _ours(tmp_path)(images, tokens_BS=tokens)
    assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE
