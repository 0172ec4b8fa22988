"""Files of every kind: whole ones that mean something, then changed in a few places by someone who means no good."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from fuzz_calls import call
from fuzz_values import field_values, nasty, quantities
from hypothesis import strategies as st
from pydantic import BaseModel

from cost_models.files import catalog
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.plan import Plan

MODEL = {
    "kind": "transformer", "name": "mine", "num_layers": 4, "hidden_size": 128, "num_heads": 8, "num_kv_heads": 4,
    "head_dim": 16, "ffn_hidden_size": 256, "vocab_size": 1000, "gated_mlp": True, "norm": "rmsnorm",
    "positions": "rotary",
}  # fmt: skip
MIXTURE = MODEL | {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 64, "num_moe_layers": 4}
GPU = {"name": "mine", "memory": "4 GiB", "memory_bandwidth": "900 GB/s"}
GPU |= {"peak": {"bf16": "100 TFLOP/s", "fp32": "20 TFLOP/s"}, "sustained": {"bf16": 0.8}, "sm_count": 16}
LINKS = {
    "intra_node": {"kind": "nvlink", "bandwidth": "300 GB/s", "latency": "3 us"},
    "inter_node": {"kind": "infiniband", "bandwidth": "200 Gb/s", "latency": "5 us"},
}
CLUSTER = {"kind": "cluster", "name": "mine", "gpu": GPU, "gpus_per_node": 2, "nodes": 2, "links": LINKS}
POOL = {"gpu": "a100-sxm-80gb", "gpus_per_node": 2, "nodes": 1, "links": LINKS}
POOLS = {"kind": "cluster", "name": "both"}
POOLS |= {"pools": [POOL | {"name": "old"}, POOL | {"name": "new", "gpu": "h100-sxm"}]}
POOLS |= {"between": {"kind": "infiniband", "bandwidth": "200 Gb/s", "latency": "8 us"}}
TRAINING = {"kind": "training", "global_batch": 8, "sequence_length": 64, "precision": "bf16", "tokens": 1e9}
CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
CONFIG_KEYS = (
    "sliding_window", "parallel_attn", "num_local_experts", "num_experts_per_tok", "head_dim", "attention_bias",
    "layer_types", "text_config", "quantization_config", "rope_scaling",
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of file: one that is right, and the spec that says which other fields there are."""

    right: tuple[dict[str, Any], ...]
    spec: type[BaseModel] | None
    suffix: str = ".yaml"


def _stack() -> dict[str, Any]:
    return catalog.load_stack("meshwright").model_dump(mode="json") | {"name": "mine"}


def _profile(name: str) -> dict[str, Any]:
    return catalog.load_profile(name).model_dump(mode="json") | {"name": "mine"}


@cache
def kind(name: str) -> Kind:
    """By name; the larger files are made when they are first asked for."""
    makers: dict[str, Callable[[], Kind]] = {
        "model": lambda: Kind((MODEL, MIXTURE), TransformerSpec),
        "cluster": lambda: Kind((CLUSTER,), ClusterSpec),
        "pools": lambda: Kind((POOLS,), MixedCluster),
        "training": lambda: Kind((TRAINING,), TrainingSpec),
        "stack": lambda: Kind((_stack(),), StackSpec),
        "profile": lambda: Kind((_profile("datasheet-gpu"), _profile("a100")), HardwareProfile),
        "config": lambda: Kind((CONFIG,), None, ".json"),
        "plan": lambda: Kind(_plans(), Plan),
    }
    return makers[name]()


def _plans() -> tuple[dict[str, Any], ...]:
    """A plan that was searched, and one that was asked for."""
    Path("model.yaml").write_text(json.dumps(MODEL))
    Path("cluster.yaml").write_text(json.dumps(CLUSTER))
    asked = ("model.yaml", "cluster.yaml", "--global-batch", "8", "--sequence", "64")
    assert call("plan", *asked, "-o", "searched.yaml").code == 0
    assert call("estimate", *asked, "--layout", "tp2 pp2 mbs1 zero0", "-o", "asked.yaml").code == 0
    return tuple(yaml.safe_load(Path(name).read_text("utf-8")) for name in ("searched.yaml", "asked.yaml"))


@st.composite
def changed(draw: st.DrawFn, name: str) -> Any:
    """The content of a file of this kind, changed in none to three places."""
    chosen = kind(name)
    content: Any = json.loads(json.dumps(draw(st.sampled_from(chosen.right))))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        content = draw(changed_once(content, chosen.spec))
    return content


@st.composite
def changed_once(draw: st.DrawFn, content: Any, spec: type[BaseModel] | None = None) -> Any:
    """The same with another value somewhere, a field that is missing or too many, or something else altogether."""
    if not isinstance(content, dict) or not content:
        return content
    content = copy.deepcopy(content)
    where: Any = content
    key = draw(st.sampled_from(sorted(where, key=str)))
    while isinstance(where[key], dict | list) and where[key] and draw(st.integers(0, 5)):
        where = where[key]
        key = draw(st.sampled_from(sorted(where, key=str) if isinstance(where, dict) else range(len(where))))
    match draw(st.sampled_from(_CHANGES)):
        case "value":
            where[key] = draw(nasty)
        case "like":
            where[key] = draw(_like(where[key]))
        case "gone":
            del where[key]
        case "more" if isinstance(where, dict):
            where[draw(st.sampled_from(_UNKNOWN))] = draw(nasty)
        case "field" if spec is not None:
            field = draw(st.sampled_from(sorted(spec.model_fields)))
            content[field] = draw(field_values(spec.model_fields[field]))
        case "field":
            content[draw(st.sampled_from(CONFIG_KEYS))] = draw(nasty)
        case "all" if not draw(st.integers(0, 9)):
            return draw(nasty)
    return content


_CHANGES = ("value", "value", "value", "like", "like", "like", "field", "field", "gone", "more", "all")
_UNKNOWN = ("unknown", "num_layer", "\x1b[1mbold", "kind", "", *CONFIG_KEYS)


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Something of the same sort."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.sampled_from([1, 2, 3, 4, 6, 8, 16, 64, 1000, 10**5, 10**9])
    if isinstance(value, float):
        return st.sampled_from([value / 1e6, value / 2, value * 2, value * 1e6, 1e-9, 1.0, 1e9])
    if isinstance(value, str) and value[-2:] in ("/s", "iB", "GB", "us", "ns", " s", " B"):
        return quantities((value.rpartition(" ")[2],))
    return st.just(value)


@st.composite
def texts(draw: st.DrawFn, name: str) -> bytes:
    """The bytes of such a file, most of them whole."""
    content = draw(changed(name))
    text = json.dumps(content) if kind(name).suffix == ".json" or draw(st.booleans()) else _as_yaml(content)
    if name == "plan" and draw(st.integers(0, 15)):
        text += "\n...\n"
    raw = text.encode("utf-8", "surrogatepass")
    return raw if draw(st.integers(0, 11)) else draw(damaged(raw))


def _as_yaml(content: Any) -> str:
    """YAML a field a line, with JSON for what is inside: as quick to write as JSON, and with lines to name."""
    if not isinstance(content, dict) or not content:
        return json.dumps(content)
    return "".join(f"{json.dumps(str(key))}: {json.dumps(value)}\n" for key, value in content.items())


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """Cut off, in another encoding, doubled, with something in between."""
    where = draw(st.integers(0, len(raw)))
    between = draw(st.sampled_from([draw(st.binary(max_size=4)), b"!!python/object/apply:os.system [true]"]))
    odd = [raw[:where], b"\xef\xbb\xbf" + raw, raw.decode("utf-8", "replace").encode("utf-16"), raw + raw]
    odd += [raw[:where] + between + raw[where:], b"[" * 5000 + raw, raw.replace(b'"', b""), b""]
    return draw(st.sampled_from(odd))


def write(name: str, raw: bytes) -> str:
    """Into the working folder; the name to call the file by."""
    path = f"fuzzed-{name}{kind(name).suffix}"
    Path(path).write_bytes(raw)
    return path


def spoilt(draw: st.DrawFn, content: Any, whole: int = 5) -> bytes:
    """JSON changed in none to three places, and damaged once in so many times and one."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(0, 3))):
        content = draw(changed_once(content))
    raw = json.dumps(content).encode()
    return raw if draw(st.integers(0, whole)) else draw(damaged(raw))
