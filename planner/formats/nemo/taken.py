"""Settings of NeMo's files on their way to Megatron-LM's names, each checked for its kind."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.units import LARGEST
from planner.formats.megatron.arguments import KINDS, NEGATIONS, Arguments
from planner.formats.reading.python_values import Unknown
from planner.formats.reading.settings import Settings

_TYPES: Mapping[str, tuple[type, ...]] = {
    "switch": (bool,),
    "whole": (int,),
    "share": (int, float),
    "name": (str,),
    "list": (list,),
    "pattern": (int, list),
}
"""How Megatron-LM's arguments are written → what a file may have."""

_NEGATED = frozenset(NEGATIONS.values())


@dataclass(slots=True)
class Taken:
    """Settings of the file on their way to Megatron-LM's names."""

    settings: Settings
    said: Arguments = field(default_factory=Arguments)

    @staticmethod
    def knows(name: str) -> bool:
        """Whether Megatron-LM has an argument for it."""
        return name in KINDS or name in _NEGATED

    def get(self, path: str, default: Any = None) -> Any:
        """A setting; one that is filled in when the program starts is a problem."""
        value = self.settings.get(path, default)
        if isinstance(value, Unknown):
            self.said.problems.append(Problem(f"`{path}`", f"only Python knows what `{value}` is"))
            return default
        if isinstance(value, str) and "${" in value:
            self.said.problems.append(Problem(f"`{path}`", f"`{value}` is filled in when the program starts"))
            return default
        return default if value is None else value

    def take(self, path: str, name: str) -> None:
        """A setting under another name, if it is there and fits."""
        value = self.get(path)
        if value is None:
            return
        words = f"{path}: {printable(str(value))}"
        kind = KINDS.get(name, "switch")
        if kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        fits = isinstance(value, _TYPES[kind]) and (kind == "switch") == isinstance(value, bool)
        if fits and isinstance(value, list):
            wanted = int if kind == "pattern" else str
            fits = bool(value) and all(isinstance(one, wanted) for one in value)
        elif fits and kind in ("whole", "share", "pattern"):
            fits = abs(value) <= LARGEST
        if not fits:
            self.said.problems.append(Problem(f"`{words}`", "is no value of this setting"))
        else:
            self.said.say(name, tuple(value) if isinstance(value, list) else value, words)


def overrides(text: str) -> dict[str, Any]:
    """`model.fp8=True trainer.num_nodes=4` by path."""
    found: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--also: {str(error).lower()}") from None
    for word in words:
        path, equals, value = word.lstrip("+").partition("=")
        if not equals or path.startswith(("-", "~")):
            raise InputError(f"--also: `{printable(word)}` is no setting like `model.global_batch_size=512`")
        found[path] = _literal(value)
    return found


def _literal(text: str) -> Any:
    known = {"null": None, "none": None, "": None, "true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
