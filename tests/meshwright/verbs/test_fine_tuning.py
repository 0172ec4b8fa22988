"""Fine-tuning as people ask for it: what is planned, said and refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.seconds import Pieces
from cost_models.pipeline.sizes import persistent_block
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec, TuningSpec
from meshwright.render.goals import tuning_sentence
from planner.plan import load_any_plan

ASKED = ("llama3-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--sequence", "2048")
QUICK = ("--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1", "--fix", "mbs=1", "--top", "1")
LORA = ("--task", "lora", "--rank", "16")
QLORA = ("--task", "qlora", "--rank", "16")
LAYOUT = ("--layout", "tp2 dp4 mbs1 zero0")


def test_adapters_are_priced(meshwright) -> None:
    full, lora = (
        meshwright.json("estimate", *ASKED, *words, *LAYOUT)["estimate"]
        for words in (("--stack", "fsdp"), LORA)
    )
    assert lora["step_seconds"] < full["step_seconds"]
    assert lora["peak_bytes"] < full["peak_bytes"] / 2


def priced_as(meshwright, layout: str, *words: str) -> dict[str, Any]:
    """The estimate of a layout under FSDP."""
    asked = ("estimate", *ASKED, "--stack", "fsdp", "--layout", layout, *words)
    priced: dict[str, Any] = meshwright.json(*asked)["estimate"]
    return priced


def test_preferences_take_a_forward_pass_more(meshwright) -> None:
    full, resident, computed = (
        priced_as(meshwright, "dp8 mbs1 zero3", *words)
        for words in ((), ("--task", "dpo"), ("--task", "dpo", "--reference", "computed"))
    )
    assert computed["step_seconds"] == full["step_seconds"]
    assert 1.25 < resident["step_seconds"] / full["step_seconds"] < 1.4
    flops = [one["mfu"] * one["step_seconds"] for one in (resident, full)]
    assert flops[0] / flops[1] == pytest.approx(4 / 3)
    weights = 2 * 8_030_261_248 / 8  # bf16, a shard of eight
    assert resident["peak_bytes"] - full["peak_bytes"] == pytest.approx(weights, rel=0.05)
    for task, steps in ("lora", "16"), ("dpo", "32"):  # a pair is two samples
        tuned = ("--task", task, "--rank", "16", "--samples", "1K", "--layout", "dp8 mbs1 zero3")
        assert f"in {steps} steps" in meshwright("estimate", *ASKED, *tuned, "--stack", "fsdp").said


def test_a_reference_on_the_host_comes_block_by_block(meshwright) -> None:
    """By hand: a block of 218.1 M parameters in bf16 over a link of 64 GB/s that a forward pass hides, or does not."""
    block, element, link = 218_112_000, 2, 64e9

    dpo, on_host = ("--task", "dpo"), ("--task", "dpo", "--reference", "host")
    here, host = (priced_as(meshwright, "dp8 mbs1 zero3", *words) for words in (dpo, on_host))
    assert host["step_seconds"] == here["step_seconds"]
    moved = 32 * block * element / 8
    assert host["hidden_comm"]["offload"] == pytest.approx(8 * moved / link, rel=1e-3)
    assert here["peak_bytes"] - host["peak_bytes"] == pytest.approx(30 / 32 * moved, rel=1e-3)
    assert host["host_bytes"] == pytest.approx(8 * moved)
    whole = priced_as(meshwright, "tp2 dp4 mbs1 zero0", *on_host)
    moved = 16 * 32 * block * element / 2 / link
    parts = whole["parts"]["offload"], whole["hidden_comm"]["offload"]
    assert sum(parts) == pytest.approx(moved, rel=1e-2)
    assert min(parts) > 0
    small = (*ASKED, "--stack", "fsdp", *on_host, "--host-memory", "4GiB")
    assert "takes 13.0 GiB of the memory of each host" in meshwright.refusal("plan", *small, code=1)


def test_a_reward_model_has_one_output(meshwright, tmp_path) -> None:
    """Its output matrix is a row: 128,255 rows less to keep, to update and to multiply with."""
    plan = tmp_path / "plan.yaml"

    full, reward = (
        priced_as(meshwright, "dp8 mbs1 zero3", *words)
        for words in ((), ("--task", "reward", "-o", str(plan)))
    )
    rows = 128_255 * 4096
    memory = full["memory"][0]["optimizer"] - reward["memory"][0]["optimizer"]
    assert memory == pytest.approx(8 * rows / 8, rel=1e-6)
    flops = [one["mfu"] * one["step_seconds"] for one in (full, reward)]
    logits = 6 * rows * 64 * 2048 / (8 * 989.4e12)
    assert flops[0] - flops[1] == pytest.approx(logits, rel=1e-2)
    assert full["step_seconds"] > reward["step_seconds"]
    assert meshwright("export", str(plan), "--to", "torchtitan").code == 2
    assert total_parameters(load_any_plan(plan).model) == 8_030_261_248 - rows


@pytest.mark.parametrize("words", [LORA, QLORA, ("--task", "dpo"), ("--optimizer", "muon")])
def test_what_cannot_be_opened_is_a_note_beside_the_same_plan(words: tuple[str, ...], meshwright) -> None:
    asked = ("plan", *ASKED, *words, *QUICK, "--json")
    plain, opened = (
        meshwright(*asked, *more) for more in ((), ("--allow", "offload", "--allow", "replicas"))
    )
    assert (plain.code, opened.code) == (0, 0)
    assert json.loads(plain.out)["plans"] == json.loads(opened.out)["plans"]
    assert "note: --allow offload opens nothing: what offloading takes is not priced where" in opened.err
    assert "note: --allow replicas opens nothing: it puts replicas in different pools, and " in opened.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "reward", "--answers", "0.5"), "has neither answers of its own nor a reference model"),
        (
            ("--task", "dpo", "--reference", "host", "--rank", "8"),
            "nothing need lie on the host; leave it out",
        ),
        (("--task", "lora", "--targets", "experts"), "--targets: `llama3-8b` has no `experts`"),
        (("--task", "lora", "--targets", "atention"), "did you mean `attention`?"),
        (("--rank", "8"), "is of adapters, and there are none; add --task lora"),
        (("--task", "qlora", "--base-precision", "bf16"), "keeps frozen matrices in nf4 or int8"),
        (("--task", "dop"), "`dop` is not one of full, lora, qlora, dpo, reward"),
        (("--reference", "computed"), "is of preferences, and there are none; add --task dpo"),
        (("--optimizer", "adamw-8bit", "--samples", "5K", "--tokens", "1B"), "both say how much"),
        (("--epochs", "3"), "`--epochs` says how often samples are gone through"),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], said: str, meshwright) -> None:
    assert said in meshwright.refusal("plan", *ASKED, *words)


def test_tp_may_not_split_a_block_of_quantised_elements(meshwright) -> None:
    asked = ("llama2-7b", *ASKED[1:], "--task", "qlora", "--layout", "tp8 mbs1 zero0")
    answer = meshwright.refusal("estimate", *asked)
    assert "`tp8` splits blocks of 64 elements" in answer
    assert "1,376 elements of `down`" in answer


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("tuning: {targets: [experts]}", "tuning.targets: `llama3-8b` has no `experts`"),
        ("tuning: {targets: [atention]}", "job.yaml:4  tuning.targets[0]: `atention` is not one of"),
        ("lengths: {documents: [100, 4096]}", "job.yaml:4  lengths: a document of 4,096 tokens is longer"),
        ("answers: 1.5", "job.yaml:4  answers: must be at most 1, not `1.5`"),
    ],
)
def test_a_training_file_is_told_its_place(field: str, said: str, meshwright, tmp_path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"kind: training\nglobal_batch: 64\nsequence_length: 2048\n{field}\n")
    assert " ".join(said.split()) in meshwright.refusal("plan", *ASKED[:4], "--training", str(job))


def test_matrices_by_the_names_of_peft(meshwright) -> None:
    words = ("--task", "lora", "--targets", "q_proj,down_proj", *LAYOUT, "--json")
    found = json.loads(meshwright("estimate", *ASKED, *words).out)
    assert found["question"]["tuning"]["targets"] == ["q", "down"]


def test_what_the_executor_cannot_train_is_not_run(meshwright, tmp_path) -> None:
    plan = tmp_path / "plan.yaml"
    layout = ("--layout", "dp8 mbs1 zero0", "-o", str(plan))
    asked = (*ASKED, "--optimizer", "adafactor", "--stack", "fsdp")
    assert meshwright("estimate", *asked, *layout).code == 0
    assert "not adafactor" in meshwright.refusal("run", str(plan), "--dry-run")
    exported = meshwright("export", str(plan), "--to", "torchrun")
    assert (exported.code, exported.out) == (1, "")


def test_updates_in_the_backward_pass_need_no_gradients(meshwright) -> None:
    """torchtune's full fine-tune of 8B on 24 GB: weights in bf16, one gradient, states paged to the host."""
    asked = ("llama3.1-8b", "pcie-4090", "--gpus", "1", "--sequence", "2048", "--stack", "torchtune")
    narrow = ("--optimizer", "paged-adamw-8bit", "--optimizer-in-backward", "--state-dtype", "bf16")
    layout = ("--layout", "dp1 mbs2 zero0 recompute=full")
    found = meshwright.json("estimate", *asked, *narrow, "--global-batch", "2", *layout)
    assert found["question"]["optimizer_in_backward"]
    assert found["estimate"]["peak_bytes"] < 20 * 2**30  # 47 GiB with all gradients, and states on the device
    assert "leave no gradients to add up" in meshwright.refusal(
        "estimate", *asked, *narrow, "--global-batch", "4", *layout
    )


def test_adapters_beside_recurrences_are_not_run(meshwright, tmp_path) -> None:
    """They are priced, and would be left out of what is trained."""
    model, plan = tmp_path / "hybrid.yaml", str(tmp_path / "plan.yaml")
    mixer = {"kind": "mamba2", "heads": 8, "head_dim": 8, "groups": 2, "state_dim": 8}
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "positions": "none"}
    named = shape | {"kind": "transformer", "recurrence": mixer, "mixers": ["recurrence", "attention"]}
    model.write_text(yaml.safe_dump(named), encoding="utf-8")
    words = ("--gpus", "1", "--task", "lora", "--global-batch", "8", "--sequence", "64", "-o", plan)
    refused = meshwright("estimate", str(model), "local", *words, "--layout", "mbs1")
    assert "the executor has adapters for attention and dense MLPs" in refused.err
    assert (
        meshwright("estimate", str(model), "local", *words, "--layout", "mbs1", "--targets", "q,v").code == 0
    )
    assert meshwright("run", plan, "--dry-run").code == 0


SAID_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "int8": 1.0, "nf4": 4.127 / 8}


@pytest.mark.parametrize("base", [None, "nf4", "int8"])
@pytest.mark.parametrize("stack", catalog.names("stacks"))
def test_frozen_matrices_are_charged_what_is_said_of_them(stack: str, base: str | None) -> None:
    """Of every trainer in every precision: bytes a parameter as the sentence has them, in blocks on one GPU."""
    if not isinstance(catalog.load_stack(stack), StackSpec):
        return
    model, cluster = catalog.load_model("llama3-8b"), resolve_cluster("dgx-b200", 1)
    tuning = TuningSpec(rank=1, targets=("q",), base=base)  # type: ignore[arg-type]
    for precision in sorted(cluster.gpu.peak):
        training = TrainingSpec(global_batch=1, sequence_length=256, precision=precision, tuning=tuning)
        question = complete_question(model, cluster, training, stack=stack)
        pieces = Pieces(question, LayoutColumns.of([Layout()]))
        held = persistent_block(pieces, pieces.states["block"], pieces.states["experts"])
        charged = float((held["weights"] / pieces.counts.block)[0])
        words = " ".join(tuning_sentence(question).split()).partition(" frozen matrices in ")[2]
        said = re.search(r"([\d.]+) bytes a parameter", words)
        assert charged == pytest.approx(float(said[1]) if said else SAID_BYTES[words.split()[0]], rel=0.01), (
            words
        )
