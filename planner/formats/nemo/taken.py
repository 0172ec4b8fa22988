"""Settings of NeMo's files taken under Megatron-LM's names, each checked for its kind."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.units import LARGEST
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.reading.python_values import Unknown
from planner.formats.reading.settings import Settings
from planner.formats.table import table_of

_TYPES: Mapping[str, tuple[type, ...]] = {
    "switch": (bool,),
    "off": (bool,),
    "whole": (int,),
    "share": (int, float),
    "name": (str,),
    "list": (list,),
    "pattern": (int, list),
}
"""Kind of an argument of Megatron-LM → types that a file may give it."""


@dataclass(slots=True)
class Taken:
    """Settings of the file, and those of them that were taken under Megatron-LM's names."""

    settings: Settings
    said: Arguments = field(default_factory=Arguments)

    def get(self, path: str, default: Any = None) -> Any:
        """A setting; one that is filled in when the program starts is a problem."""
        value = self.settings.get(path)
        if isinstance(value, Unknown):
            self.said.problems.append(Problem(f"`{path}`", f"only Python knows what `{value}` is"))
            return default
        if isinstance(value, str) and "${" in value:
            self.said.problems.append(Problem(f"`{path}`", f"`{value}` is filled in when the program starts"))
            return default
        return default if value is None else value

    def take(self, path: str, name: str) -> None:
        """Take a setting under another name, if it is there and fits."""
        value = self.get(path)
        if value is None:
            return
        words, kind = f"{path}: {printable(str(value))}", table_of(TABLE).arguments[name].kind
        if kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        fits = isinstance(value, _TYPES[kind]) and (kind in ("switch", "off")) == isinstance(value, bool)
        if fits and isinstance(value, list):
            wanted = int if kind == "pattern" else str
            fits = bool(value) and all(isinstance(one, wanted) for one in value)
        elif fits and kind in ("whole", "share", "pattern"):
            fits = abs(value) <= LARGEST
        if not fits:
            self.said.problems.append(Problem(f"`{words}`", "is no value of this setting"))
        else:
            self.said.say(name, tuple(value) if isinstance(value, list) else value, words)

    def take_fused_activation(self) -> None:
        """Take the fusion of biases with the activation, which Megatron-LM names by the activation."""
        name = "bias_swiglu_fusion" if self.said.get("swiglu") else "bias_gelu_fusion"
        self.take("model.bias_activation_fusion", name)

    def take_tied_embeddings(self) -> None:
        """Take whether the head has weights of its own."""
        if not self.get("model.share_embeddings_and_output_weights", True):
            words = "share_embeddings_and_output_weights: False"
            self.said.say("untie_embeddings_and_output_weights", True, words)

    def require_readable(self, what: str) -> None:
        """Raise InputError with all problems of the file."""
        if self.said.problems:
            hint = '--also "model.KEY=VALUE" says one'
            raise InputError(f"the {what} cannot be read", problems=self.said.problems, hint=hint)


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
