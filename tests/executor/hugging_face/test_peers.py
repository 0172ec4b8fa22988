"""`transformers` computes the same logits from the same folder, and reads what is written; skipped without it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hub_folders import ENCODERS, STACKS, make_folder, plan_of, train_from, written

from executor.data.batches import Batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


def _kind(model_type: str) -> Any:
    encodes = model_type in ENCODERS
    if model_type in STACKS:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForMaskedLM if encodes else transformers.AutoModelForCausalLM


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
