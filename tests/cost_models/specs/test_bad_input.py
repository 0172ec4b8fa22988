"""What strangers hand in: every problem at once, with its place; nothing runs or hangs."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError, UnknownNameError
from cost_models.files import reading
from cost_models.files.catalog import load_spec, validate
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.files.reading import Nesting, parse_yaml
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

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
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(text, source="model.yaml"), TransformerSpec)
    return str(caught.value)


def test_the_cluster_of_the_user_guide_reports_its_four_problems(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    text = CLUSTER.replace("h100-sxm", "h100-smx").replace("400 Gb/s", "400 Gb")
    file.write_text(text.replace("{kind: nvlink, bandwidth", "{kind: nvlink, bandwith"))
    with pytest.raises(InputError) as caught:
        resolve_cluster(str(file))
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "4 problems in cluster.yaml\n"
        "  cluster.yaml:4  gpu: unknown GPU `h100-smx`; did you mean `h100-sxm`?\n"
        "  cluster.yaml:6  links.intra_node.bandwidth: required field `bandwidth` is missing\n"
        "  cluster.yaml:6  links.intra_node.bandwith: unknown field `bandwith`; did you mean `bandwidth`?\n"
        "  cluster.yaml:7  links.inter_node.bandwidth: `400 Gb` is not a bandwidth; "
        "write it like `400 Gb/s` (bits) or `50 GB/s` (bytes)\n"
        "hint: a file that loads, to start from: meshwright cluster --template -o my-cluster.yaml"
    )


def test_a_gpu_that_computes_in_no_precision_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    gpu = "gpu: {name: mine, memory: 80 GiB, memory_bandwidth: 3 TB/s, peak: {}}"
    file.write_text(CLUSTER.replace("gpu: h100-sxm", gpu))
    with pytest.raises(InputError, match=r"cluster.yaml:4  gpu.peak: "):
        resolve_cluster(str(file))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("num_layers: 0", "model.yaml:2  num_layers: must be above zero, not `0`"),
        ("num_layers: -3", "model.yaml:2  num_layers: must be above zero, not `-3`"),
        ("num_layers: 2.5", "model.yaml:2  num_layers: `2.5` is not a whole number"),
        ("num_layers: two", "model.yaml:2  num_layers: `two` is not a whole number"),
        ("num_layers: '2'", "model.yaml:2  num_layers: `2` is not a whole number"),
        ("num_layers: true", "model.yaml:2  num_layers: `true` is not a whole number"),
        ("num_layers: .nan", "model.yaml:2  num_layers: `.nan` is not a finite number"),
        ("num_layers: -.inf", "model.yaml:2  num_layers: `-.inf` is not a finite number"),
        ("num_layers: 1e999", "model.yaml:2  num_layers: `1e999` is too large a number"),
        ("num_layers: " + "9" * 20, f"model.yaml:2  num_layers: must be at most 4096, not `{'9' * 20}`"),
        ("num_layers:", "model.yaml:2  num_layers: nothing is not a whole number"),
        ("num_layers: [1]", "model.yaml:2  num_layers: this list is not a whole number"),
        ("num_layer: 2", "model.yaml:2  num_layer: unknown field `num_layer`; did you mean `num_layers`?"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(line: str, problem: str) -> None:
    assert problem in model_problems(MODEL.replace("num_layers: 2", line))


def test_all_problems_come_at_once_in_the_order_of_the_lines() -> None:
    text = MODEL.replace("hidden_size: 64", "hidden_size: .nan") + "norm: rsmnorm\nvocab_size: 9\n"
    assert model_problems(text) == (
        "3 problems in model.yaml\n"
        "  model.yaml:3  hidden_size: `.nan` is not a finite number\n"
        "  model.yaml:6  norm: `rsmnorm` is not one of `layernorm`, `rmsnorm`; did you mean `rmsnorm`?\n"
        "  model.yaml:7  vocab_size: `vocab_size` is given twice, first on line 5"
    )


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch /tmp/pwned']",
        MODEL.replace("2", "!!python/object/apply:os.getcwd []"),
        "name: !!python/name:os.system",
        "name: !custom x",
        "? [a, b]\n: 1",
        "? {a: b}\n: 1",
        "a: *nowhere",
        "a: &self [*self]",
        "---\na: 1\n---\nb: 2",
        "a: [1, 2",
        "a: b: c",
        "\tname: x",
        "@",
        "a: \x00",
        "a: \x07",
        "",
        "   \n# only a comment\n",
        "just words",
        "- a\n- b",
        "42",
        "null",
        "<<: {num_layers: 2}",
    ],
)
def test_hostile_or_broken_yaml_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        validate(parse_yaml(text, source="model.yaml"), TransformerSpec)


@given(st.integers(0, len(MODEL)), st.integers(0, len(MODEL)), st.text(max_size=12))
def test_any_text_is_a_model_or_an_input_error(start: int, end: int, text: str) -> None:
    mangled = MODEL[:start] + text + MODEL[end:]
    try:
        spec = validate(parse_yaml(mangled, source="model.yaml"), TransformerSpec)
    except InputError:
        return
    assert spec.num_layers > 0


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00\x01\xff\xfe\x80binary", "is not a text file"),
        (b"a: 1\n" * 1_000_000, "is larger than 4 MB"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        resolve_model(str(file))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        resolve_model(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="is a directory"):
        resolve_cluster(str(tmp_path))
    with pytest.raises(InputError):
        resolve_model("x" * 10_000)
    with pytest.raises(InputError):
        resolve_model("a\x00b/c.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama"} trailing', "extra data"),
        ('{"model_type": "llama"', "expecting"),
        ('{"hidden_size": NaN}', "must be finite"),
        ('{"hidden_size": 1e999}', "must be finite"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "must be finite"),
        ('{"a": 1, "a": 2}', "`a` twice"),
        ("[" * 100_000, "nested more than 32 levels deep"),
        ("[1, 2]", "no `field: value` pairs"),
        ('{"kind": "training"}', "is a `training`; a `transformer` is needed here"),
    ],
)
def test_broken_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        resolve_model(str(file))
    assert message in str(caught.value)


_VALUES = st.recursive(
    st.text(st.sampled_from('[]{}"\\\\a'), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[}", max_size=2), inner, max_size=2),
    max_leaves=12,
)


def _levels(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_levels, inner), default=0)


@given(_VALUES, st.integers(1, 7))
def test_levels_of_json_are_counted_before_it_is_parsed(value: object, size: int) -> None:
    """As many as there are, wherever it is cut into parts, and not those within strings."""
    text, levels = json.dumps(value).encode(), _levels(value)
    for most in (levels, levels - 1):
        nesting = Nesting("file")
        with (
            mock.patch.object(reading, "MAX_DEPTH", most),
            nullcontext() if most == levels or not levels else pytest.raises(InputError, match="is nested"),
        ):
            for at in range(0, len(text), size):
                nesting.take(text[at : at + size])


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(MODEL)
    with pytest.raises(InputError, match="is a `transformer`; a `cluster` is needed here"):
        resolve_cluster(str(file))
    assert load_spec(file, TransformerSpec).ffn_hidden_size == 256


class TestClusterSizes:
    def test_whole_nodes_and_parts_of_one(self) -> None:
        assert resolve_cluster("dgx-a100-80gb").num_gpus == 8
        large = resolve_cluster("dgx-a100-80gb", 1024)
        assert (large.nodes, large.gpus_per_node) == (128, 8)
        small = resolve_cluster("dgx-h100", 3)
        assert (small.nodes, small.gpus_per_node) == (1, 3)
        assert resolve_cluster("dgx-h100", 1).num_gpus == 1

    @pytest.mark.parametrize("gpus", [0, -8])
    def test_no_gpus(self, gpus: int) -> None:
        for name in ("dgx-h100", "local"):
            with pytest.raises(InputError, match=f"a cluster of {gpus} GPUs"):
                resolve_cluster(name, gpus)

    def test_between_two_sizes(self) -> None:
        with pytest.raises(InputError) as caught:
            resolve_cluster("dgx-h100", 12)
        assert caught.value.hint == "--gpus 8 or --gpus 16"

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

    def test_several_nodes_need_a_network(self, tmp_path: Path) -> None:
        file = tmp_path / "cluster.yaml"
        file.write_text(CLUSTER[: CLUSTER.index("  inter_node")])
        with pytest.raises(InputError, match=r"2 nodes need `links\.inter_node`"):
            resolve_cluster(str(file))

    def test_an_inline_gpu_and_a_named_one_are_the_same_cluster(self, tmp_path: Path) -> None:
        named = tmp_path / "named.yaml"
        named.write_text(CLUSTER)
        cluster = resolve_cluster(str(named))
        inline = tmp_path / "inline.yaml"
        gpu = json.dumps(cluster.gpu.model_dump(mode="json"))
        inline.write_text(CLUSTER.replace("gpu: h100-sxm", f"gpu: {gpu}"))
        assert resolve_cluster(str(inline)) == cluster
        assert load_spec(inline, ClusterSpec) == cluster

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

    def test_unknown_cluster(self) -> None:
        with pytest.raises(UnknownNameError, match="did you mean `dgx-h100`"):
            resolve_cluster("dxg-h100")


class TestTraining:
    def test_flags_alone(self) -> None:
        training = resolve_training(
            None, global_batch=8, sequence_length=128, precision=None, recompute=("none",)
        )
        assert training == TrainingSpec(global_batch=8, sequence_length=128, recompute=("none",))

    def test_flags_win_over_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "run.yaml"
        file.write_text("kind: training\nglobal_batch: 8\nsequence_length: 128\ntokens: 300e9\n")
        training = resolve_training(str(file), global_batch=16)
        assert (training.global_batch, training.sequence_length, training.tokens) == (16, 128, 300e9)

    def test_problems_of_file_and_flags_together(self, tmp_path: Path) -> None:
        file = tmp_path / "run.yaml"
        file.write_text("kind: training\ndropout: 1.5\nrecompute: [all]\n")
        with pytest.raises(InputError) as caught:
            resolve_training(str(file), global_batch=-1)
        text = str(caught.value).replace(f"{tmp_path}/", "")
        assert text.startswith("4 problems in run.yaml")
        assert "--global-batch: must be above zero, not `-1`" in text
        assert "run.yaml  sequence_length: required field `sequence_length` is missing" in text
        assert "run.yaml:2  dropout: must be below 1, not `1.5`" in text
        assert "run.yaml:3  recompute[0]: `all` is not one of `none`, `selective`, `full`" in text

    def test_a_wrong_field_does_not_hide_a_wrong_default(self) -> None:
        with pytest.raises(InputError) as caught:
            TransformerSpec(num_layers=0, hidden_size=100, num_heads=7, vocab_size=100)
        text = str(caught.value)
        assert "num_layers: must be above zero, not `0`" in text
        assert "head_dim: `14.285714285714286` is not a whole number" in text

    def test_missing_flags_are_named_as_flags(self) -> None:
        with pytest.raises(InputError) as caught:
            resolve_training(None, tokens=float("nan"))
        text = str(caught.value)
        assert "--global-batch: required field" in text
        assert "--sequence: required field" in text
        assert "--tokens: `nan` is not a finite number" in text
