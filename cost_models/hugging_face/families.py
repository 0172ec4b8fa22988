"""Families of Hugging Face configs by `model_type`, read from `data/hugging_face/families.yaml`.

A family says the names of a config's fields, and what the code of its class fixes where a config is silent. What takes
more than a table is a function of `dense` or `mixtures`, which the table names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from cost_models.documents import printable
from cost_models.hugging_face import dense, hybrids, mixtures
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Config, Derived, last_blocks, windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rules for converting Hugging Face configs of one `model_type`, with facts fixed in the model's code."""

    sizes: Mapping[str, str] = field(default_factory=dict)
    """Our field → the config's key, each required."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Our field → its fixed value in all models of the family."""
    optional: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Our field → the config's key and the value where it is absent (None: our own default)."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The config's key of the activation, and its value where absent."""
    priced_as: Mapping[str, str] = field(default_factory=dict)
    """Activation of the family → our activation that prices it."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Key → value that the family's class assumes: parts of larger configs leave out such values."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Key → the key of the same meaning in files from before `transformers` had the family."""
    needed: tuple[str, ...] = ()
    """Required keys in addition to those of `sizes`."""
    redundant: tuple[str, ...] = ()
    """Keys that repeat others, or that an omission names: they add nothing."""
    derivations: tuple[str | Mapping[str, Mapping[str, Any]], ...] = ()
    """Functions of `_DERIVATIONS`, with arguments where they take some."""
    refusals: str | Mapping[str, str] = field(default_factory=dict)
    """Key of the config → why it cannot be represented where the key is set; or a function of `_REFUSALS`."""
    omissions: tuple[str | Mapping[str, Any], ...] = ()
    """Computations that our blocks lack: `say` it always, or `when` a key (`absent`: its default) is set;
    or a function of `_OMISSIONS`."""
    simplification: str | None = None
    """A simplification that leaves the model the same, in words."""

    def derive(self, config: Config) -> Derived:
        """Spec fields that a config states in other terms, computed by the family's derivation functions."""
        fields: Derived = {}
        for derivation in self.derivations:
            name, arguments = (
                (derivation, {}) if isinstance(derivation, str) else next(iter(derivation.items()))
            )
            fields |= _DERIVATIONS[name](config, **arguments)
        return fields

    def refuse(self, config: Config) -> str | None:
        """Reason why a config cannot be represented as a `TransformerSpec`; None where it can."""
        if isinstance(self.refusals, str):
            return _REFUSALS[self.refusals](config)
        return next((reason for key, reason in self.refusals.items() if config.get(key)), None)

    def left_out(self, config: Config) -> tuple[str, ...]:
        """Phrases for computations of the model that the spec's blocks lack, which are neither priced nor trained."""
        return tuple(_active_phrases(self.omissions, config))


def _active_phrases(conditions: str | Sequence[str | Mapping[str, Any]], config: Config) -> Iterator[str]:
    """Yield the phrases whose condition a config fulfils. A key that is absent has its class's value, and 0,
    false and null turn nothing on."""
    for condition in conditions:
        if isinstance(condition, str):
            yield from _OMISSIONS[condition](config)
        elif "when" not in condition or config.get(condition["when"], condition.get("absent")):
            yield condition["say"]


_DERIVATIONS: dict[str, Callable[..., Derived]] = {
    "rotary": rotary,
    "windows": windows,
    "last_blocks": last_blocks,
    **dense.DERIVATIONS,
    **mixtures.DERIVATIONS,
    **hybrids.DERIVATIONS,
}
_REFUSALS: dict[str, Callable[[Config], str | None]] = {
    "opt_refusal": dense.opt_refusal,
    "encoder_refusal": dense.encoder_refusal,
    "hunyuan_refusal": mixtures.hunyuan_refusal,
    "indexer_refusal": mixtures.indexer_refusal,
    "hybrid_refusal": hybrids.hybrid_refusal,
    "nemotron_refusal": hybrids.nemotron_refusal,
}
HYBRIDS = ("hybrid_refusal", "nemotron_refusal")
"""Refusals of families whose lists of blocks name what mixes tokens."""
_OMISSIONS: dict[str, Callable[[Config], Sequence[str]]] = {"limited_steps": hybrids.limited_steps}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_UNREAD = 8
"""Maximum number of unread keys in a message."""
_RENAMED = {
    "derive": "derivations",
    "refuse": "refusals",
    "left_out": "omissions",
    "simplify": "simplification",
    "alike": "priced_as",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Families of Hugging Face models and lists of unsupported features, as in `families.yaml`."""

    dense: Mapping[str, Family]
    mixtures: Mapping[str, Family]
    other_blocks: Mapping[str, str | Sequence[Mapping[str, Any]]]
    """`model_type` → operations of its blocks that our spec cannot express, always or under conditions on keys."""
    features: Sequence[Mapping[str, Any]]
    """Keys of an unknown `model_type` that show operations our spec cannot express."""
    of_no_price: frozenset[str]
    """Keys that are none of a model's shape."""
    of_no_price_endings: tuple[str, ...]

    @property
    def families(self) -> Mapping[str, Family]:
        """Map each supported `model_type` to the family's rules."""
        return {**self.dense, **self.mixtures}

    def without_price(self, model_type: str, config: Config) -> list[str]:
        """Phrases for operations without a price in the blocks of an unsupported model type."""
        always = self.other_blocks.get(model_type, self.features)
        return [always] if isinstance(always, str) else list(_active_phrases(always, config))


@cache
def data_of(name: str) -> Any:
    """Parse a YAML file of `data/hugging_face`; cached."""
    file = files("cost_models") / "data" / "hugging_face" / name
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)


@cache
def table() -> Table:
    """Load the families of `families.yaml`; cached."""
    value = data_of("families.yaml")
    entries = value["bases"] | value["dense"] | value["mixtures"]
    return Table(
        dense={name: Family(**_fields(entries, name)) for name in value["dense"]},
        mixtures={name: Family(**_fields(entries, name)) for name in value["mixtures"]},
        other_blocks=value["other_blocks"],
        features=value["features"],
        of_no_price=frozenset(value["of_no_price"]),
        of_no_price_endings=tuple(value["of_no_price_endings"]),
    )


def _fields(entries: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Constructor arguments of a `Family` from an entry of `families.yaml`, with fields inherited from the entry
    named in `like`. Fields in `without` are not inherited."""
    entry = dict(entries[name])
    fields = _fields(entries, entry.pop("like")) if "like" in entry else {}
    dropped = entry.pop("without", ())
    for part in ("sizes", "facts", "optional"):
        inherited = {key: value for key, value in fields.get(part, {}).items() if key not in dropped}
        added = entry.pop(part, {})
        fields[part] = inherited | (
            {key: tuple(value) for key, value in added.items()} if part == "optional" else added
        )
    renamed = {_RENAMED.get(key, key): value for key, value in entry.items()}
    return fields | {
        key: tuple(value) if isinstance(value, list) else value for key, value in renamed.items()
    }


class Noted(dict[str, Any]):
    """A Hugging Face config (dictionary) that records which keys were read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the key's value or the default, and record the key as read."""
        self.read.add(key)
        return super().get(key, default)


def unread(config: Noted, redundant: Sequence[str] = ()) -> str:
    """Text that lists the config keys not read, with values other than None, False or empty; empty where there
    are none."""
    known_table = table()
    keys = [
        key
        for key in config.keys() - config.read - known_table.of_no_price - set(redundant)
        if not key.endswith(known_table.of_no_price_endings) and config[key] not in (None, False, [], {}, "")
    ]
    words = [f"{printable(key, limit=40)} {printable(str(config[key]), limit=30)}" for key in sorted(keys)]
    remainder = f" and {len(words) - _MOST_UNREAD} more" if len(words) > _MOST_UNREAD else ""
    return ", ".join(words[:_MOST_UNREAD]) + remainder
