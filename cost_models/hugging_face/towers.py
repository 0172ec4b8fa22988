"""Vision towers of Hugging Face configs, read as `data/hugging_face/towers.yaml` says; any other is left aside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.hugging_face.families import data_of
from cost_models.hugging_face.readers import ACTIVATIONS, Config


def tower_fields(config: Config, decoder: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Spec fields of a model with its vision tower, added to the decoder's fields, and the assumption made; None
    where the tower is not known.

    Blocks behind the one that the decoder reads (`vision_feature_layer`) are left out.
    """
    table, model_type = data_of("towers.yaml"), config.get("model_type")
    vision, joined = config.get("vision_config"), table["models"].get(str(model_type))
    if joined is None or not isinstance(vision, dict):
        return None
    kind = vision.get("model_type", joined["tower"])
    entry = table["towers"].get(joined["tower"] if kind == model_type else kind)
    if entry is None:
        return None
    tower = dict(entry["facts"])
    for field, (key, default) in entry["optional"].items():
        tower[field] = default if vision.get(key) is None else vision[key]
    layers, width = tower["layers"], tower["hidden_size"]
    sized = all(isinstance(one, int | float | str) for one in tower.values())
    if not sized or not isinstance(decoder.get("num_layers"), int):
        return None
    if "ffn_hidden_size" not in tower:
        tower["ffn_hidden_size"] = int(width * vision.get("mlp_ratio", 4))
    tower["activation"] = ACTIVATIONS.get(vision.get("hidden_act", entry["activation"]))
    tower["norm_after"] = joined["normed"]
    behind = 0 if joined["normed"] else -1 - config.get("vision_feature_layer", -2)
    if tower["activation"] is None or not isinstance(behind, int) or not 0 <= behind < layers:
        return None
    tower["layers"] = layers - behind
    if joined["matrices"] == 2:
        merge = tower.get("merge")
        tower["projector_hidden_size"] = width * merge**2 if merge else decoder["hidden_size"]
        tower["projector_activation"] = ACTIVATIONS.get(config.get("projector_hidden_act", "gelu"), "gelu")
    tower["projector_bias"] = bool(config.get("multimodal_projector_bias", True))
    assumption = f"a vision tower of {tower['layers']} blocks before its decoder"
    if not joined["normed"]:
        assumption += f", without the {behind} behind it and their norm, which the decoder does not read"
    left_out = (*decoder.get("left_out", ()), *((joined["left_out"],) if "left_out" in joined else ()))
    num_layers = decoder["num_layers"] + tower["layers"]
    return {"num_layers": num_layers, "tower": tower, "left_out": left_out}, assumption
