"""What strangers hand in: every problem at once, with its place; values out of range; nothing runs or hangs."""

from __future__ import annotations

import inspect
import json
import pkgutil
import time
from importlib import import_module
from pathlib import Path

import pytest
from calling import refusal

import cost_models
from cost_models.axes.layout import parse_layout
from cost_models.axes.words import MAX_STAGES
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import validate
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.files.reading import parse_yaml
from cost_models.specs.cluster import GpuSpec, LinkSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Recurrence, TransformerSpec

MODEL = "kind: transformer\nnum_layers: 2\nhidden_size: 64\nnum_heads: 4\nvocab_size: 256\n"
CLUSTER = """\
name: mine
nodes: 2
gpus_per_node: 8
gpu: h100-sxm
links:
  intra_node: {kind: nvlink, bandwidth: 450 GB/s, latency: 3 us}
  inter_node: {kind: infiniband, bandwidth: 400 Gb/s, latency: 5 us}
"""


def model_problems(text: str) -> str:
    return refusal(lambda: validate(parse_yaml(text, source="model.yaml"), TransformerSpec))


def test_a_wrong_value_is_named_with_its_line() -> None:
    for line, problem in [
        ("num_layers: 0", "model.yaml:2  num_layers: must be above zero, not `0`"),
        ("num_layers: 2.5", "model.yaml:2  num_layers: `2.5` is not a whole number"),
        ("num_layers: .nan", "model.yaml:2  num_layers: `.nan` is not a finite number"),
        ("num_layers: 1e999", "model.yaml:2  num_layers: `1e999` is too large a number"),
        ("num_layers: " + "9" * 20, f"model.yaml:2  num_layers: must be at most 4096, not `{'9' * 20}`"),
        ("num_layers:", "model.yaml:2  num_layers: nothing is not a whole number"),
        ("num_layers: [1]", "model.yaml:2  num_layers: this list is not a whole number"),
        ("num_layer: 2", "model.yaml:2  num_layer: unknown field `num_layer`; did you mean `num_layers`?"),
    ]:
        assert problem in model_problems(MODEL.replace("num_layers: 2", line))


BROKEN_YAML = [
    "!!python/object/apply:os.system ['touch /tmp/pwned']",
    MODEL.replace("2", "!!python/object/apply:os.getcwd []"), "name: !!python/name:os.system",
    "name: !custom x", "? [a, b]\n: 1", "? {a: b}\n: 1", "a: *nowhere", "a: &self [*self]",
    "---\na: 1\n---\nb: 2", "a: [1, 2", "a: b: c", "\tname: x", "@", "a: \x00", "a: \x07", "",
    "   \n# only a comment\n", "just words", "- a\n- b", "42", "null", "<<: {num_layers: 2}",
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN_YAML)
def test_hostile_or_broken_yaml_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        validate(parse_yaml(text, source="model.yaml"), TransformerSpec)


def test_hostile_size_is_refused_at_once() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    started = time.perf_counter()
    for text, reason in [
        (bomb, "stands for more than"),
        ("[" * 100_000, "nested more than"),
        ("a: " + "{b: " * 10_000, "nested more than"),
        ("- " * 50_000, "nested more than"),
    ]:
        assert reason in model_problems(text)
    assert time.perf_counter() - started < 10  # the point is that it ends, not how fast


def test_control_characters_never_reach_the_terminal() -> None:
    text = model_problems(MODEL + '"\\e[31mred\\a": 1\n')
    assert "\x1b" not in text
    assert "\a" not in text
    assert "?[31mred?" in text


def test_files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    for content, message in (
        (b"", "is empty"),
        (b"\x00\x01\xff\xfe\x80binary", "is not a text file"),
        (b"a: 1\n" * 1_000_000, "is larger than 4 MB"),
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match=message):
            resolve_model(str(file))
    file.write_text(MODEL)
    with pytest.raises(InputError, match="is a `transformer`; a `cluster` is needed here"):
        resolve_cluster(str(file))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        resolve_model(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="is a directory"):
        resolve_cluster(str(tmp_path))
    with pytest.raises(InputError):
        resolve_model("x" * 10_000)
    with pytest.raises(InputError):
        resolve_model("a\x00b/c.yaml")


def test_broken_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, message in (
        ('{"model_type": "llama"} trailing', "extra data"),
        ('{"model_type": "llama"', "expecting"),
        ('{"hidden_size": NaN}', "must be finite"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "must be finite"),
        ('{"a": 1, "a": 2}', "`a` twice"),
        ("[" * 100_000, "nested more than 32 levels deep"),
        ("[1, 2]", "no `field: value` pairs"),
        ('{"kind": "training"}', "is a `training`; a `transformer` is needed here"),
    ):
        file.write_text(text)
        assert message in refusal(resolve_model, str(file))


GPU = catalog.load_gpu("a100-sxm-80gb").model_dump(mode="json")
LINK = {"kind": "nvlink", "bandwidth": "300 GB/s", "latency": "3 us"}
TRAINING = {"global_batch": 8, "sequence_length": 64}
PROFILE = catalog.load_profile("datasheet-gpu").model_dump(mode="json")


def test_values_out_of_range() -> None:
    for spec, right, wrong, said in [
        (GpuSpec, GPU, {"memory": "1 KiB"}, "memory: must be between 1 MiB and 1000 TB"),
        (GpuSpec, GPU, {"memory_bandwidth": "1e-300 B/s"}, "`1e-300 B/s` is too small a number"),
        (GpuSpec, GPU, {"peak": {"bf16": "1 FLOP/s"}}, "peak.bf16: must be between 1 MFLOP/s and"),
        (GpuSpec, GPU, {"sustained": {"bf16": 1e-308}}, "sustained.bf16: must be at least 0.001"),
        (GpuSpec, GPU, {"sm_count": 10**12}, "sm_count: must be at most 1e+06"),
        (LinkSpec, LINK, {"latency": "1 h"}, "latency: must be between 0.001 ns and 10 s"),
        (HardwareProfile, PROFILE, {"jitter_per_doubling": 1e308}, "jitter_per_doubling: must be at most 1"),
        (HardwareProfile, PROFILE, {"gemm_efficiency": 1e-300}, "gemm_efficiency: must be at least 1e-06"),
        (TrainingSpec, TRAINING, {"sequence_length": 10**12}, "sequence_length: must be at most 1e+09"),
        (TrainingSpec, TRAINING, {"recompute": []}, "recompute: lists 0; at least 1 is needed"),
    ]:
        assert validate(parse_yaml(json.dumps(right), source="mine.yaml"), spec)
        assert said in refusal(validate, parse_yaml(json.dumps(right | wrong), source="mine.yaml"), spec)


@pytest.mark.parametrize("name", ["recompute", "layers", "pools"])
def test_repeats_add_up_to_no_more_than_there_are_stages(name: str) -> None:
    """A short text must not stand for all memory there is: what counts is the sum of its repeats, not each."""
    run = f"{'none' if name == 'recompute' else 1}*{MAX_STAGES}"
    with pytest.raises(InputError, match="is not a list like"):
        parse_layout(f"tp1 {name}={','.join([run] * 100_000)}")


def test_many_problems_end_after_twenty() -> None:
    fields = TRAINING | {f"unknown_{number}": 1 for number in range(1_000)}
    lines = str(
        refusal(validate, parse_yaml(json.dumps(fields), source="mine.yaml"), TrainingSpec)
    ).splitlines()
    assert lines[0] == "1,000 problems in mine.yaml"
    assert lines[-1] == "  and 980 more"
    assert len(lines) == 22


SHAPE = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 256}
MAMBA = {"kind": "mamba2", "heads": 8, "head_dim": 16, "groups": 2, "state_dim": 32, "chunk": 16}
CHANNELS = {"kind": "mamba1", "heads": 8, "state_dim": 4}
DIFFUSION = SHAPE | {"diffusion": {"latent": 32, "patch": 2}}
TOWER = {"layers": 2, "hidden_size": 64, "num_heads": 4, "image": 56, "patch": 14}
EXPERTS = {"num_experts": 8, "experts_per_token": 2}
LATENT = {"latent_attention": {"kv_rank": 8, "position_dim": 64, "value_dim": 8}}


def test_contradictions_are_refused() -> None:
    for spec, fields, why in [
        (TransformerSpec, {"window_pattern": ["window"]}, "window_pattern is for windows"),
        (TransformerSpec, {"attention_window": 8, "window_pattern": ["full"] * 9}, "names 9 blocks"),
        (TransformerSpec, {"experts_per_token": 2}, "is for a mixture, and num_experts is 0"),
        (TransformerSpec, {"num_experts": 8}, "experts_per_token 0 is not between 1 and num_experts 8"),
        (TransformerSpec, EXPERTS | {"num_moe_layers": 5}, "num_moe_layers 5 is not between"),
        (TransformerSpec, LATENT, "nothing of"),
        (TransformerSpec, {"mixers": ["recurrence"]}, "mixers names a recurrence, and recurrence says none"),
        (TransformerSpec, {"recurrence": MAMBA, "mixers": ["attention"]}, "is for blocks that mixers names"),
        (TransformerSpec, {"recurrence": MAMBA, "mixers": ["recurrence", "none"]}, "needs separate_halves"),
        (TransformerSpec, {"recurrence": MAMBA, "parallel_block": True}, "a parallel_block has attention"),
        (TransformerSpec, {"recurrence": MAMBA, "mixers": ["recurrence"] * 5}, "mixers names 5 blocks"),
        (Recurrence, MAMBA | {"groups": 3}, "heads 8 is not a multiple of groups 3"),
        (Recurrence, CHANNELS, "step_rank is for mamba1, which needs it"),
        (Recurrence, CHANNELS | {"head_dim": 2, "step_rank": 2}, "are channels"),
        (Recurrence, {"kind": "convolution", "heads": 8, "groups": 4}, "leave out head_dim and groups"),
        (TransformerSpec, {"stacks": {"encoder_layers": 4}}, "not between 1 and 3"),
        (TransformerSpec, {"stacks": {"encoder_layers": 2}, "encoder": {}}, "encoder does not go"),
        (TransformerSpec, {"stacks": {"encoder_layers": 2, "position_buckets": 2}}, "not between 4 and 255"),
        (TransformerSpec, {"stacks": {"encoder_layers": 2, "source_share": 1.0}}, "from the job's sequences"),
        (TransformerSpec, DIFFUSION | {"diffusion": {"latent": 31}}, "latent 31"),
        (TransformerSpec, DIFFUSION | {"norm": "rmsnorm"}, "layer norms"),
        (TransformerSpec, DIFFUSION | {"tied_embeddings": True}, "does not go with diffusion"),
        (TransformerSpec, {"tower": TOWER | {"layers": 4}}, "leaves no block of num_layers 4 to the decoder"),
        (TransformerSpec, {"tower": TOWER | {"image": 10}}, "image 10 is smaller than patch 14"),
        (TransformerSpec, {"tower": TOWER | {"merge": 3}}, "are not a multiple of merge 3"),
        (TransformerSpec, {"tower": TOWER, "further_tokens": 1}, "further_tokens does not go with tower"),
        (TrainingSpec, TRAINING | {"lengths": {"documents": [65]}}, "65"),
    ]:
        shape = SHAPE if spec is TransformerSpec and "diffusion" not in fields else {}
        with pytest.raises((InputError, ValueError)) as caught:
            spec.model_validate(shape | fields)
        assert why in str(caught.value) + repr(getattr(caught.value, "problems", ""))


def _every_spec() -> list[type[Spec]]:
    modules = [import_module(one.name) for one in pkgutil.walk_packages(cost_models.__path__, "cost_models.")]
    found = {
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Spec) and member is not Spec
    }
    return sorted(found, key=lambda one: one.__name__)


@pytest.mark.parametrize("spec", _every_spec(), ids=lambda one: one.__name__)
def test_every_spec_refuses_in_our_words(spec: type[Spec]) -> None:
    said = refusal(spec, **dict.fromkeys(spec.model_fields, object()), nonsense=1)
    assert "unknown field `nonsense`" in said
    assert not [
        word for word in ("pydantic", "Input should", "type=", "For further information") if word in said
    ]


class TestClusterSizes:
    def test_whole_nodes_and_parts_of_one(self) -> None:
        assert resolve_cluster("dgx-a100-80gb").num_gpus == 8
        large = resolve_cluster("dgx-a100-80gb", 1024)
        assert (large.nodes, large.gpus_per_node) == (128, 8)
        small = resolve_cluster("dgx-h100", 3)
        assert (small.nodes, small.gpus_per_node) == (1, 3)
        assert resolve_cluster("dgx-h100", 1).num_gpus == 1

    def test_a_box_without_network_ends_at_its_gpus(self) -> None:
        assert resolve_cluster("pcie-a100", 8).nodes == 1
        with pytest.raises(InputError, match="no network between nodes, so it ends at 8 GPUs"):
            resolve_cluster("pcie-a100", 16)

    def test_a_file_has_the_nodes_it_states(self, tmp_path: Path) -> None:
        file = tmp_path / "cluster.yaml"
        file.write_text(CLUSTER)
        assert resolve_cluster(str(file)).num_gpus == 16
        assert resolve_cluster(str(file), 8).nodes == 1
        with pytest.raises(InputError, match="24 GPUs are more than cluster `mine` has, 16"):
            resolve_cluster(str(file), 24)

    def test_a_profile_beside_the_file_is_found_from_anywhere(self, tmp_path: Path) -> None:
        file = tmp_path / "cluster.yaml"
        file.write_text(CLUSTER + "profile: measured.yaml\n")
        assert resolve_cluster(str(file)).profile == "measured.yaml"
        (tmp_path / "measured.yaml").write_text("kind: profile\n")
        assert resolve_cluster(str(file)).profile == str(tmp_path / "measured.yaml")

    def test_local_divides_this_machine(self) -> None:
        one, four = resolve_cluster("local", 1), resolve_cluster("local", 4)
        assert (one.num_gpus, four.num_gpus) == (1, 4)
        assert four.gpu.kind == "cpu"
        assert four.gpu.memory * 4 == pytest.approx(one.gpu.memory)
        assert four.gpu.peak["fp32"] * 4 == pytest.approx(one.gpu.peak["fp32"])
        assert resolve_cluster("local").num_gpus >= 1


class TestTraining:
    def test_flags_win_over_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "run.yaml"
        file.write_text("kind: training\nglobal_batch: 8\nsequence_length: 128\ntokens: 300e9\n")
        training = resolve_training(str(file), global_batch=16)
        assert (training.global_batch, training.sequence_length, training.tokens) == (16, 128, 300e9)

    def test_problems_of_file_and_flags_together(self, tmp_path: Path) -> None:
        file = tmp_path / "run.yaml"
        file.write_text("kind: training\ndropout: 1.5\nrecompute: [all]\n")
        text = refusal(resolve_training, str(file), global_batch=-1).replace(f"{tmp_path}/", "")
        assert text.startswith("4 problems in run.yaml")
        assert "--global-batch: must be above zero, not `-1`" in text
        assert "run.yaml  sequence_length: required field `sequence_length` is missing" in text
        assert "run.yaml:2  dropout: must be below 1, not `1.5`" in text
        assert "run.yaml:3  recompute[0]: `all` is not one of `none`, `selective`, `full`" in text
