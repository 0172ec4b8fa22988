"""A model as a Hugging Face `config.json`: that of the first family whose config is read as the same model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cost_models.documents import Document
from cost_models.hugging_face.config import read_config
from cost_models.hugging_face.families import Family, families
from cost_models.hugging_face.readers import ACTIVATIONS, SCALED
from cost_models.specs.transformer import Encoder, Rotary, TransformerSpec

_FREE = frozenset({"name", "source", "vocab_multiple", "load_balance", "changed"})
"""Fields that no config states, or that weights do not depend on."""


Wanted = Callable[[str], bool]
"""Whether a config may be of a `model_type`."""


def config_of(model: TransformerSpec, dtype: str, wanted: Wanted | None = None) -> dict[str, Any] | None:
    """Write a Hugging Face config that represents all fields of a model, for a `model_type` accepted by `wanted`;
    None where no family can."""
    for model_type, family in families().items():
        if wanted is None or wanted(model_type):
            config = {"model_type": model_type, "torch_dtype": dtype} | _written(model, family)
            with suppress(ValueError, TypeError):
                fields, _ = read_config(Document(source="config.json", value=config))
                if stated(TransformerSpec.model_validate(fields.value)) == stated(model):
                    return config
    return None


def stated(model: TransformerSpec) -> dict[str, Any]:
    """Fields of a transformer on which the weights depend, as a Hugging Face config can state them."""
    fields = {name: getattr(model, name) for name in TransformerSpec.model_fields if name not in _FREE}
    fields["rotary"] = model.rotary or Rotary()
    if model.encoder is not None:  # no config says what is masked
        unsaid = {name: getattr(Encoder(), name) for name in ("masked", "mask_token")}
        fields["encoder"] = model.encoder.model_copy(update=unsaid)
    if model.positions != "learned":
        del fields["max_positions"]
    return fields


def _written(model: TransformerSpec, family: Family) -> dict[str, Any]:
    """Config keys for a model from the family's table, and the usual keys from which the family's functions
    derive fields."""
    keys = dict(family.sizes) | {name: key for name, (key, _) in family.optional.items()}
    config = {key: getattr(model, name) for name, key in keys.items()}
    key, default = family.activation
    written = [word for word, ours in ACTIVATIONS.items() if ours == model.activation]
    config[key] = default if default in written else written[0]
    rotary = model.rotary or Rotary()
    if model.positions == "rotary":
        config["rope_theta"] = rotary.base
    if rotary.scaling is not None:
        kind, scaling = rotary.scaling.kind, rotary.scaling
        values = {theirs: getattr(scaling, ours) for ours, theirs in SCALED[kind].items()}
        config["rope_scaling"] = {"rope_type": kind} | values
    if model.positions == "rotary" or model.attention_window is not None:
        config["sliding_window"] = model.attention_window
    if (encoder := model.encoder) is not None:
        config |= {"type_vocab_size": encoder.token_types, "pad_token_id": max(0, encoder.first_position - 1)}
    if (stacks := model.stacks) is not None:
        gated = [word for word, ours in family.priced_as.items() if ours == model.activation]
        encoders, buckets = stacks.encoder_layers, stacks.position_buckets
        config |= {"num_layers": encoders, "num_decoder_layers": model.num_layers - encoders}
        config |= {
            "relative_attention_num_buckets": buckets,
            "relative_attention_max_distance": stacks.farthest,
        }
        config["scale_decoder_outputs"] = model.logit_scale != 1.0
        config |= {key: gated[0]} if model.gated_mlp and gated else {}
    if model.has_experts:
        config["norm_topk_prob"] = model.normalized_routing
    return config
