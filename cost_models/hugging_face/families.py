"""Families of Hugging Face configs by `model_type`, read from `data/hugging_face/families.yaml`.

A family says the names of a config's fields, and what the code of its class fixes where a config is silent. What takes
more than a table is a function of `readers`, which the table names.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from cost_models.documents import printable
from cost_models.hugging_face import readers
from cost_models.hugging_face.readers import Config, Derived


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rules for converting Hugging Face configs of one `model_type`, with facts fixed in the model's code."""

    sizes: Mapping[str, str] = field(default_factory=dict)
    """Our field → the config's key, each required."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Our field → its fixed value in all models of the family."""
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Our field → the config's key and the value where it is absent (None: our own default)."""
    activation: Sequence[str] = ("hidden_act", "silu")
    """The config's key of the activation, and its value where absent."""
    priced_as: Mapping[str, str] = field(default_factory=dict)
    """Activation of the family → our activation that prices it."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Key → value that the family's class assumes: parts of larger configs leave out such values."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Key → the key of the same meaning in files from before `transformers` had the family."""
    needed: Sequence[str] = ()
    """Required keys in addition to those of `sizes`."""
    redundant: Sequence[str] = ()
    """Keys that repeat others, or that an omission names: they add nothing."""
    derivations: Sequence[str | Mapping[str, Mapping[str, Any]]] = ()
    """Functions of `readers`, with arguments where they take some."""
    refusals: Sequence[str | Mapping[str, Any]] = ("window_refusal",)
    """Reasons why a config cannot be represented: `say` it `when` a key is set; or a function of `readers`."""
    omissions: Sequence[str | Mapping[str, Any]] = ()
    """Computations that our blocks lack: `say` it always, or `when` a key (`absent`: its default) is set;
    or a function of `readers`."""
    simplification: str | None = None
    """A simplification that leaves the model the same, in words."""

    def derive(self, config: Config) -> Derived:
        """Spec fields that a config states in other terms, computed by the family's derivation functions."""
        fields: Derived = {}
        for derivation in self.derivations:
            calls = {derivation: {}} if isinstance(derivation, str) else derivation
            for name, arguments in calls.items():
                fields |= getattr(readers, name)(config, **arguments)
        return fields


def active_phrases(conditions: str | Sequence[str | Mapping[str, Any]], config: Config) -> Iterator[str]:
    """Yield the phrases whose condition a config fulfils. A key that is absent has its class's value, and 0,
    false and null turn nothing on."""
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
    """Map each supported `model_type` to the family's rules, dense families first; cached."""
    table = data_of("families.yaml")
    entries = table["bases"] | table["dense"] | table["mixtures"]
    return {name: Family(**_fields(entries, name)) for name in (*table["dense"], *table["mixtures"])}


def without_price(model_type: str, config: Config) -> list[str]:
    """Phrases for operations without a price in the blocks of a model type that is not in the table of families."""
    table = data_of("families.yaml")
    always = table["other_blocks"].get(model_type, table["features"])
    return [always] if isinstance(always, str) else list(active_phrases(always, config))


def _fields(entries: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Constructor arguments of a `Family` from an entry of `families.yaml`, with fields inherited from the entry
    named in `like`. Fields in `without` are not inherited."""
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
    """Text that lists the config keys not read, with values other than None, False or empty; empty where there
    are none."""
    table = data_of("families.yaml")
    endings = tuple(table["of_no_price_endings"])
    rest = sorted(config.keys() - config.read - {*table["of_no_price"], *redundant})
    keys = [key for key in rest if not key.endswith(endings) and config[key] not in (None, False, [], {}, "")]
    words = [f"{printable(key, limit=40)} {printable(str(config[key]), limit=30)}" for key in keys]
    remainder = f" and {len(words) - _MOST_UNREAD} more" if len(words) > _MOST_UNREAD else ""
    return ", ".join(words[:_MOST_UNREAD]) + remainder
