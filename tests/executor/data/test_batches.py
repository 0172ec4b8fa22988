"""Batches follow from seed and step alone, whatever the layout, and come one step ahead."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from training import LLAMA, plan_for

from cost_models.errors import InputError
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Encoder
from executor.data.batches import Ahead, Batches, text_tokens
from executor.data.tokens import TokenHeader
from executor.run_config import NO_TARGET
from planner.plan import Plan

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


def test_the_text_is_long_and_the_same_wherever_it_is_made() -> None:
    """No file of the machine is read: its digest is fixed."""
    text = text_tokens().tobytes()
    assert len(text) > 4_000_000
    assert text.isascii()
    assert (
        hashlib.sha256(text).hexdigest() == "4ede11a2cb5622d599a9b273f262266ae01713bdf677b247515c4a2c5e884073"
    )


def test_random_tokens_use_the_whole_vocabulary() -> None:
    batches = Batches(TRAINING, vocabulary=50_000, seed=1, data="random")
    whole, _ = batches.slice(3, 0, 1)
    assert torch.equal(torch.cat([batches.slice(3, rank, 2)[0] for rank in range(2)]), whole)
    assert 40_000 < int(whole.max()) < 50_000
    assert not torch.equal(whole, batches.slice(4, 0, 1)[0])


def test_an_epoch_sees_every_window_once(tmp_path) -> None:
    """Two epochs over 20 windows in steps of 8, the last step of one epoch being the first of the next."""
    folder = numbered(tmp_path / "tokens", 20 * 32 + 1)
    batches = Batches(TRAINING, vocabulary=1000, seed=0, data=str(folder))
    inputs = torch.cat([batches.slice(step, rank, 2)[0] for step in range(5) for rank in range(2)])
    assert torch.equal(inputs[:, 1:] - inputs[:, :-1], torch.ones(40, 31, dtype=torch.int64))
    firsts = (inputs[:, 0] // 32).tolist()
    assert sorted(firsts[:20]) == sorted(firsts[20:]) == list(range(20))
    assert firsts[:20] != firsts[20:]
    assert firsts[:20] != list(range(20))


def test_a_token_beyond_its_vocabulary_is_noticed(tmp_path) -> None:
    """Where the file was changed behind the header's back."""
    folder = numbered(tmp_path / "tokens", 65)
    tokens = np.memmap(folder / "tokens.bin", "<u2", mode="r+")
    tokens[:] = 999
    tokens.flush()
    with pytest.raises(InputError, match="has token 999; its header says that all are below 65"):
        Batches(TRAINING, vocabulary=1000, seed=0, data=str(folder)).slice(0, 0, 1)


def numbered(folder: Path, count: int) -> Path:
    """A token folder whose tokens are 0, 1, 2, ..."""
    folder.mkdir()
    np.arange(count, dtype="<u2").tofile(folder / "tokens.bin")
    header = TokenHeader(
        dtype="uint16",
        tokens=count,
        vocabulary=count,
        tokenizer="bpe",
        texts=1,
        text_bytes=1,
        sha256="0" * 64,
    )
    (folder / "tokens.json").write_text(header.model_dump_json(), "utf-8")
    return folder


def test_as_many_tokens_of_each_sequence_are_masked_whoever_draws_it() -> None:
    """Of those eight in ten become the mask; a replica draws of a sequence what another would."""
    encoder = Encoder(masked=0.25, mask_token=7)
    training = TrainingSpec(global_batch=8, sequence_length=512)
    batches = Batches(training, vocabulary=256, seed=1, data="random", encoder=encoder)
    plain = Batches(training, vocabulary=256, seed=1, data="random").slice(3, 0, 1)[0]
    inputs, targets = batches.slice(3, 0, 1)
    masked = targets != NO_TARGET
    assert masked.sum(1).tolist() == [128] * 8
    assert torch.equal(targets[masked], plain[masked])
    assert torch.equal(inputs[~masked], plain[~masked])
    assert float((inputs[masked] == 7).float().mean()) == pytest.approx(0.8, abs=0.05)
    halves = [batches.slice(3, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([one for one, _ in halves]), inputs)
    assert torch.equal(torch.cat([one for _, one in halves]), targets)


CPU = torch.device("cpu")
STEPS = 3


def test_the_next_batch_is_drawn_while_a_step_runs() -> None:
    drawn = [threading.Event() for _ in range(STEPS + 1)]

    def draw(number: int) -> int:
        drawn[number].set()
        return number * number

    ahead = Ahead(draw, CPU, last=STEPS - 1)
    for number in range(STEPS):
        assert ahead.take(number) == number * number
        assert drawn[number + 1].wait(10) if number + 1 < STEPS else not drawn[STEPS].is_set()
    assert ahead.take(0) == 0


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_taken() -> None:
    ahead = Ahead(lambda number: 1 // number, CPU, last=1)
    with pytest.raises(ZeroDivisionError):
        ahead.take(0)
    assert ahead.take(1) == 1


def reads(plan: Plan) -> tuple[Counter[tuple[int, int]], list[tuple[list[int], list[int]]], list[int]]:
    """(step, sequence) that this rank read; tokens and targets that it got in each step; its virtual stages."""
    from executor.axes.axis import Rank
    from executor.data.batches import Batches, SharedBatches
    from executor.run_config import EngineOptions

    found: Counter[tuple[int, int]] = Counter()
    own = Batches.tokens

    def counted(self: Batches, step: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        found.update((step, sequence) for sequence in range(first, last))
        return own(self, step, first, last)

    with mock.patch.object(Batches, "tokens", counted):
        rank = Rank(plan, CPU, EngineOptions())
        batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
        shared = SharedBatches(batches, rank, plan.layout.num_stages, STEPS - 1)
        taken = [shared.take(step) for step in range(STEPS)]
    return found, [(tokens.tolist(), targets.tolist()) for tokens, targets in taken], rank.stages


@pytest.mark.parametrize(("layout", "readers"), [("tp2 cp2 mbs8", 1), ("tp2 dp2 mbs4", 1), ("pp4 mbs2", 2)])
def test_each_sequence_is_read_once_by_those_that_work_on_it(layout: str, readers: int, processes) -> None:
    """Once by the first stage and once by the last; the two between them read none."""
    from executor.data.batches import Batches

    plan = plan_for(layout, LLAMA)
    everyone = processes.run(plan.layout.num_gpus, reads, plan)
    batch = plan.training.global_batch
    total: Counter[tuple[int, int]] = sum((found for found, _, _ in everyone), Counter())
    assert total == {(step, sequence): readers for step in range(STEPS) for sequence in range(batch)}
    alone = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    for found, taken, stages in everyone:
        assert not found or {0, plan.layout.pp - 1} & set(stages)
        for step, (tokens, _) in enumerate(taken):
            whole = alone.between(step, 0, batch)[0].tolist()
            if {0, plan.layout.pp - 1} & set(stages):
                assert tokens == whole[: len(tokens)] or tokens == whole[-len(tokens) :]
            else:
                assert not torch.tensor(tokens).any()
