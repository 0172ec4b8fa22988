"""Batches follow from seed and step alone, whatever the layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cost_models.errors import InputError
from cost_models.specs.training import TrainingSpec
from executor.batches import Batches, text_tokens

TRAINING = TrainingSpec(global_batch=8, sequence_length=32)


def test_slices_make_the_global_batch() -> None:
    batches = Batches(TRAINING, vocabulary=256, seed=1)
    whole, whole_targets = batches.slice(5, 0, 1)
    parts = [batches.slice(5, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([inputs for inputs, _ in parts]), whole)
    assert torch.equal(whole[:, 1:], whole_targets[:, :-1])


def test_steps_and_seeds_differ() -> None:
    batches = Batches(TRAINING, vocabulary=256, seed=1)
    first, _ = batches.slice(0, 0, 1)
    assert not torch.equal(first, batches.slice(1, 0, 1)[0])
    assert not torch.equal(first, Batches(TRAINING, vocabulary=256, seed=2).slice(0, 0, 1)[0])


def test_the_text_is_real_and_long() -> None:
    assert len(text_tokens()) > 1_000_000
    assert b"import" in text_tokens().tobytes()


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    inputs, targets = Batches(TRAINING, vocabulary=50_000, seed=0, tokens_path=path).slice(0, 0, 1)
    assert torch.equal(inputs + 1, targets)
    with pytest.raises(InputError, match="token 999"):
        Batches(TRAINING, vocabulary=300, seed=0, tokens_path=path)
    with pytest.raises(InputError, match="no token file"):
        Batches(TRAINING, vocabulary=300, seed=0, tokens_path=tmp_path / "none.bin")
