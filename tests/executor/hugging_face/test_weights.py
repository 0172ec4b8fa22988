"""Weights of a Hugging Face folder: alike in every layout, back bit for bit, decayed as there, refused where wrong."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from calling import told
from effort import first_of
from hub_folders import CONFIGS, make_folder, plan_of, same_bits, train_from, written
from safetensors.torch import save_file
from torch import Tensor
from training import GPT, LLAMA, MOE, SHARED, plan_for

from cost_models.errors import InputError, RunError
from cost_models.files.loading import resolve_model
from executor.boxes import Box
from executor.data.batches import Batches
from executor.engine.engine import Engine
from executor.hugging_face import writing
from executor.hugging_face.reading import Folder, FromTensors
from executor.hugging_face.writing import require_writable, save_weights
from executor.models.transformer import Transformer
from executor.run_config import EngineOptions
from planner.plan import Plan, save_plan

TOLERANCE = 1e-5


@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_a_family_comes_back_bit_for_bit(processes, tmp_path, model_type: str) -> None:
    spec, tensors = make_folder(tmp_path / "in", model_type, torch.bfloat16)
    processes.run(1, train_from, plan_of(spec, "mbs2"), tmp_path / "in", tmp_path / "out", 0)
    assert same_bits(written(tmp_path / "out"), tensors)
    assert resolve_model(str(tmp_path / "out")).spec == spec.model_copy(
        update={"name": resolve_model(str(tmp_path / "out")).spec.name}
    )


@pytest.mark.parametrize(
    ("model_type", "layout"),
    first_of(
        2,
        [
            ("gpt2", "tp2 dp2 mbs2 zero1"),
            ("qwen2", "pp2 dp2 mbs2 zero3"),
            ("mixtral", "tp2 dp2 ep2 sp mbs2 zero1"),
            ("cohere", "tp2 pp2 mbs2"),
        ],
    ),
)
def test_every_layout_starts_from_the_same_weights(processes, tmp_path, model_type: str, layout: str) -> None:
    """Of gpt2 the vocabulary is padded over tensor ranks: what pads it has no part in the loss."""
    spec, tensors = make_folder(tmp_path / "in", model_type)
    alone = processes.run(1, train_from, plan_of(spec, "mbs2"), tmp_path / "in", tmp_path / "one", 2)[0][0]
    split = plan_of(spec, layout)
    found = processes.run(split.num_ranks, train_from, split, tmp_path / "in", tmp_path / "out", 2)
    for (loss, norm), (expected, expected_norm) in zip(found[0][0], alone, strict=True):
        assert loss == pytest.approx(expected, rel=TOLERANCE)
        assert norm == pytest.approx(expected_norm, rel=1e-4)
    trained, alike = written(tmp_path / "out"), written(tmp_path / "one")
    assert trained.keys() == tensors.keys()
    for name, tensor in trained.items():
        rows = slice(None)
        if name.endswith(
            ("c_attn.bias", "query_key_value.bias")
        ):  # a key's bias has no gradient but rounding
            rows = slice(0, 8)
        torch.testing.assert_close(tensor[rows], alike[name][rows], rtol=1e-3, atol=1e-4)
        assert not torch.equal(tensor, tensors[name])


def test_a_rank_reads_what_it_updates(processes, tmp_path) -> None:
    spec, tensors = make_folder(tmp_path / "in", "llama")
    plan = plan_of(spec, "tp2 dp2 mbs2 zero1")
    found = processes.run(4, train_from, plan, tmp_path / "in", tmp_path / "out", 0)
    norms = sum(one.numel() for one in tensors.values() if one.dim() == 1)
    assert sum(read for _, read in found) == sum(one.numel() for one in tensors.values()) + norms
    assert max(read for _, read in found) < sum(one.numel() for one in tensors.values()) / 3
    assert same_bits(written(tmp_path / "out"), tensors)


def test_large_models_are_several_files(processes, tmp_path, monkeypatch) -> None:
    spec, tensors = make_folder(tmp_path / "in", "llama")
    processes.run(1, _in_small_files, plan_of(spec, "mbs2"), tmp_path / "in", tmp_path / "out")
    files = sorted(one.name for one in (tmp_path / "out").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 2
    assert same_bits(written(tmp_path / "out"), tensors)
    assert len(Folder(tmp_path / "out", spec)) == len(tensors)
    (tmp_path / "out" / files[1]).unlink()
    with pytest.raises(InputError) as error:
        Folder(tmp_path / "out", spec)
    assert files[1] in str(error.value)


def _in_small_files(plan: Any, source: Path, target: Path) -> Any:
    largest, writing._LARGEST_FILE = writing._LARGEST_FILE, 1 << 15
    try:
        return train_from(plan, source, target, 0)
    finally:
        writing._LARGEST_FILE = largest


def test_files_without_the_prefix(tmp_path) -> None:
    """As the hub has GPT-2: names of the model without its head, and the causal mask."""
    spec, tensors = make_folder(tmp_path, "gpt2")
    bare = {name.removeprefix("transformer."): one for name, one in tensors.items()}
    save_file(bare | {"h.0.attn.bias": torch.ones(1, 1, 64, 64)}, tmp_path / "model.safetensors")
    assert Folder(tmp_path, spec).keys() == tensors.keys()


def test_what_does_not_fit_is_named(tmp_path) -> None:
    spec, tensors = make_folder(tmp_path, "llama")
    query = "model.layers.0.self_attn.q_proj.weight"
    changed = tensors | {query: torch.zeros(16, 32), "model.norm.bias": torch.zeros(32)}
    changed["lm_head.weight"] = torch.zeros(256, 32, dtype=torch.int8)
    del changed["model.norm.weight"]
    save_file(changed, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as error:
        Folder(tmp_path, spec)
    said = str(error.value)
    assert f"model.safetensors  {query}: is (16, 32); the config makes it (32, 32)" in said
    assert "model.norm.weight: is missing; it must be (32,)" in said
    assert "model.norm.bias: is none of the model's weights" in said
    assert "lm_head.weight: is of type I8, not one of F32, BF16, F16" in said


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ("cut", "model.safetensors: is cut off: it has 166,516 of 166,616 bytes"),
        ("header", "model.safetensors: is cut off in its header, after 100 bytes"),
        ("code", "model.safetensors: is no safetensors: "),
        ("pipe", "model.safetensors: is no file"),
        ("part", "model-00002-of-00002.safetensors: is not there"),
        ("shape", "model.safetensors  lm_head.weight: is (255, 32); the config makes it (256, 32)"),
        ("adapters", "holds adapters of peft, not the model that they are beside"),
        ("pickle", "`pytorch_model.bin` is a pickle, which can run code when it is read"),
        ("config", "vocab_size: the plan has 256, config.json 512"),
        ("index", "its `weight_map` names no files of this folder"),
        ("nothing", "has no config.json"),
    ],
)
def test_a_run_refuses(tmp_path, capsys, breaks: str, says: str) -> None:
    spec, tensors = make_folder(tmp_path / "in", "llama")
    save_plan(plan_of(spec, "mbs2"), tmp_path / "plan.yaml")
    weights, config = tmp_path / "in" / "model.safetensors", tmp_path / "in" / "config.json"
    match breaks:
        case "header":
            os.truncate(weights, 100)
        case "code":
            weights.write_bytes(pickle.dumps(_Runs(str(tmp_path / "ran"))))
        case "pipe":
            weights.unlink()
            os.mkfifo(weights)
        case "part":
            index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
            (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
        case "shape":
            save_file(tensors | {"lm_head.weight": torch.zeros(255, 32)}, weights)
        case "adapters":
            (tmp_path / "in" / "adapter_config.json").write_text("{}")
        case "cut":
            os.truncate(weights, weights.stat().st_size - 100)
        case "pickle":
            weights.rename(tmp_path / "in" / "pytorch_model.bin")
        case "config":
            config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 512}))
        case "index":
            index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
            (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
        case "nothing":
            config.unlink()
    asked = ("run", str(tmp_path / "plan.yaml"), "--weights", str(tmp_path / "in"))
    for words in (asked, (*asked, "--dry-run")):
        found = told(capsys, *words)
        assert found.code == 2
        assert says in found.err
        assert "Traceback" not in found.err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path, capsys, value: float) -> None:
    """All of them by a dry run; the first by a rank that reads it."""
    spec, tensors = make_folder(tmp_path / "in", "llama")
    save_plan(plan_of(spec, "mbs2"), tmp_path / "plan.yaml")
    asked = ("run", str(tmp_path / "plan.yaml"), "--weights", str(tmp_path / "in"), "--dry-run")
    assert told(capsys, *asked).code == 0
    tensors["model.norm.weight"][-1] = tensors["lm_head.weight"][7, 3] = value
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    found = told(capsys, *asked)
    assert found.code == 2
    for name in ("model.norm.weight", "lm_head.weight"):
        assert f"  model.safetensors  {name}: has values that are no numbers" in found.err
    folder = Folder(tmp_path / "in", spec)
    with pytest.raises(InputError, match="has values that are no numbers"):
        FromTensors(folder.names, folder).fill("norm.weight", (32,), Box((0,), (32,)), torch.empty(32))


class _Runs:
    """What a pickle runs when it is read."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.file,)


def test_code_beside_weights_is_not_run(tmp_path) -> None:
    spec, tensors = make_folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert Folder(tmp_path, spec).keys() == tensors.keys()
    assert not (tmp_path / "ran").exists()


def test_a_write_that_fails_leaves_nothing(processes, tmp_path) -> None:
    processes.run(1, _fails_to_write, plan_for("mbs2", LLAMA), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def _fails_to_write(plan: Any, folder: Path) -> None:
    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing._Writing, "_write", _full)
        with pytest.raises(RunError, match="no space left on device"):
            save_weights(engine, folder, None)


def _full(writer: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("model", "family"), [(GPT, "gpt2"), (LLAMA, "llama"), (MOE | {"routing_bias": True}, "ernie4_5_moe")]
)
def test_a_model_of_our_own_gets_the_config_of_a_family(processes, tmp_path, model, family) -> None:
    plan = plan_for("tp2 mbs2", model)
    processes.run(2, _save, plan, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == family
    assert Folder(tmp_path / "out", plan.model).names.spec == plan.model


def test_a_model_that_no_family_has_is_not_written(tmp_path) -> None:
    with pytest.raises(InputError, match="no family of Hugging Face has the blocks"):
        require_writable(plan_for("mbs2", SHARED), tmp_path / "out", None)


def _save(plan: Any, folder: Path) -> None:
    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    save_weights(engine, folder, None)


def test_a_frozen_tower_is_written_as_it_was_read(processes, tmp_path) -> None:
    """In more bits than products have, with the block and the norm that nothing reads; the rest is trained."""
    spec, tensors = make_folder(tmp_path / "in", "llava", torch.float16)
    plan = plan_of(spec, "pp2 mbs2", precision="bf16", images=2, freeze=("tower",))
    unused = {f"vision_tower.vision_model.encoder.layers.2.{name}": torch.randn(3, 5) for name in ("a", "b")}
    save_file(tensors | unused, tmp_path / "in" / "model.safetensors")
    processes.run(2, train_from, plan, tmp_path / "in", tmp_path / "out", 2)
    found = written(tmp_path / "out")
    kept = {name for name in found if name.startswith("vision_tower.")}
    before = {name.replace("vision_model.", ""): one for name, one in (tensors | unused).items()}
    assert found.keys() == before.keys()
    assert kept == {name for name, one in found.items() if torch.equal(one, before[name])}


STEPS, RATE = 4, 1e-2
LAYOUTS = (
    "mbs2",
    "dp2 mbs2 zero3",
    "mbs2 offload=states/drive",
    "mbs2 offload=streamed:1/parked",
    "dp2 mbs2 zero1",
)


def reference(
    plan: Plan, folder: Path, less_one: bool
) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
    """(loss, gradient norm) of each step, and the gains less one after them, by our names."""
    tensors, model = Folder(folder, plan.model), Transformer(plan.model, vocabulary=plan.model.vocab_size)
    values, kept = FromTensors(tensors.names, tensors), dict(model.named_parameters())
    gains = {name for name in kept if less_one and name.endswith("norm.weight")}
    with torch.no_grad():
        for name, one in kept.items():
            values.fill(name, tuple(one.shape), Box((0,) * one.dim(), tuple(one.shape)), one)
            one.sub_(1.0 if name in gains else 0.0)
    adam = torch.optim.AdamW(kept.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    batches, curve = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0), []
    for step in range(STEPS):
        tokens, targets = batches.between(step, 0, plan.training.global_batch)
        whole = {name: one + 1.0 if name in gains else one for name, one in kept.items()}
        logits = torch.func.functional_call(model, whole, (tokens,))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        norms = [float(one.grad.norm()) for one in kept.values() if one.grad is not None]
        curve.append((loss.item(), sum(norm**2 for norm in norms) ** 0.5))
        adam.step()
    return curve, {name: kept[name].detach() for name in gains}


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [*(("gemma", layout) for layout in first_of(4, LAYOUTS)), ("nemotron", "mbs2"), ("llama", "mbs2")],
)
def test_decay_pulls_gains_to_where_their_family_does(model_type, layout, processes, tmp_path) -> None:
    spec, _ = make_folder(tmp_path / "in", model_type)
    plan = plan_of(spec, layout)
    expected, gains = reference(plan, tmp_path / "in", less_one=model_type != "llama")
    ranks = processes.run(plan.layout.num_gpus, train_from, plan, tmp_path / "in", tmp_path / "out", STEPS)
    for (loss, norm), (known_loss, known_norm) in zip(ranks[0][0], expected, strict=True):
        assert loss == pytest.approx(known_loss, rel=1e-5)
        assert norm == pytest.approx(known_norm, rel=1e-4)
    names, kept = Folder(tmp_path / "out", spec).names, written(tmp_path / "out")
    for name, one in gains.items():
        (source,) = names.sources(name)
        # the norm, for AdamW magnifies the rounding of a gradient that is nearly zero: of one element now and then
        assert (kept[source.name] - one).norm() < 1e-5 * one.norm(), name


def drawn_and_read(plan: Plan, folder: Path) -> None:
    """Train from values that are drawn, and from a folder that has the same ones."""
    from executor.engine.engine import Engine
    from executor.hugging_face.writing import save_weights
    from executor.run_config import EngineOptions, RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    device = torch.device("cpu")
    save_weights(Engine(plan, device, EngineOptions()), folder / "in", None)
    for name, weights in (("drawn", None), ("read", folder / "in")):
        how = {"learning_rate": RATE, "measure_memory": False, "weights": weights}
        train(plan, device, RunConfig(steps=STEPS, save_weights=folder / name, **how), Watcher())


def test_a_run_whose_values_are_drawn_decays_as_one_that_reads_them(processes, tmp_path) -> None:
    """So does one that goes on from a checkpoint without them."""
    spec, _ = make_folder(tmp_path / "config", "gemma")
    processes.run(1, drawn_and_read, plan_of(spec, "mbs2"), tmp_path)
    drawn, read = written(tmp_path / "drawn"), written(tmp_path / "read")
    assert drawn.keys() == read.keys()
    for name, one in drawn.items():
        torch.testing.assert_close(one, read[name], msg=name)
