"""Conversion of a Hugging Face `config.json` into fields of a `TransformerSpec`, with the assumptions made,
and back.

Families by `model_type` are in `data/hugging_face/families.yaml`. A family lists the config key of each spec field, and
the facts that the code of its class fixes if a config does not state them. Rules that need code are functions of
`readers`, which the table names.

A config states sizes, while the architecture is in the code of the class; each fact that comes from the family instead
of the config is reported. Dropout is no part of the shape: each family has one key for it, Llama-like families none.

Vision towers are read by the rules of `data/hugging_face/towers.yaml`; others are left out.

A model is written as the config of the first family whose config, read again, gives the same model.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from cost_models.documents import Document, Key, printable
from cost_models.errors import InputError, Problem, either
from cost_models.hugging_face import readers
from cost_models.hugging_face.readers import (
    ACTIVATIONS,
    SCALED,
    Config,
    Derived,
    in_turns,
    old_rotary_keys,
    unscaled,
)
from cost_models.specs.transformer import Encoder, Rotary, TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rules for converting Hugging Face configs of one `model_type`, with the facts that are fixed in the
    model's code."""

    sizes: Mapping[str, str] = field(default_factory=dict)
    """Required key of the config for each spec field."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values of spec fields that every model of the family has."""
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Optional config key of each spec field, with the value if the key is absent (None: the spec's default)."""
    activation: Sequence[str] = ("hidden_act", "silu")
    """The config's key of the activation function, and its value if the key is absent."""
    priced_as: Mapping[str, str] = field(default_factory=dict)
    """Activation function of a `TransformerSpec` that prices an activation of the family, by the latter's name."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values that the family's class assumes for absent keys: parts of larger configs omit them."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Old key with the same meaning as a key, from files older than the family in `transformers`."""
    needed: Sequence[str] = ()
    """Required keys in addition to the keys in `sizes`."""
    redundant: Sequence[str] = ()
    """Keys without further information, as they repeat other keys or an omission names them."""
    derivations: Sequence[str | Mapping[str, Mapping[str, Any]]] = ()
    """Names of functions in `readers` that derive spec fields, with arguments if any."""
    refusals: Sequence[str | Mapping[str, Any]] = ("window_refusal",)
    """Reasons why a config cannot be represented: `say` it `when` a key is set; or a function of `readers`."""
    omissions: Sequence[str | Mapping[str, Any]] = ()
    """Computations that our blocks lack: `say` it always, or `when` a key (`absent`: its default) is set;
    or a function of `readers`."""
    simplification: str | None = None
    """Simplification in words that does not change the model."""

    def derive(self, config: Config) -> Derived:
        """Spec fields that the family's derivation functions compute from the config."""
        fields: Derived = {}
        for derivation in self.derivations:
            calls = {derivation: {}} if isinstance(derivation, str) else derivation
            for name, arguments in calls.items():
                fields |= getattr(readers, name)(config, **arguments)
        return fields


def active_phrases(conditions: str | Sequence[str | Mapping[str, Any]], config: Config) -> Iterator[str]:
    """Yield the phrase of each condition that a config fulfils, such as a feature or a reason for refusal.
    The value of an absent key is `absent`; 0, false and null fulfil no condition."""
    for condition in conditions:
        if isinstance(condition, str):
            yield from getattr(readers, condition)(config)
        elif "when" not in condition or config.get(condition["when"], condition.get("absent")):
            yield condition["say"]


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_UNREAD = 8
"""Maximum number of unread keys in a message."""


@cache
def data_of(name: str) -> Any:
    """Parse a YAML file of `data/hugging_face`; cached."""
    file = files("cost_models") / "data" / "hugging_face" / name
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)


@cache
def families() -> Mapping[str, Family]:
    """Rules of each supported model family by `model_type`, dense families first; cached."""
    table = data_of("families.yaml")
    entries = table["bases"] | table["dense"] | table["mixtures"]
    return {name: Family(**_fields(entries, name)) for name in (*table["dense"], *table["mixtures"])}


def without_price(model_type: str, config: Config) -> list[str]:
    """Phrases that name the operations of a model that the cost model does not cover, for a `model_type` of
    no known family."""
    table = data_of("families.yaml")
    always = table["other_blocks"].get(model_type, table["features"])
    return [always] if isinstance(always, str) else list(active_phrases(always, config))


def _fields(entries: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Constructor arguments of a `Family` from an entry of `families.yaml`. The entry inherits the fields of
    the entry named in `like`, except those listed in `without`."""
    entry = dict(entries[name])
    fields = _fields(entries, entry.pop("like")) if "like" in entry else {}
    dropped = entry.pop("without", ())
    for part in ("sizes", "facts", "optional"):
        inherited = {key: value for key, value in fields.get(part, {}).items() if key not in dropped}
        fields[part] = inherited | entry.pop(part, {})
    return fields | entry


class Noted(UserDict[str, Any]):
    """A Hugging Face config that records which keys were read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.data[key]

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return key in self.data


def unread(config: Noted, redundant: Sequence[str] = ()) -> str:
    """Text that lists the config keys with a value that nothing has read; empty if there are none."""
    table = data_of("families.yaml")
    endings = tuple(table["of_no_price_endings"])
    rest = sorted(config.keys() - config.read - {*table["of_no_price"], *redundant})
    keys = [key for key in rest if not key.endswith(endings) and config[key] not in (None, False, [], {}, "")]
    words = [f"{printable(key, limit=40)} {printable(str(config[key]), limit=30)}" for key in keys]
    remainder = f" and {len(words) - _MOST_UNREAD} more" if len(words) > _MOST_UNREAD else ""
    return ", ".join(words[:_MOST_UNREAD]) + remainder


_DROPOUT_KEYS: tuple[str, ...] = ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout")
_DROPOUT_KEYS += ("residual_dropout", "resid_dropout", "dropout")
"""Keys of GPT-2, GPT-J, Phi and MPT; BERT and its kin; Falcon, BLOOM, GPT-NeoX and StableLM; StarCoder 2; GPT-Neo;
OPT."""


def dropout_of(config: Config) -> tuple[float, str] | None:
    """Dropout probability of hidden activations in a Hugging Face config, with the key that states it; None
    if no key does. Raises InputError for a value that is no probability."""
    for key in _DROPOUT_KEYS:
        if (share := config.get(key)) is None:
            continue
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise InputError(f"`{key}: {printable(str(share))}` is no probability")
        return float(share), key
    return None


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
"""Keys of a number of experts."""
_LATER = {"num_experts": "num_local_experts"}
"""Key that `transformers` 5 may write in place of an older key, by the older key."""
_SIZED_NAME = re.compile(r"[a-z].*\d|\d.*[a-z]", re.IGNORECASE)
"""Pattern of a folder named for a model: letters and a number."""
_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._ +/-]")


def read_config(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Convert a Hugging Face config into a document of `TransformerSpec` fields, and return it with the
    assumptions made, one phrase each.

    Raises:
        InputError: a `model_type` that cannot be represented, or a config that lacks what cannot be assumed;
            every missing key at once.
    """
    name, (config, prefix) = document.source, _text_part(document.value)
    model_type = config.get("model_type")
    family = _family(name, model_type, config)
    class_values = {key: value for key, value in family.absent.items() if key not in config}
    config = _as_named_today(config, family, class_values)
    missing = [f"`{key}`" for key in (*family.sizes.values(), *family.needed) if config.get(key) is None]
    if missing:
        hint = "add them, or use a catalogue model: meshwright catalog models"
        raise InputError(f"{name} (model_type `{model_type}`) does not say {either(missing)}", hint=hint)
    for reason in active_phrases(family.refusals, config):
        raise InputError(f"{name} (model_type `{model_type}`) cannot be represented: {reason}")
    fields = {field: config[key] for field, key in family.sizes.items()} | dict(family.facts)
    keys = dict(family.sizes)
    facts = ", ".join(_phrase(spec_field, value) for spec_field, value in family.facts.items())
    assumed = [f"{_TEXT_ALONE} ({prefix.rstrip('.')})"] if prefix else []
    assumed += [f"{facts} (model_type {model_type})"] if facts else []
    assumed += [f"{key} {value} (model_type {model_type})" for key, value in class_values.items()]
    for spec_field, (key, default) in family.optional.items():
        keys[spec_field], value = key, config.get(key)
        if value is None and (default is not None or None in _PHRASES.get(spec_field, {})):
            assumed.append(f"{_phrase(spec_field, default)} (no {key})")
        if (value := default if value is None else value) is not None:
            fields[spec_field] = value
    for spec_field, (key, value) in family.derive(config).items():
        fields[spec_field], keys[spec_field] = value, key
        if key not in config:
            assumed.append(f"{_phrase(spec_field, value)} (no {key})")
    fields["left_out"] = (*active_phrases(family.omissions, config), *unscaled(config))
    fields["activation"] = _activation(name, family, config, assumed)
    if family.simplification:
        assumed.append(family.simplification)
    if passed := unread(config, family.redundant):
        assumed.append(f"nothing of {passed}: not read")
    if tower := tower_fields(document.value, fields):
        fields |= tower[0]
        assumed = [tower[1], *(one for one in assumed if not one.startswith(_TEXT_ALONE))]
    fields["name"] = _model_name(document, fields)
    fields["source"] = f"Hugging Face config, model_type {model_type}"
    places: dict[Key, str] = {(spec_field,): f"{name}  {prefix}{key}" for spec_field, key in keys.items()}
    return Document(source=name, value=fields, flags=places), tuple(assumed)


def _as_named_today(config: Config, family: Family, class_values: Config) -> Noted:
    """Copy of a Hugging Face config with `class_values` added and old key names replaced by the current names of
    the family."""
    later = {key: config[_LATER[key]] for key in family.sizes.values() if _LATER.get(key) in config}
    spelled = {key: config[old] for key, old in family.older.items() if key not in config and old in config}
    gone = [family.older[key] for key in spelled]
    current = {key: value for key, value in config.items() if key not in gone}
    rotary_keys = old_rotary_keys(config)
    noted = Noted({**later, **current, **spelled, **class_values, **rotary_keys})
    noted.read |= {*rotary_keys, *(_LATER[key] for key in later)}  # what says the same is read once
    return noted


def _text_part(config: Config) -> tuple[Config, str]:
    """Text part of a multimodal config with its prefix (`text_config.`); any other config unchanged, with an
    empty prefix."""
    inside = config.get(_TEXT)
    if not isinstance(inside, dict):
        return config, ""
    outer = {"model_type": f"{config.get('model_type')}_text"}
    outer |= {key: config[key] for key in ("tie_word_embeddings", "_name_or_path") if key in config}
    return {**outer, **inside}, f"{_TEXT}."


_TEXT = "text_config"
_TEXT_ALONE = "the part for text alone"
_PARTS = {"attention_bias": "attention biases", "attention_output_bias": "bias on the attention's output"}
_PARTS |= {"mlp_bias": "MLP biases", "qk_norm": "norms over queries and keys"}
"""Phrase for each spec field that is true."""
_EXPERT_WEIGHTS = "weights of chosen experts"
_PLACES = {"before": "before", "after": "after", "around": "before and after"}
_PHRASES: dict[str, dict[Any, str]] = {
    **{name: {True: part, False: f"no {part}"} for name, part in _PARTS.items()},
    "num_kv_heads": {None: "as many key/value heads as heads"},
    "head_dim": {None: "head_dim = hidden size / heads"},
    "ffn_hidden_size": {None: "MLP four times as wide as the model"},
    "max_positions": {None: "sequences of up to 2048 tokens"},
    "gated_mlp": {True: "gated MLP", False: "plain MLP"},
    "tied_embeddings": {True: "tied embeddings", False: "untied embeddings"},
    "qk_norm_over": {"all": "over all heads at once"},
    "norm_placement": {place: f"norms {where} attention and MLP" for place, where in _PLACES.items()}
    | {"after-sum": "norms over sums with the residual stream"},
    "norm_bias": {False: "no biases of norms"},
    "embedding_norm": {True: "a norm behind the embedding", False: "no norm behind the embedding"},
    "head_bias": {True: "a bias on the head"},
    "parallel_block": {True: "attention beside the MLP", False: "attention before the MLP"},
    "parallel_norms": {1: "one norm for both", 2: "a norm for each of both"},
    "router_scores": {"sigmoid": "sigmoid routers", "softmax": "softmax routers"},
    "router_bias": {True: "biases of routers"},
    "shared_expert_gate": {True: "a gate before the shared expert"},
    "attention_sinks": {True: "attention sinks"},
    "attention_gate": {True: "gates on attention"},
    "separate_halves": {True: "blocks of one half each"},
    "positions": {"none": "no positions"}
    | {kind: f"{kind} positions" for kind in ("rotary", "learned", "alibi")},
    "normalized_routing": {True: f"{_EXPERT_WEIGHTS} scaled to one", False: f"{_EXPERT_WEIGHTS} as they are"},
}
"""Phrase for each value of a spec field; the value None follows from other fields."""


def _phrase(name: str, value: Any) -> str:
    """Phrase that describes a spec field with its value, for lists of assumptions."""
    if name == "encoder":
        rows = value.get("token_types", 0)
        return f"{rows or 'no'} type{'s' * (rows != 1)} of tokens"
    if name == "rotary":
        return f"rotary positions of base {value.get('base', Rotary().base):g}"
    if name == "moe_layers":
        return f"blocks with experts: {', '.join(str(layer) for layer in value)}"
    if name == "window_pattern":
        return f"blocks with a window and without in turns of {in_turns(value)}"
    if name == "mixers":
        return f"blocks of {in_turns(value)}"
    if isinstance(value, dict | list):
        return name.replace("_", " ")
    if value in _PHRASES.get(name, {}):
        return _PHRASES[name][value]
    return f"{name.replace('_', ' ')} {value}" if isinstance(value, int | float) else str(value)


def _family(name: str, model_type: Any, config: Config) -> Family:
    """Look up the conversion rules of a config's `model_type`. Raises InputError if the model cannot be
    represented."""
    if not isinstance(model_type, str):
        hint = "it is neither a Hugging Face config nor, with `kind: transformer`, one of ours"
        raise InputError(f"{name} does not say its `model_type`", hint=hint)
    title, known_families, problem = f"{name} (model_type `{printable(model_type)}`)", families(), ""
    if model_type not in known_families and (has := without_price(model_type, config)):
        features = f"{', '.join(has[:-1])} and {has[-1]}, which have" if has[1:] else f"{has[0]}, which has"
        hint = "describe a model near it in YAML with `kind: transformer`"
        raise InputError(f"{title} cannot be represented: it has {features} no price here", hint=hint)
    experts = [count for key in _EXPERTS if isinstance(count := config.get(key), int)]
    mixtures = data_of("families.yaml")["mixtures"]
    if max(experts, default=2 * ("moe" in model_type.lower())) > 1 and model_type not in mixtures:
        known_families = {one: known_families[one] for one in mixtures}
        problem = f"{title} is a mixture of experts that cannot be represented"
    elif model_type not in known_families:
        problem = f"{name} has model_type `{printable(model_type)}`, which cannot be represented"
    if problem:
        hint = f"known: {', '.join(known_families)}; or describe the shape in YAML with `kind: transformer`"
        raise InputError(problem, hint=hint)
    return known_families[model_type]


def _activation(name: str, family: Family, config: Config, assumed: list[str]) -> str:
    """Activation function (as the spec names it) of a config; a missing key adds a phrase to `assumed`.
    Raises InputError for an unknown function."""
    key, default = family.activation
    written = config.get(key)
    if written is None and key == "hidden_act":
        written = config.get("hidden_activation")
    if written is None:
        assumed.append(f"activation {ACTIVATIONS.get(default, default)} (no {key})")
        written = default
    activations = {**ACTIVATIONS, **family.priced_as}
    if not isinstance(written, str) or written not in activations:
        message = f"`{printable(str(written), limit=60)}` is not one of {', '.join(ACTIVATIONS)}"
        raise InputError(f"1 problem in {name}", problems=[Problem(f"{name}  {key}", message)])
    return activations[written]


def _model_name(document: Document, fields: Mapping[str, Any]) -> str:
    """Name for a model: `_name_or_path` without the owner; else the folder's name if it contains a size
    (`Llama-3-8B`); else type, number and width of blocks (`llama-32x4096`)."""
    written, path = document.value.get("_name_or_path"), Path(document.source)
    name = Path(written).name if isinstance(written, str) and written else path.absolute().parent.name
    if not (written or _SIZED_NAME.search(name)):
        name = f"{document.value.get('model_type')}-{fields.get('num_layers')}x{fields.get('hidden_size')}"
    return _NAME_CHARACTERS.sub("-", name)[:100].lstrip("._ +/-") or "custom"


def tower_fields(config: Config, decoder: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Spec fields to add to a decoder's fields, or to change in them, for a model's vision tower; also the
    assumption made, in words. None if the tower is unknown.

    Blocks of the tower behind the block that the decoder reads (`vision_feature_layer`) are omitted.
    """
    table, model_type = data_of("towers.yaml"), config.get("model_type")
    vision, joined = config.get("vision_config"), table["models"].get(str(model_type))
    if joined is None or not isinstance(vision, dict):
        return None
    kind = vision.get("model_type", joined["tower"])
    entry = table["towers"].get(joined["tower"] if kind == model_type else kind)
    if entry is None:
        return None
    tower = entry["facts"] | joined.get("facts", {})
    for name, (key, default) in entry["optional"].items():
        tower[name] = default if vision.get(key) is None else vision[key]
    layers, width = tower["layers"], tower["hidden_size"]
    sized = all(isinstance(one, int | float | str) for one in tower.values())
    if not sized or not isinstance(decoder.get("num_layers"), int):
        return None
    if tower["image"] // tower["patch"] % tower.get("merge", 1):  # as where a config states no size of images
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
    tower.setdefault("projector_bias", bool(config.get("multimodal_projector_bias", True)))
    assumption = f"a vision tower of {tower['layers']} blocks before its decoder"
    if not joined["normed"]:
        assumption += f", without the {behind} behind it and their norm, which the decoder does not read"
    left_out = (*decoder.get("left_out", ()), *((joined["left_out"],) if "left_out" in joined else ()))
    num_layers = decoder["num_layers"] + tower["layers"]
    return {"num_layers": num_layers, "tower": tower, "left_out": left_out}, assumption


_FREE = frozenset({"name", "source", "vocab_multiple", "load_balance", "changed"})
"""Spec fields that no config states, or that do not affect the weights."""


TypeFilter = Callable[[str], bool]
"""Function that says whether a config may have a `model_type`."""


def config_of(model: TransformerSpec, dtype: str, wanted: TypeFilter | None = None) -> dict[str, Any] | None:
    """Hugging Face config that represents all fields of a model, for a `model_type` that `wanted` accepts;
    None if no family can."""
    for model_type, family in families().items():
        if wanted is None or wanted(model_type):
            config = {"model_type": model_type, "torch_dtype": dtype} | _config_keys(model, family)
            with suppress(ValueError, TypeError):
                fields, _ = read_config(Document(source="config.json", value=config))
                if stated_fields(TransformerSpec.model_validate(fields.value)) == stated_fields(model):
                    return config
    return None


def stated_fields(model: TransformerSpec) -> dict[str, Any]:
    """Fields of a transformer that affect the weights, with values as a Hugging Face config can state them."""
    fields = {name: getattr(model, name) for name in TransformerSpec.model_fields if name not in _FREE}
    fields["rotary"] = model.rotary or Rotary()
    if model.encoder is not None:  # no config says what is masked
        unsaid = {name: getattr(Encoder(), name) for name in ("masked", "mask_token")}
        fields["encoder"] = model.encoder.model_copy(update=unsaid)
    if model.positions != "learned":
        del fields["max_positions"]
    return fields


def _config_keys(model: TransformerSpec, family: Family) -> dict[str, Any]:
    """Config keys of a model according to a family's table, with the usual keys from which the family's
    functions derive fields."""
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
        config["relative_attention_num_buckets"] = buckets
        config["relative_attention_max_distance"] = stacks.farthest
        config["scale_decoder_outputs"] = model.logit_scale != 1.0
        config |= {key: gated[0]} if model.gated_mlp and gated else {}
    if model.has_experts:
        config["norm_topk_prob"] = model.normalized_routing
    return config
