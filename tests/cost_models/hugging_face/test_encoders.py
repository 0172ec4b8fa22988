"""Encoders: their configs to the last parameter, their FLOPs and bytes by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.gemm import device_of
from cost_models.compute.mixing import flash_seconds
from cost_models.defaults import complete_question
from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.hugging_face.config import config_of, read_config, stated
from cost_models.memory.activations import activation_bytes
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

BASE: dict[str, Any] = yaml.safe_load("""
    {hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12, intermediate_size: 3072, vocab_size: 30522,
    max_position_embeddings: 512, type_vocab_size: 2}
""")
ROBERTA = {"vocab_size": 50265, "pad_token_id": 1}
COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    name: (BASE | (ROBERTA if "roberta" in name and count > 120e6 else {}) | more, count)
    for name, (count, more) in yaml.safe_load("""
        bert: [109514298, {}]
        ernie: [109514298, {}]
        camembert: [109514298, {}]
        xlm-roberta: [109514298, {}]
        data2vec-text: [109514298, {}]
        roberta: [124696665, {}]
        roberta-prelayernorm: [124698201, {}]
        electra: [17519674, {hidden_size: 256, embedding_size: 256, num_attention_heads: 4, intermediate_size: 1024}]
        distilbert: [66985530, {dim: 768, n_layers: 6, n_heads: 12, hidden_dim: 3072}]
        megatron-bert: [333671808, {hidden_size: 1024, num_hidden_layers: 24, num_attention_heads: 16,
            intermediate_size: 4096, vocab_size: 29056}]
        xlm-roberta-xl: [3482741760, {hidden_size: 2560, num_hidden_layers: 36, num_attention_heads: 32,
            intermediate_size: 10240, vocab_size: 250880, max_position_embeddings: 514, type_vocab_size: 1}]
    """).items()
}
"""By `AutoModelForMaskedLM` of transformers 5.24 on the meta device."""


def read(model_type: str, config: dict[str, Any]) -> TransformerSpec:
    fields, _ = read_config(Document(source="config.json", value={"model_type": model_type} | config))
    return TransformerSpec.model_validate(fields.value)


@pytest.mark.parametrize("model_type", COUNTED)
def test_configs_have_every_parameter(model_type: str) -> None:
    config, count = COUNTED[model_type]
    assert total_parameters(read(model_type, config)) == count


@pytest.mark.parametrize("model_type", ["bert", "roberta", "megatron-bert", "roberta-prelayernorm"])
def test_a_model_is_written_as_it_was_read(model_type: str) -> None:
    spec = read(model_type, COUNTED[model_type][0])
    config = config_of(spec, "float32")
    assert config is not None
    assert stated(read(config["model_type"], config)) == stated(spec)


@pytest.mark.parametrize(
    ("model_type", "config", "why"),
    [
        ("bert", {"is_decoder": True}, "it is a decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "positions of its own in attention"),
        ("electra", {"embedding_size": 128}, "embeddings are narrower"),
        ("modernbert", {}, "a first block without a norm"),
    ],
)
def test_what_is_no_such_encoder_is_refused(model_type: str, config: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(model_type, BASE | config)


def test_flops_by_hand() -> None:
    """A block 24·s·h² + 4·s²·h; the head 2·s·h·V and a square matrix. Every token is attended to."""
    model, s, h = resolve_model("bert-large").spec, 512, 1024
    found = forward_flops(model, s)
    assert found.block == 24 * s * h**2 + 4 * s**2 * h
    assert found.head == 2 * s * h * 30522 + 2 * s * h**2
    training = TrainingSpec(global_batch=8, sequence_length=s)
    assert causal_flops(model, training) == model_flops(model, training)


def test_parameters_and_bytes_of_the_ends_by_hand() -> None:
    """Norms over sums leave none at the end; the square matrix, whole on every rank, keeps what it reads, what its
    activation reads and what its norm reads, and so does the output matrix."""
    model, h = resolve_model("bert-base").spec, 768
    one = parameters(model, np.array([2]))
    assert one.head_vectors[0] == h * h + h + 2 * h + 30522 / 2
    assert one.embedding[0] == 30522 * h / 2 + (512 + 2) * h + 2 * h
    training = TrainingSpec(global_batch=8, sequence_length=128, dropout=0.0)
    question = complete_question(model, resolve_cluster("dgx-a100-80gb", 8), training)
    kept = activation_bytes(question, LayoutColumns.of([Layout(mbs=4)]))
    assert kept.head[0] == 4 * 2 * (4 * 128) * h
    assert kept.embedding[0] == 2 * (4 * 128) * h


def test_attention_both_ways_is_twice_the_work() -> None:
    """Less what causal kernels do in vain."""
    model = resolve_model("bert-base").spec
    training = TrainingSpec(global_batch=8, sequence_length=4096)
    question = complete_question(model, resolve_cluster("dgx-a100-80gb", 8), training)
    one, device = LayoutColumns.of([Layout(mbs=8)]), device_of(question, uncast=True)
    causal = replace(question, model=model.model_copy(update={"encoder": None}))
    both, half = (flash_seconds(which, one, device)[0][0] for which in (question, causal))
    assert both / half == pytest.approx(2 / (1 + 600 / 4096))


def test_what_an_encoder_cannot_be() -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "encoder": {}}
    for more, why in (
        ({"attention_window": 8}, "attention_window is for decoders"),
        ({"further_tokens": 1}, "further_tokens is for decoders"),
        ({"positions": "alibi"}, "alibi positions are for decoders"),
        ({"encoder": {"mask_token": 256}}, "mask_token 256 is not below vocab_size 256"),
        ({"encoder": {"first_position": 9}, "max_positions": 8}, "first_position 9 is not below max_pos"),
    ):
        with pytest.raises(ValueError, match=why):
            TransformerSpec.model_validate(shape | more)
