"""Resuming: bit for bit on the same plan, equal on another, from the newest whole checkpoint, each byte read once."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from effort import few, first_of
from processes import Processes
from saving_jobs import (
    SAVED_AT,
    STEPS,
    change_byte,
    change_manifest,
    edit_manifest,
    fill_the_disk,
    refused,
    train_and_save,
)
from training import GPT, LATENT, LLAMA, LLAVA, MOE, SHARED, TWO_IMAGES, plan_for

from cost_models.reliability import copies
from executor.checkpoints.manifest import Folder, read_manifest
from executor.run_config import Rate
from planner.plan import Plan

TOLERANCE = 1e-5
BIASED = SHARED | LATENT | {"routing_bias": True}
RATE = Rate(peak=1e-2, warm_up=4, decay=7)
"""Saved while it rises; it falls before the end."""
SCHEDULED: dict[str, Any] = {"steps": RATE.decay, "keep": 9}
FRESH, AGAIN = partial(train_and_save, resume=False), partial(train_and_save, resume=True)


def saved_run(processes: Processes, layout: str, folder: Path, model: dict = GPT, **training) -> list:  # type: ignore[type-arg]
    """The uninterrupted curve of a run that leaves checkpoints of steps 3 and 5; the second is taken away again."""
    plan = plan_for(layout, model, **training)
    curve = processes.run(plan.layout.num_gpus, FRESH, plan, folder)[0][0]
    for name in Folder(folder).complete():
        if name > SAVED_AT:
            Folder(folder).delete(name)
    return curve


@few(1)
@pytest.mark.parametrize(
    ("layout", "model", "training"),
    first_of(
        2,
        [
            ("dp2 mbs2 zero1", GPT, {"precision": "bf16", "dropout": 0.1}),
            ("tp2 dp2 ep2 sp mbs2 zero1", BIASED, {}),
            ("pp2 dp2 mbs1 zero1 schedule=zbv", GPT, {"optimizer": "lamb"}),
            ("dp4 ep2 mbs2 zero3", MOE, {}),
            ("tp2 pp2 mbs2", GPT, {}),
            ("cp2 dp2 mbs2 zero1", GPT, {"dropout": 0.1}),
        ],
    ),
)
def test_the_same_plan_resumes_bit_for_bit(layout, model, training, processes, tmp_path) -> None:
    """Losses and gradient norms equal those of the run that was not interrupted, compared exactly."""
    expected = saved_run(processes, layout, tmp_path, model, **training)
    plan = plan_for(layout, model, **training)
    got, notes, newest = processes.run(plan.layout.num_gpus, AGAIN, plan, tmp_path)[0]
    assert len(expected) == STEPS
    assert got == expected[SAVED_AT:]
    assert notes == [f"resumed from {tmp_path}/step-00000003 after step 3"]
    assert newest == STEPS


ADAPTED: dict[str, Any] = {"tuning": {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}}


@few(3)
@pytest.mark.parametrize(
    ("saved", "resumed", "model", "job"),
    [
        ("pp2 dp2 mbs1 zero1", "tp2 sp dp2 mbs2 zero3", GPT, {}),
        ("dp4 ep4 mbs2 zero1", "tp2 ep2 etp1 mbs2 zero0", BIASED, {}),
        ("dp4 mbs2 zero1 shard2", "cp2 dp2 mbs2 zero3", GPT, {}),
        ("tp2 mbs2", "dp2 mbs2 zero1", LLAMA, ADAPTED),
        ("cp2 dp2 mbs2 zero1", "dp4 mbs2 zero0", GPT, {}),
        ("tp2 pp2 mbs2", "dp2 mbs2 zero3", LLAVA, TWO_IMAGES | {"freeze": ("tower",)}),
    ],
)
def test_another_plan_goes_on_with_the_same_curve(saved, resumed, model, job, processes, tmp_path) -> None:
    """Within what layouts differ in anyway; two steps, as a wrong moment shows in the second. Of adapters the
    checkpoint has nothing else: what is frozen is drawn again."""
    expected = saved_run(processes, saved, tmp_path, model, **job)
    plan = plan_for(resumed, model, **job)
    got, notes, _ = processes.run(plan.layout.num_gpus, AGAIN, plan, tmp_path)[0]
    assert len(got) == STEPS - SAVED_AT
    assert got == [pytest.approx(pair, rel=TOLERANCE) for pair in expected[SAVED_AT:]]
    assert "saved as" in notes[0]
    names = read_manifest(Folder(tmp_path).at(SAVED_AT)).tensors
    assert "tuning" not in job or all("_adapter" in name or "random" in name for name in names)


def test_the_learning_rate_goes_on_where_it_was(processes, tmp_path) -> None:
    """Bit for bit through warm-up and decay; another schedule is another curve, and is said."""
    plan, folder = plan_for("dp2 mbs2 zero1"), Folder(tmp_path)
    expected, _, _ = processes.run(2, partial(FRESH, **SCHEDULED, rate=RATE), plan, tmp_path)[0]
    for resumed, notes in ((RATE, 1), (Rate(peak=1e-2, warm_up=5, decay=7), 2)):
        for step in folder.complete():
            if step > SAVED_AT:
                folder.delete(step)
        got, told, _ = processes.run(2, partial(AGAIN, **SCHEDULED, rate=resumed), plan, tmp_path)[0]
        assert (got == expected[SAVED_AT:]) is (resumed == RATE)
        assert len(told) == notes
    assert told[1] == "the learning rate was 0.01, now it is 0.008"


def test_other_choices_are_said_where_a_run_goes_on(processes, tmp_path) -> None:
    """They are taken, as a person may mean them; a curve that bends here must not be a riddle."""
    saved_run(processes, "mbs2", tmp_path, GPT)
    plan = plan_for("mbs2", GPT, precision="bf16")
    _, told, _ = processes.run(
        1, partial(AGAIN, rate=Rate(peak=1e-3, warm_up=3, decay=100), clip=0.5), plan, tmp_path
    )[0]
    assert told[1:] == [
        "the learning rate was 0.001 after 0 steps of warm-up, now it is 0.001 after 3 steps of warm-up,"
        " falling until step 100",
        "gradients were not clipped, now they are clipped to a norm of 0.5",
        "`precision` was fp32, the plan has bf16",
    ]


def test_a_vocabulary_padded_for_more_ranks(processes, tmp_path) -> None:
    """Rows that only pad are made anew; the rows of tokens and everything else are the saved ones."""
    odd = LLAMA | {"vocab_size": 257, "vocab_multiple": 1}
    saved_run(processes, "mbs2", tmp_path, odd)
    plan = plan_for("tp2 mbs2", odd)
    got, _, newest = processes.run(2, AGAIN, plan, tmp_path)[0]
    assert newest == STEPS
    assert len(got) == STEPS - SAVED_AT
    manifest = read_manifest(Folder(tmp_path).at(STEPS))
    assert manifest.tensors["weights.head.weight"].shape[0] == 258


ROWS = "weights.embedding.tokens.weight"


def moved(tensor: dict[str, Any]) -> None:
    tensor["pieces"][-1]["offsets"][0] += 1


def swapped(tensor: dict[str, Any]) -> None:
    for piece in tensor["pieces"]:
        piece["file"] = 1 - piece["file"]


def of_rows(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change of what the manifest of a checkpoint says of `ROWS`."""
    return lambda at: change_manifest(at / "manifest.json", lambda it: change(it["tensors"][ROWS]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "rank-00000.safetensors: its bytes": lambda at: change_byte(at / "rank-00000.safetensors", -5),
    "rank-00001.safetensors: it has 1000 bytes": lambda at: os.truncate(at / "rank-00001.safetensors", 1000),
    "rank-00001.safetensors: no such file": lambda at: (at / "rank-00001.safetensors").unlink(),
    "manifest.json: no such file": lambda at: (at / "manifest.json").unlink(),
    "manifest.json: it is cut off": lambda at: os.truncate(at / "manifest.json", 100),
    "manifest.json: it is not what was written": lambda at: edit_manifest(at / "manifest.json"),
    "manifest.json: it is": lambda at: (at / "manifest.json").write_bytes(pickle.dumps({"checkpoint": 1})),
    f"manifest.json: no piece of `{ROWS}` holds [": of_rows(lambda tensor: tensor["pieces"].pop()),
    f"manifest.json: a piece of `{ROWS}` lies outside it, at [": of_rows(moved),
    f"manifest.json: it has no `{ROWS}`": lambda at: change_manifest(
        at / "manifest.json", lambda it: it["tensors"].pop(ROWS)
    ),
    f"rank-00001.safetensors: it has no `{ROWS}@": of_rows(swapped),
}
"""Words of the warning → what is done to a checkpoint."""


@few(5)
@pytest.mark.parametrize("said", DAMAGE)
def test_a_broken_checkpoint_is_named_and_the_one_before_taken(said: str, processes, tmp_path) -> None:
    """The run goes on from the checkpoint before, says so, and leaves the broken one under another name."""
    plan = plan_for("dp2 mbs2 zero1")
    expected = processes.run(2, FRESH, plan, tmp_path)[0][0]
    DAMAGE[said](Folder(tmp_path).at(STEPS))
    got, notes, newest = processes.run(2, AGAIN, plan, tmp_path)[0]
    assert notes[0].startswith(
        f"warning: step-00000005 is broken and now named broken-step-00000005-0: {said}"
    )
    assert got == expected[SAVED_AT:]
    assert newest == STEPS
    assert (tmp_path / "broken-step-00000005-0").is_dir()


def test_a_checkpoint_is_of_the_step_that_it_says(processes, tmp_path) -> None:
    """Whatever its folder is called: its state would go on with the data and the rates of another step."""
    plan = plan_for("dp2 mbs2 zero1")
    processes.run(2, FRESH, plan, tmp_path)
    Folder(tmp_path).at(STEPS).rename(Folder(tmp_path).at(9))
    for kind, message in processes.run(2, partial(refused, resume=True), plan, tmp_path):
        assert kind == "InputError"
        assert message.startswith(f"{tmp_path}/step-00000009 holds the checkpoint of step {STEPS}\n")
        assert "its name is step-00000005" in message


def test_without_a_whole_checkpoint_nothing_is_trained(processes, tmp_path) -> None:
    plan = plan_for("dp2 mbs2 zero1")
    processes.run(2, FRESH, plan, tmp_path)
    for step in Folder(tmp_path).complete():
        change_byte(Folder(tmp_path).at(step) / "rank-00001.safetensors", -5)
    kind, message = processes.run(2, partial(refused, resume=True), plan, tmp_path)[0]
    assert kind == "RunError"
    assert message.startswith(
        f"no checkpoint in {tmp_path} is whole\n  step-00000005: rank-00001.safetensors: its"
    )
    assert Folder(tmp_path).complete() == [5, 3]


def test_what_a_killed_save_left_is_never_read(processes, tmp_path) -> None:
    """It is not listed, and the next save clears it away."""
    plan = plan_for("dp2 mbs2 zero1")
    processes.run(2, FRESH, plan, tmp_path)
    half = Folder(tmp_path).partial(8)
    half.mkdir()
    (half / "rank-00000.safetensors").write_bytes(b"half")
    assert Folder(tmp_path).complete() == [5, 3]
    processes.run(2, partial(AGAIN, steps=6), plan, tmp_path)
    assert not half.exists()
    assert Folder(tmp_path).complete() == [6, 5]


def test_a_full_disk_leaves_the_checkpoint_before(processes, tmp_path) -> None:
    """Every rank says which rank could not write which file and why; half of it is not left lying."""
    plan = plan_for("dp2 mbs2 zero1")
    processes.run(2, FRESH, plan, tmp_path)
    answers = processes.run(2, fill_the_disk, plan, tmp_path)
    for kind, message in answers:
        assert kind == "RunError"
        assert "the checkpoint of step 6 could not be written; the checkpoint of step 5 is whole" in message
        assert "rank 0: " in message
        assert "rank-00000.safetensors: file too large" in message
    assert Folder(tmp_path).complete() == [5, 3]
    assert not Folder(tmp_path).partial(6).exists()
    assert processes.run(2, partial(AGAIN, steps=6), plan, tmp_path)[0][2] == 6


@few(2)
@pytest.mark.parametrize(
    ("model", "training", "how", "said"),
    [
        (GPT | {"num_layers": 2}, {}, {}, "the model differs in `num_layers`"),
        (GPT, {"global_batch": 16}, {}, "`global_batch` was 8, the plan has 16"),
        (GPT, {"optimizer": "lamb"}, {}, "`optimizer` was sgd, the plan has lamb"),
        (GPT, {}, {"seed": 1}, "the seed was 0, now it is 1"),
    ],
)
def test_another_runs_checkpoint_is_refused(
    model,
    training,
    how,
    said,
    processes,
    tmp_path,  # type: ignore[type-arg]
) -> None:
    saved = {"optimizer": "sgd"} if "optimizer" in training else {}
    processes.run(1, FRESH, plan_for("mbs2", **saved), tmp_path)
    other = plan_for("mbs2", model, **training)
    kind, message = processes.run(1, partial(refused, resume=True, **how), other, tmp_path)[0]
    assert kind == "InputError"
    assert said in message


def test_a_new_run_does_not_write_among_checkpoints(processes, tmp_path) -> None:
    processes.run(1, FRESH, plan_for("mbs2"), tmp_path)
    kind, message = processes.run(1, partial(refused, resume=False), plan_for("mbs2"), tmp_path)[0]
    assert kind == "InputError"
    assert "has checkpoints already, the newest of step 5" in message


def test_a_loss_that_is_no_number_stops_before_it_is_saved(processes, tmp_path) -> None:
    """Every rank stops with the same words; no checkpoint holds what came of it."""
    how = {"rate": Rate(peak=1e18), "every": 1}
    answers = processes.run(2, partial(refused, resume=False, **how), plan_for("dp2 mbs2 zero1"), tmp_path)
    assert answers[0] == answers[1]
    kind, message = answers[0]
    assert kind == "RunError"
    assert message.startswith(
        ("the loss is nan in step", "the gradient norm is nan in step", "the loss is inf")
    )
    assert "the state since then was not saved" in message
    stopped = int(message.split("in step ")[1].split()[0])
    assert Folder(tmp_path).complete()[0] < stopped


def test_nothing_on_disk_is_a_pickle(processes, tmp_path) -> None:
    """JSON and safetensors only: no file holds the opcode that begins a pickle or a zip of one."""
    processes.run(2, FRESH, plan_for("dp2 mbs2 zero1"), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        assert path.read_bytes()[:2] not in (b"\x80\x02", b"\x80\x04", b"PK")


def _loaded(plan: Plan, folder: Path, once: bool) -> tuple[int, list[str]]:
    """(bytes of matrices and vectors that this rank has read, digests of all that it then holds)."""
    import torch

    from executor.checkpoints.checkpointer import Checkpointer, PieceReader
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions, RunConfig
    from executor.transformer.train import TransformerState

    read, plainly = [], PieceReader.read

    def counting(reader: PieceReader) -> None:
        parts = [part for of_file in reader.reads.values() for part in of_file]
        read.extend(
            target.nbytes for key, _, target in parts if target.dim() and not key.startswith("random")
        )
        plainly(reader)

    state = TransformerState(Engine(plan, torch.device("cpu"), EngineOptions(seed=7), filled=False))
    saving = RunConfig(checkpoint=folder, every=1, keep=2, resume=True)
    state.engine.options = EngineOptions()
    one_way = mock.patch.object(TransformerState, "reads_once", return_value=once)
    with one_way, mock.patch.object(PieceReader, "read", counting):
        assert Checkpointer(state, saving, "text").resume().step == 1
    held = [piece.tensor for one in state.contents().values() for piece in one.pieces]
    return sum(read), [hashlib.sha256(one.numpy().tobytes()).hexdigest() for one in held]


@few(1)
@pytest.mark.parametrize(
    ("layout", "model"),
    [("dp2 mbs2 zero0", GPT), ("dp4 mbs2 zero1 shard2", GPT), ("dp4 ep2 mbs2 zero2 shard2", MOE)],
)
def test_each_byte_is_read_once(layout: str, model: dict[str, Any], processes, tmp_path) -> None:
    plan = plan_for(layout, model)
    ranks = plan.layout.num_gpus
    processes.run(ranks, partial(FRESH, steps=1, every=1), plan, tmp_path)
    every, once = (processes.run(ranks, _loaded, plan, tmp_path, how) for how in (False, True))
    tensors = read_manifest(Folder(tmp_path).at(1)).tensors
    whole = sum(4 * prod(one.shape) for name, one in tensors.items() if one.shape and "random" not in name)
    assert sum(read for read, _ in once) == whole
    assert max(read for read, _ in once) < 1.5 * whole / ranks  # each has as much to read
    assert sum(read for read, _ in every) == pytest.approx(
        copies(plan.question, plan.layout) * whole, rel=1e-3
    )
    assert [held for _, held in once] == [held for _, held in every]
