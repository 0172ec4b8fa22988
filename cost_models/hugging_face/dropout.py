"""What a Hugging Face config drops of hidden activations in training.

Read from the configuration files of `transformers` 4.57: one key a family, none in those of Llama's kind, whose code
drops nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.hugging_face.families import Config

_KEYS = ("resid_pdrop", "hidden_dropout", "residual_dropout", "resid_dropout", "dropout")
"""Of GPT-2, GPT-J, Phi and MPT; Falcon, BLOOM, GPT-NeoX and StableLM; StarCoder 2; GPT-Neo; OPT."""


class Dropout(NamedTuple):
    """A probability, and the key that says it."""

    share: float
    key: str


def dropout_of(config: Config) -> Dropout | None:
    """What the config says; None: nothing.

    Raises:
        InputError: it is no probability.
    """
    for key in _KEYS:
        if (share := config.get(key)) is None:
            continue
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise InputError(f"`{key}: {printable(str(share))}` is no probability")
        return Dropout(float(share), key)
    return None
