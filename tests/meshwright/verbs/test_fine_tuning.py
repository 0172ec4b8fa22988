"""Fine-tuning as people ask for it, and documents of unlike length: what is planned, said and refused."""

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
LAYOUT = ("--layout", "tp2 dp4 mbs1 zero0")


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
        (("--task", "qlora", "--base-precision", "bf16"), "keeps frozen matrices in nf4 or int8"),
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
    meshwright.done("estimate", *asked, *layout)
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
    meshwright.done("run", plan, "--dry-run")


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


JOB = ("llama3-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--sequence", "2048")
UNDER_FSDP = (*JOB, "--stack", "fsdp")
SHARDED = ("--layout", "dp8 mbs1 zero3")


def test_documents_are_packed_or_padded(meshwright, tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("tokens,answer\n" + "512,10\n" * 3 + "1024,20\n")
    words = (*UNDER_FSDP, *SHARDED, "--lengths", str(file))
    packed = meshwright.json("estimate", *words)
    padded = meshwright.json("estimate", *words, "--packing", "pad")
    assert packed["question"]["lengths"] == {
        "packing": "pack",
        "lognormal": None,
        "mean_tokens": 640.0,
        "counted_share": pytest.approx(1.0, abs=0.01),
    }
    assert padded["question"]["lengths"]["counted_share"] == pytest.approx(640 / 2048)
    assert packed["estimate"]["tokens_per_second"] > 3 * padded["estimate"]["tokens_per_second"]


def test_blank_lines_of_a_file_say_nothing(meshwright, tmp_path) -> None:
    """First, last, between, of blanks or of empty cells; with columns and without."""
    file = tmp_path / "lengths.csv"
    for text in ("512;1024", "tokens,answer;512,10;1024,20", "prompt,answer;500,12;1000,24"):
        means = set()
        for blank in ("\n", "\n\n", "\n  \t\n", "\n,,\n"):
            file.write_text(f";{text};".replace(";", blank).removeprefix("\n" if blank == "\n" else ""))
            asked = meshwright.json("estimate", *UNDER_FSDP, *SHARDED, "--lengths", str(file))
            means.add(asked["question"]["lengths"]["mean_tokens"])
        assert len(means) == 1


def test_a_plan_file_keeps_them(meshwright, tmp_path) -> None:
    plan = tmp_path / "plan.yaml"
    words = (*UNDER_FSDP, *SHARDED, "--lengths", "lognormal(600,1.5)")
    answer = meshwright.done("estimate", *words, "-o", str(plan))
    assert "% of documents are longer than a sequence, and cut to it" in answer.err
    assert "packed into sequences of 2,048" in meshwright("explain", str(plan)).said
    written = meshwright.done("export", str(plan), "--to", "accelerate")
    assert "its own data makes sequences of documents" in " ".join(written.err.split())
    assert "on documents of unlike length" in meshwright.refusal("run", str(plan), "--dry-run")
    meshwright.done("estimate", *UNDER_FSDP, *SHARDED, "--answers", "0.5", "-o", str(plan))
    assert "the executor's loss counts every token" in meshwright("run", str(plan), "--dry-run").err


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("512\n4096\n", (), "lengths.csv:2: a document of 4,096 tokens is longer than a sequence of 2,048"),
        ("tokens,answer\n500,600\n", (), "csv:2: an answer of 600 tokens in a document of 500"),
        ("prompt,answer\n500,60\n1000\n", (), "csv:3: `` is no number of tokens above zero"),
        ("", ("--answers", "1.5"), "--answers: must be at most 1, not `1.5`"),
        ("tokens\n512\n-3\n", (), "lengths.csv:3: `-3` is no number of tokens above zero"),
        ("", ("--lengths", "lognormal(600,x)"), "is no distribution of lengths"),
        ("", ("--lengths", "nowhere.csv"), "cannot read `nowhere.csv`: no such file"),
        ("", ("--lengths", "/dev/zero"), "`/dev/zero` is larger than 100 MB"),
        ("512\n", ("--packing", "pck"), "did you mean `pack`?"),
    ],
)
def test_what_cannot_be_read_is_refused(content, words, said, meshwright, tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(content)
    named = () if words and not content else ("--lengths", str(file))
    assert said in meshwright.refusal("estimate", *UNDER_FSDP, *SHARDED, *named, *words)


def test_a_loss_of_answers_alone(meshwright, tmp_path) -> None:
    """A stack that leaves masked tokens out before the output matrix computes less; the others as much as ever."""
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,answer\n" + "768,256\n" * 2)

    def found(stack: str, *words: str) -> Any:
        asked = (*JOB, "--stack", stack, *SHARDED, "--state-dtype", "bf16", "--json")
        return json.loads(meshwright("estimate", *asked, *words).out)

    said = found("torchtune", "--lengths", str(file))
    assert said["question"]["answers"] == 0.25
    answers = said["estimate"]
    assert answers["answers_per_second"] == pytest.approx(0.25 * answers["tokens_per_second"])
    every = found("torchtune", "--lengths", str(file), "--answers", "1")["estimate"]
    quarter, whole = (found("torchtune", "--answers", share)["estimate"] for share in ("0.25", "1"))
    head = 3 * 2 * 128_256 * 4096 * 64 * 2048 / 8  # FLOPs of the output matrix on a GPU
    peak = 989.4e12
    for less, more in ((answers, every), (quarter, whole)):
        spared = more["step_seconds"] - less["step_seconds"]
        assert 0.75 * head / peak < spared < 0.75 * head / peak / 0.4
    fsdp = [found("fsdp", *words)["estimate"]["step_seconds"] for words in ((), ("--answers", "0.25"))]
    assert fsdp[0] == fsdp[1]


@pytest.mark.parametrize(("model", "why"), [("bert-large", "no answers"), ("t5-11b", "have no price")])
def test_answers_are_of_decoders(model: str, why: str, meshwright) -> None:
    assert why in meshwright.refusal("estimate", model, *UNDER_FSDP[1:], *SHARDED, "--answers", "0.3")
